"""Fitted traces against their recordings: `python -m experiments.validation.twins`."""
