"""The parts of `experiments.claims`."""
