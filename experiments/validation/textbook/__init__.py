"""Effects that textbooks state, measured: `python -m experiments.validation.textbook`."""
