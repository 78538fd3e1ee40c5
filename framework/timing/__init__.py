"""Step times of an instance, and the sources that give them.

These modules state a step time and evaluate it:

- `curves`: piecewise affine functions, of which step times are made;
- `step_row`: `StepRow`, the coefficients, curves and limits of one instance, and `Timing`, a source of them;
- `table`: the packed form of several rows, and the compiled functions that evaluate it (`base_s`, `chunk_s`, ...);
- `estimate`: the time of a step of one prompt and some decodes, for policies that plan.

Sources, each a class with `row(model, gpu, parallelism)`:

- `measured`: measured kernel times. `profile` holds them by part of a step, `profile_files` and `profile_entry` read
  and write them, `shipped_setups` lists the shipped ones, `calibration_terms` has the few fitted terms. `scale`,
  `two_batch_overlap` and `expert_parallel` turn them into those of another GPU, of two overlapping micro-batches, and
  of unevenly loaded experts;
- `roofline`: peak FLOP/s and bandwidth alone;
- `affine`: five coefficients;
- `published`: fitted or measured by others.

`overheads` adds CPU work and wave quantization to any of them. `flops` counts what a step computes and moves.

Two rooms make profiles: `kernels` from tables of kernel times, and `microbench` measures such tables on a GPU.
framework.calibration fits the terms to a measured server.
"""
