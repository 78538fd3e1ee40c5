"""Load, fetch, transform, fit and sample traces of LLM requests."""

import servelab  # noqa: F401 (the packages of this installation come first)
