"""A few terms of the step times, fitted to a server that was measured: `python -m framework.calibration`.

`benchmark_files` reads measured requests, and `replay` sends them again to the simulated server. `fit` compares the
two, and `optimise` searches for the best terms on the quadratic `surfaces` that it lays through simulated times.
What is known of each term before, `prior` says, and `held_out` tests a fit on what it has not seen.
`apply` lays terms over step times of any source, `tables` shows the result, and `command` does all of it. The terms
themselves, and the file that holds them, are framework.timing.calibration_terms.
"""
