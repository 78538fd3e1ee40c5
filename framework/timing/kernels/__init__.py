"""From tables of measured kernel times to the profile of a model on a GPU.

The steps, module by module:

1. `read_aiconfigurator` (with `aiconfigurator_files`), `read_csv` and `read_vidur` read tables of kernel times. They
   bring them into the schema of `table`, and `checks` refuses values that the GPU could not have reached.
2. `interpolate` finds times between measured shapes; `operations` does so for the operations of layers.
3. `attention_gqa`, `attention_mla` and `all_to_all` combine the operations of attention and of expert parallelism.
4. `step_cost` sums all operations of a step, part by part.
5. `tabulate` fits curves with few knots to these times; `decode_imbalance` fits the cost of unequal contexts.
6. `build` writes the result as a profile: `python -m framework.timing.kernels.build`.

Entry points: `read_aiconfigurator.load_package`, `read_csv.load_csv` and `read_vidur.load_vidur` give `table.Kernels`;
`tabulate.tabulate` makes framework.timing.profile.StepParts of them; `build.build` makes profiles.
"""
