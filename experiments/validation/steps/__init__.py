"""Step times against layers that were measured on a GPU: `python -m experiments.validation.steps`."""
