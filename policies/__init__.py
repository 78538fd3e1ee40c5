"""Scheduling policies, one file a system."""

from framework.moved import install

install()  # old names of modules go on working
