"""The project's own validation: in the repository, not in a wheel."""
