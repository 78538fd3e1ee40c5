"""Measured rows of a user's files, next to what a run with default settings predicts."""
