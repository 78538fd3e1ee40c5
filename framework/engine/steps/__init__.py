"""A step: what it holds, its start, its end."""
