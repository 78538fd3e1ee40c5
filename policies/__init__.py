"""Scheduling policies, one file a system."""

import servelab  # noqa: F401 (the packages of this installation come first)
