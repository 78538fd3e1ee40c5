"""`python -m experiments.bench`."""

from __future__ import annotations

import sys

from experiments.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
