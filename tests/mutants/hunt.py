"""Random runs of both engines until they differ: `python -m tests.mutants.hunt FILE`, in a copy that has a bug.

FILE holds pickled scenarios. Prints one line: how many agreed before one did not, or `survived`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.test_exact import compare
from tests.helpers.pressed import moving, pressed, staged
from tests.helpers.scenarios import Scenario, crowded, scenarios, severed, shared, sharing

SURVIVED = "survived"
_FAMILIES: tuple[Callable[[], st.SearchStrategy[Scenario]], ...] = (
    *(scenarios, crowded, severed, shared, sharing),
    *(pressed, staged, moving),
)


def drawn(examples: int) -> list[Scenario]:
    """So many scenarios of each family, one of each in turn; the same every time."""
    families = [_of(family(), examples) for family in _FAMILIES]
    return [scenario for one_of_each in zip(*families, strict=False) for scenario in one_of_each]


def _of(family: st.SearchStrategy[Scenario], examples: int) -> list[Scenario]:
    found: list[Scenario] = []

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(family)
    def draw(scenario: Scenario) -> None:
        found.append(scenario)

    draw()
    return found


def hunt(scenarios: list[Scenario]) -> str:
    """When the engines differ, and in what."""
    for number, scenario in enumerate(scenarios):
        try:
            compare(scenario, 0.0)
        except Exception as difference:
            lines = str(difference).strip().splitlines()
            return f"{number}: {type(difference).__name__}: {' '.join(lines[:2])}"[:160]
    return SURVIVED


if __name__ == "__main__":
    print(hunt(pickle.loads(Path(sys.argv[1]).read_bytes())))
