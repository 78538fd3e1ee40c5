"""The compilation of functions: numba appears here alone."""
