"""The parts of `experiments.table`."""
