"""The compiled engine: one event loop over a few arrays."""
