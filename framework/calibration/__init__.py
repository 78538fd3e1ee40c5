"""A few terms of the step times, fitted to a measured server: `python -m framework.calibration`.

`benchmark_files` reads measured requests, and `replay` sends them again to the simulated server. `fit` compares the
two. `optimise` fits quadratic `surfaces` to simulated times and searches for the best terms on them. `prior` states
what is known of each term before, and `held_out` tests a fit on requests that it has not seen. `apply` puts terms over
step times of any source, `tables` shows the result, and `command` runs all of it. framework.timing.calibration_terms
has the terms, and the file that holds them.
"""
