"""Numbers of a run, computed from its Result."""
