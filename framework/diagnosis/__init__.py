"""Why requests of a run missed their SLO."""
