"""`python -m experiments.tune`."""

from __future__ import annotations

import sys

from experiments.tune.command import main

if __name__ == "__main__":
    sys.exit(main())
