"""The worth of each part of a mechanism: `python -m experiments.ablation`."""
