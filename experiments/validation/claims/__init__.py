"""Papers' claims, and what the simulator shows: `python -m experiments.validation.claims`."""
