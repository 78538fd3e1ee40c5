"""The best configuration of a space: `python -m experiments.tune`."""
