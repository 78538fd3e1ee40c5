"""Measured deployments, replayed: `python -m experiments.fidelity`."""
