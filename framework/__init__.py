"""The simulator: mechanisms of LLM serving, without any named system."""

import os

import servelab  # noqa: F401 (the packages of this installation come first)
from framework.compiler.environment import leave_out_unreadable
from framework.version import VERSION

__version__ = VERSION

leave_out_unreadable(os.environ)  # No library has read them yet.
