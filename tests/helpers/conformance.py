"""The conformance suite of this repository's own policies, which the quick tests play in part.

Of the scenarios every third one is played, one twice and with longer outputs; each crash meets one
of them, and one storm of four is met. Slow tests play all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet

from servelab.testing import PolicyConformance
from servelab.testing.worlds import CRASHES, SCENARIOS, STORMS
from tests.helpers.quick import marks, one_in

_TWICE = frozenset({"sessions"})
_LONGER = frozenset({"sessions"})
_CRASHING = ("roomy", "scheduled ahead, KV pulled", "storm: swap", "storm: prefix cache")


def _in_turn(scenarios: Sequence[str]) -> list[ParameterSet]:
    """Each scenario with each kind of crashes; quick is each kind once, with another scenario each."""
    return [
        pytest.param(scenario, crashes, marks=marks(i == j))
        for i, scenario in enumerate(scenarios)
        for j, crashes in enumerate(CRASHES)
    ]


class Conformance(PolicyConformance):
    """To inherit from in place of the suite."""

    @pytest.mark.parametrize("scenario", [pytest.param(one, marks=marks(one in _TWICE)) for one in SCENARIOS])
    def test_the_same_run_twice_gives_the_same_bytes(self, scenario: str) -> None:
        super().test_the_same_run_twice_gives_the_same_bytes(scenario)

    @pytest.mark.parametrize(
        ("scenario", "change"),
        [
            pytest.param(one, change, marks=marks(change == "longer" and one in _LONGER))
            for one in SCENARIOS
            for change in ("longer", "any")
        ],
    )
    def test_true_lengths_stay_hidden(self, scenario: str, change: str) -> None:
        super().test_true_lengths_stay_hidden(scenario, change)

    @pytest.mark.slow  # decisions are recorded, and views compared, where lengths are hidden
    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_views_stay_as_they_are(self, scenario: str) -> None:
        super().test_views_stay_as_they_are(scenario)

    @pytest.mark.parametrize("scenario", one_in(3, SCENARIOS))
    def test_every_request_ends_once_on_instances_that_can_serve_it(self, scenario: str) -> None:
        super().test_every_request_ends_once_on_instances_that_can_serve_it(scenario)

    @pytest.mark.parametrize("name", one_in(4, STORMS))
    def test_a_storm_leaves_nobody_behind(self, name: str) -> None:
        super().test_a_storm_leaves_nobody_behind(name)

    @pytest.mark.parametrize(("scenario", "crashes"), _in_turn(_CRASHING))
    def test_crashes_of_instances_leave_nobody_behind(self, scenario: str, crashes: str) -> None:
        super().test_crashes_of_instances_leave_nobody_behind(scenario, crashes)

    @pytest.mark.slow  # policies keep no state of two runs; tests/engine/test_isolation.py plays runs in threads
    def test_runs_in_threads_are_as_alone(self) -> None:
        super().test_runs_in_threads_are_as_alone()

    @pytest.mark.parametrize(
        ("scenario", "crashes"),
        [
            pytest.param(scenario, crashes, marks=marks((scenario, crashes) == ("storm: swap", "one after the other")))
            for scenario in ("roomy", "storm: swap")
            for crashes in CRASHES
        ],
    )
    def test_no_view_shows_an_instance_that_is_down(self, scenario: str, crashes: str) -> None:
        super().test_no_view_shows_an_instance_that_is_down(scenario, crashes)
