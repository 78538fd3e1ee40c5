"""Rows, units and doubts that readers of all formats share."""
