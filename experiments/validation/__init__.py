"""The project's own validation: it is in the repository, and no part of what a wheel installs."""
