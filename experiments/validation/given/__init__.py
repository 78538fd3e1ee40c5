"""Measured rows that files hold, next to what a run with default settings says of them."""
