"""Shipped profiles: their files, their setups, scaling to another GPU."""
