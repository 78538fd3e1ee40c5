"""`python -m experiments.guide`."""

from __future__ import annotations

import sys

from experiments.guide.command import main

if __name__ == "__main__":
    sys.exit(main())
