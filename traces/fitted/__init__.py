"""Fitted synthetic traces: what a fit keeps of a recording, how it is fitted, and a trace drawn from it."""
