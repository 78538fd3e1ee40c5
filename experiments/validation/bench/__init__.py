"""How fast `simulate` is, compared with others: `python -m experiments.validation.bench`."""
