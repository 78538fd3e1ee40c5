"""`python -m experiments.placement`."""

from __future__ import annotations

import sys

from experiments.placement.command import main

if __name__ == "__main__":
    sys.exit(main())
