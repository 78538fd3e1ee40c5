"""`python -m experiments.ablation`."""

from __future__ import annotations

import sys

from experiments.ablation.command import main

if __name__ == "__main__":
    sys.exit(main())
