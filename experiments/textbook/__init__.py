"""The arithmetic and effects that textbooks state, each next to what is measured: `python -m experiments.textbook`."""
