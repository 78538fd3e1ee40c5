"""A few terms of the step times, fitted to a server that was measured."""
