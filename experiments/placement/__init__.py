"""Parallelism and replicas of each phase: `python -m experiments.placement`."""
