"""Random runs of both engines until they differ: `python -m tests.mutants.hunt FILE`, in a copy that has a bug.

FILE holds runs and what the plain engine makes of each, as `save_runs` writes them. Prints one line: how many agreed
before one did not, or `survived`.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from pathlib import Path

from tests.helpers.agreement import disagreement, drawn
from tests.helpers.differences import expected
from tests.helpers.families import FAMILIES

SURVIVED = "survived"


def save_runs(file: Path, examples: int) -> None:
    """Write so many runs of each family, one of each in turn: those that the quick tests begin with."""
    with file.open("wb") as handle:
        for seed, family in itertools.product(range(examples), FAMILIES):
            scenario = drawn(family, seed)
            pickle.dump((f"{family} {seed}", scenario, expected(scenario)), handle)


def hunt(file: Path) -> str:
    """When the engines differ, and in what."""
    with file.open("rb") as handle:
        for number in itertools.count():
            try:
                name, scenario, reference = pickle.load(handle)
            except EOFError:
                return SURVIVED
            found = disagreement(scenario, 0.0, reference)
            if found:
                return f"{number} ({name}): {' '.join(found.split())}"[:160]
    raise AssertionError("a file ends")


if __name__ == "__main__":
    print(hunt(Path(sys.argv[1])))
