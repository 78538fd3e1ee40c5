"""`python -m experiments.curve`."""

from __future__ import annotations

import sys

from experiments.curve.command import main

if __name__ == "__main__":
    sys.exit(main())
