"""Whether short searches find the best: `python -m experiments.validation.optimum`."""
