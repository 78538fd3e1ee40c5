"""The conformance suite of this repository's own policies, which the quick tests play in part.

Each scenario is played with one kind of other lengths, and every second one twice; slow tests play all of it.
"""

from __future__ import annotations

import pytest

from servelab.testing import PolicyConformance
from servelab.testing.worlds import SCENARIOS

_TWICE = frozenset({"small budgets", "tight, recompute", "prefix stores", "sessions"})  # and with longer lengths


def _marks(is_quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if is_quick else (pytest.mark.slow,)


class Conformance(PolicyConformance):
    """To inherit from in place of the suite."""

    @pytest.mark.parametrize("scenario", [pytest.param(one, marks=_marks(one in _TWICE)) for one in SCENARIOS])
    def test_the_same_run_twice_gives_the_same_bytes(self, scenario: str) -> None:
        super().test_the_same_run_twice_gives_the_same_bytes(scenario)

    @pytest.mark.parametrize(
        ("scenario", "change"),
        [
            pytest.param(one, change, marks=_marks((one in _TWICE) == (change == "longer")))
            for one in SCENARIOS
            for change in ("longer", "any")
        ],
    )
    def test_true_lengths_stay_hidden(self, scenario: str, change: str) -> None:
        super().test_true_lengths_stay_hidden(scenario, change)
