"""Load, fetch, transform, fit and sample traces of LLM requests."""
