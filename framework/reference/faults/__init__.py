"""An instance crashes and comes back, and requests wait for that."""
