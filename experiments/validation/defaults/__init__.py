"""How far a policy's own defaults are from the best of a short search."""
