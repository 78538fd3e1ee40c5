"""What happened in random runs, kept between tests: the reference engine runs each of them only once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from framework.reference.simulation import Simulation
from tests.helpers.differences import run_reference
from tests.helpers.rulers import Note
from tests.helpers.scenarios import Scenario
from tests.reach import counted, counts_of, seeds_of

RUNS = 50
_WANTED = frozenset(seeds_of(RUNS))
COUNTED = Counter(family for family, _ in _WANTED)  # runs of each family


class KeptCounts:
    """How often each thing happened in each of `RUNS` runs, as files of a folder that processes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reference(self, family: str, seed: int) -> Callable[[Scenario], tuple[Simulation, list[Note]]]:
        """What runs the reference engine, and keeps what happens if this is one of those runs."""
        if (family, seed) not in _WANTED:
            return run_reference

        def run(scenario: Scenario) -> tuple[Simulation, list[Note]]:
            counts: Counter[str] = Counter()
            ran = counted(scenario, counts)
            self._folder.mkdir(exist_ok=True)
            self._file(family, seed).write_text(json.dumps(counts))
            return ran

        return run

    def counts_of(self, family: str, seed: int) -> Counter[str]:
        """What happened in that run, which is made now if nobody has."""
        file = self._file(family, seed)
        try:
            return Counter(json.loads(file.read_text()))
        except (FileNotFoundError, json.JSONDecodeError):  # another process may be writing it
            return counts_of(family, seed)

    def _file(self, family: str, seed: int) -> Path:
        return self._folder / f"{family}-{seed}.json"
