"""`python -m experiments.claims`."""

from __future__ import annotations

import sys

from experiments.claims.command import main

if __name__ == "__main__":
    sys.exit(main())
