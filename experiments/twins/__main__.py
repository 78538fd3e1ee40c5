"""`python -m experiments.twins`."""

from __future__ import annotations

import sys

from experiments.twins.command import main

if __name__ == "__main__":
    sys.exit(main())
