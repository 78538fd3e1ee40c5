"""The parts of `framework.bound`."""
