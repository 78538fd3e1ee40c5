"""How fast `simulate` is, beside others: `python -m experiments.validation.bench`."""
