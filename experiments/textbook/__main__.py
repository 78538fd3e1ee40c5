"""`python -m experiments.textbook`."""

from __future__ import annotations

import sys

from experiments.textbook.command import main

if __name__ == "__main__":
    sys.exit(main())
