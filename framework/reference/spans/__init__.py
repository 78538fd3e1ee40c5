"""Requests that several instances compute together."""
