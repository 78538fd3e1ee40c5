"""Studies: one package each, with a command of its own (`python -m experiments.NAME`)."""
