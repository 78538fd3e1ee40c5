"""Measured deployments, replayed: `python -m experiments.validation.fidelity`."""
