"""The parts of `experiments.bench`."""
