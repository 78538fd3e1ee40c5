"""`python -m framework.timing.microbench`."""

from __future__ import annotations

import sys

from framework.cli.launch import launch
from framework.timing.microbench.command import main

if __name__ == "__main__":
    launch(lambda: main(sys.argv[1:]))
