"""The simulator: mechanisms of LLM serving, without any named system."""

from framework.moved import install
from framework.version import VERSION

__version__ = VERSION

install()  # old names of modules go on working
