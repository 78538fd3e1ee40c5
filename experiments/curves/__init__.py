"""The parts of `experiments.curve`."""
