"""Which architecture serves a load best: `python -m experiments.guide`."""
