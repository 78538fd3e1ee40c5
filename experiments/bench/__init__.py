"""How fast `simulate` is, beside others: `python -m experiments.bench`."""
