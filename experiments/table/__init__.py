"""A paper's table from the results store: `python -m experiments.table`."""
