"""`python -m tests.hostile --cases 4000 --seed 0`: drawn commands that nobody should give, and what came of them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tests.hostile.drawn import commands
from tests.hostile.played import load, wrong_with


def main() -> int:
    """Play them, print what is wrong; the exit code."""
    parser = argparse.ArgumentParser("python -m tests.hostile", description=__doc__)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="so many of the first are not played")
    parser.add_argument("--kind", help="these alone, such as policies")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    options = parser.parse_args()
    drawn = commands(options.cases, options.seed)
    load()
    began, wrong, played = time.monotonic(), Counter[str](), Counter[str]()
    for number, command in enumerate(drawn[options.skip :], options.skip):
        if time.monotonic() - began > options.seconds:
            break
        if options.kind not in (None, command.kind):
            continue
        played[command.kind] += 1
        said = wrong_with(command)
        if said is not None:
            wrong[command.kind] += 1
            print(f"{number} {command}\n    {said}", flush=True)
    for kind, count in sorted(played.items()):
        print(f"{kind:12} {count:5} played, {wrong[kind]:4} wrong")
    used = time.process_time() + sum(os.times()[2:4])
    print(f"{'all':12} {played.total():5} played, {wrong.total():4} wrong, {used:.0f} s of processor time")
    return min(wrong.total(), 1)


if __name__ == "__main__":
    sys.exit(main())
