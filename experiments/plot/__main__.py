"""`python -m experiments.plot`."""

from __future__ import annotations

import sys

from experiments.plot.command import main
from framework.cli.launch import launch

if __name__ == "__main__":
    launch(lambda: main(sys.argv[1:]))
