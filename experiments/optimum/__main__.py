"""`python -m experiments.optimum`."""

from __future__ import annotations

import sys

from experiments.optimum.command import main

if __name__ == "__main__":
    sys.exit(main())
