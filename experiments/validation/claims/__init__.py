"""What papers claim, and what the simulator shows: `python -m experiments.validation.claims`."""
