"""The simulator: mechanisms of LLM serving, without any named system."""

from framework.moved import install

install()  # old names of modules go on working
