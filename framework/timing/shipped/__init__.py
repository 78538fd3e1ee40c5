"""Profiles that the project ships: their files, which setups they cover, scaling to another GPU."""
