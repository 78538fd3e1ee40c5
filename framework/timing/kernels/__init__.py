"""From tables of measured kernel times to the profile of a model on a GPU.

The way, module by module:

1. `read_aiconfigurator` (with `aiconfigurator_files`), `read_csv` and `read_vidur` read tables of kernel times. They
   bring them into the schema of `table`, and `checks` refuses values that the GPU could not have reached.
2. `interpolate` finds times between measured shapes; `operations` does so for the operations that layers are made of.
3. `attention_gqa`, `attention_mla` and `all_to_all` put the operations of attention and of expert parallelism together.
4. `step_cost` adds all operations of a step up, part by part.
5. `tabulate` lays curves with few knots through these times; `decode_imbalance` fits what unequal contexts cost.
6. `build` writes the result as a profile: `python -m framework.timing.kernels.build`.

Doors: `read_aiconfigurator.load_package`, `read_csv.load_csv` and `read_vidur.load_vidur` give `table.Kernels`;
`tabulate.tabulate` makes framework.timing.profile.StepParts of them; `build.build` makes profiles.
"""
