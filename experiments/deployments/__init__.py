"""The parts of `experiments.fidelity`."""
