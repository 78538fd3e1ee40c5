"""Predictors of output lengths, one file each."""

import servelab  # noqa: F401 (the packages of this installation come first)
