"""Measures kernels on the GPU of this machine: `python -m framework.timing.microbench`.

`options` reads the command line, and `cases` lists the kernel calls that a model needs, the most useful first.
`command` times them one after another on a `device.Device`; `cuda` is the real one, with attention kernels from
`attention` and collectives from `all_reduce`. `journal` keeps the results as a CSV, which
framework.timing.kernels.read_csv reads.
"""
