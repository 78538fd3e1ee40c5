"""How long a step takes: the step times of an instance, and the sources that give them.

The statement of a step time and its evaluation:

- `curves`: piecewise affine functions, of which step times are made;
- `step_row`: `StepRow`, the coefficients, curves and limits of one instance, and `Timing`, a source of them;
- `table`: the packed form of several rows, and the compiled functions that evaluate it (`base_s`, `chunk_s`, ...);
- `estimate`: what a step of one prompt and some decodes would take, for policies that plan.

Sources, each a class with `row(model, gpu, parallelism)`:

- `measured`: kernel times that were measured. `profile` holds them by part of a step, `profile_files` and
  `profile_entry` read and write them, `shipped_setups` lists those that ship, `calibration_terms` has the few terms
  that are fitted on top. `scale`, `two_batch_overlap` and `expert_parallel` turn them into those of another GPU, of two
  overlapping micro-batches, and of unevenly loaded experts;
- `roofline`: peak FLOP/s and bandwidth alone;
- `affine`: five coefficients;
- `published`: fitted or measured by others.

`overheads` lays CPU work and wave quantization over any of them. `flops` counts what a step computes and moves.

Two rooms lead to the profiles: `kernels` makes them from tables of kernel times, and `microbench` measures such tables
on a GPU. framework.calibration fits the terms to a server that was measured.
"""
