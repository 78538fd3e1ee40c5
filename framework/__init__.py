"""The simulator: mechanisms of LLM serving, without any named system."""

from framework.version import VERSION

__version__ = VERSION
