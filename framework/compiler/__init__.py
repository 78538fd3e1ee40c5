"""How functions are compiled: numba appears here alone."""
