"""Do the tests see bugs? `python -m tests.mutants [--of engine|numbers] ...`; `--help` after `--of` tells the rest."""

from __future__ import annotations

import argparse
import sys

from tests.mutants import engine_hunt, numbers

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__, add_help=False)
    parser.add_argument("--of", choices=("engine", "numbers"), default="engine")
    chosen, left = parser.parse_known_args()
    sys.exit((numbers if chosen.of == "numbers" else engine_hunt).main(left))
