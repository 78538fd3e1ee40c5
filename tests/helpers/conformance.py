"""The conformance suite of this repository's own policies, which the quick tests play in part.

Each scenario is played with one kind of other lengths; slow tests play it with both.
"""

from __future__ import annotations

import pytest

from servelab.testing import PolicyConformance
from servelab.testing.worlds import SCENARIOS

_LONGER = frozenset({"small budgets", "tight, recompute", "prefix stores", "sessions"})  # as "longer", others as "any"


def _cases() -> list[object]:
    every = [(scenario, change) for scenario in SCENARIOS for change in ("longer", "any")]
    return [
        pytest.param(*case, marks=() if (case[0] in _LONGER) == (case[1] == "longer") else pytest.mark.slow)
        for case in every
    ]


class Conformance(PolicyConformance):
    """To inherit from in place of the suite."""

    @pytest.mark.parametrize(("scenario", "change"), _cases())
    def test_true_lengths_stay_hidden(self, scenario: str, change: str) -> None:
        super().test_true_lengths_stay_hidden(scenario, change)
