"""How far a policy's own defaults are from the best that a short search finds for it."""
