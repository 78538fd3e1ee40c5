"""Studies: one package each, with a command of its own (`python -m experiments.NAME`)."""

import servelab  # noqa: F401 (the packages of this installation come first)
