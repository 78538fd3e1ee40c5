"""Latency and goodput against load: `python -m experiments.curve`."""
