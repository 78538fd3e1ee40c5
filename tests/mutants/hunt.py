"""Random runs of both engines until they differ: `python -m tests.mutants.hunt FILE MOST [RUN]`, in a copy with a bug.

FILE holds runs and what the reference engine makes of each, as `save_runs` writes them; the first MOST are tried;
RUN names the one to begin with, as "clocked 7". Prints one line: how many agreed before one did not, or `survived`.
"""

from __future__ import annotations

import itertools
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.agreement import disagreement, drawn
from tests.helpers.differences import expected
from tests.helpers.families import FAMILIES
from tests.helpers.scenarios import Scenario

SURVIVED = "survived"
_LONGEST_S = 30.0  # of processor time in one run; others take less than a second or two


def save_runs(file: Path, examples: int) -> None:
    """Write so many runs of each family, one of each in turn: those that the quick tests begin with."""
    with file.open("wb") as handle:
        for seed, family in itertools.product(range(examples), FAMILIES):
            scenario = drawn(family, seed)
            pickle.dump((f"{family} {seed}", scenario, expected(scenario)), handle)


def hunt(file: Path, most: int, first: str = "") -> str:
    """When the engines differ, and in what."""
    signal.signal(signal.SIGVTALRM, _never_ends)
    for number, (name, scenario, reference) in enumerate(
        itertools.chain(_named(file, first), itertools.islice(_saved(file), most))
    ):
        signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_S)
        found = disagreement(scenario, 0.0, reference)
        if found:
            return f"{number} ({name}): {' '.join(found.split())}"[:160]
    return SURVIVED


def _never_ends(signal_number: int, frame: object) -> None:
    raise TimeoutError(f"no end within {_LONGEST_S} CPU-s")


def _named(file: Path, name: str) -> Iterator[tuple[str, Scenario, dict[str, Any]]]:
    """The run of that name, as it was saved or else drawn now; none without a name."""
    if not name:
        return
    saved = next((one for one in _saved(file) if one[0] == name), None)
    if saved is None:
        family, seed = name.split()
        scenario = drawn(family, int(seed))
        saved = (name, scenario, expected(scenario))
    yield saved


def _saved(file: Path) -> Iterator[tuple[str, Scenario, dict[str, Any]]]:
    """The runs of `save_runs`."""
    with file.open("rb") as handle:
        while True:
            try:
                yield pickle.load(handle)
            except EOFError:
                return


if __name__ == "__main__":
    print(hunt(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
