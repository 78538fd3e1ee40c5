"""Studies: one package each, with a command of its own (`python -m experiments.NAME`)."""

from framework.moved import install

install()  # old names of modules go on working
