"""The parts of `experiments.tune`."""
