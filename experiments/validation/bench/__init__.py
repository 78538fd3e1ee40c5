"""The speed of `simulate`, compared with others: `python -m experiments.validation.bench`."""
