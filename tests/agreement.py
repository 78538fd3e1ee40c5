"""Many random runs in both engines: `python -m tests.agreement [--runs N] [--first SEED] [--family NAME] [--jobs N]`.

Compares N runs of each family, from one seed on, to the bit. Prints a line for each family, and for each run on which
the engines disagree; the exit code is 1 if there is one. What was found becomes a test in tests/engine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.helpers.agreement import disagreement, drawn
from tests.helpers.families import FAMILIES

_AT_ONCE = 100  # runs of one task


def failures(family: str, first: int, count: int) -> list[str]:
    """What was found of so many seeds from `first` on."""
    found = ((seed, disagreement(drawn(family, seed), 0.0)) for seed in range(first, first + count))
    return [f"{family} {seed}: {difference}" for seed, difference in found if difference]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.agreement", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="runs of each family (default 1000)")
    parser.add_argument("--first", type=int, default=100_000, metavar="SEED", help="first seed (default 100000)")
    parser.add_argument("--family", choices=list(FAMILIES), help="one family (default all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (default: one for each core)")
    chosen = parser.parse_args(arguments)
    disagreeing = 0
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        for family in [chosen.family] if chosen.family else FAMILIES:
            start_s, end = time.monotonic(), chosen.first + chosen.runs
            firsts = range(chosen.first, end, _AT_ONCE)
            counts = [min(_AT_ONCE, end - first) for first in firsts]
            found = [line for lines in pool.map(failures, [family] * len(counts), firsts, counts) for line in lines]
            disagreeing += len(found)
            print(*found, sep="\n", end="\n" if found else "")
            took_s = time.monotonic() - start_s
            print(f"{family}: {chosen.runs - len(found):,} of {chosen.runs:,} agree ({took_s:.0f} s)", flush=True)
    return 1 if disagreeing else 0


if __name__ == "__main__":
    sys.exit(main())
