"""Pictures for papers, of finished runs and of a store: `python -m experiments.plot`."""
