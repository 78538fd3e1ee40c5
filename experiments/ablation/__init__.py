"""What each part of a mechanism is worth: `python -m experiments.ablation`."""
