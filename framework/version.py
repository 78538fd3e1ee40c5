"""The version of the project, which each run records (docs/versions.md)."""

VERSION = "0.2.0"
"""The version of servelab, major.minor.patch; each run records it.

Example:
    >>> servelab.VERSION == servelab.__version__ == run.summary["versions"]["servelab"]
    True
"""
