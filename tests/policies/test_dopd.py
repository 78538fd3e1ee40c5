"""DOPD's ratio of prefill to decode instances, and fleets that keep it, each decision followed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from framework.policy import Action, SetRole
from framework.policy.view import Cluster, Request
from framework.timing.table import StepRow
from policies.dopd import Dopd
from tests.helpers.by_hand import Rows, fleet, play

# A prompt token takes 1/64 s, and a decode 1/8 s of a step. Within 1/2 s four decode at once: with 8 tokens of output
# a decode instance ends a request a second, and with prompts of 64 tokens a prefill instance starts one a second.
ROW = StepRow(base_s=0.0, per_prefill_token_s=1 / 64, per_sequence_s=1 / 8)
ROOM: dict[str, Any] = {"kv_tokens": 4000, "max_batch": 64, "token_budget": 1000}
LAST = (35.0, 64, 2)  # keeps a run going


class Noting(Dopd):
    """Notes what changes at a tick."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(interval_s=10.0, tpot_s=0.5, **{"local_tokens": 0, "queue": 1000, **settings})
        self.changes: list[tuple[float, int, str]] = []

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        actions = list(super().on_tick(cluster))
        for act in actions:
            assert isinstance(act, SetRole)
            self.changes.append((cluster.now_s, act.instance, act.role))
        return actions


def changes(rows: Rows, settings: dict[str, Any], **roles: int) -> list[tuple[float, int, str]]:
    policy = Noting(**settings)
    play(policy, [*rows, LAST], fleet(**roles), row=ROW, **ROOM)
    return policy.changes


def every(period_s: float, count: int, prompt: int, output: int) -> Rows:
    return [(k * period_s, prompt, output) for k in range(count)]


def test_a_fleet_of_given_size_is_split_in_the_ratio() -> None:
    """P : D = 1 for 64 and 8 tokens. Instances that nothing else needs stay on."""
    assert changes(every(1.0, 10, 64, 8), {}, prefill=3, decode=1) == [(10.0, 0, "mixed")]


@pytest.mark.parametrize(("rounding", "expected"), [("nearest", [(10.0, 0, "mixed")]), ("ceiling", [])])
def test_the_ratio_is_rounded(rounding: str, expected: list[tuple[float, int, str]]) -> None:
    """P : D = 0.41 for 26 and 8 tokens: 1.16 of four. Three decode instances need the ceiling of 1.2."""
    assert changes(every(1.0, 10, 26, 8), {"rounding": rounding}, prefill=2, decode=2) == expected


def test_a_fleet_with_instances_that_are_off_follows_the_load() -> None:
    """Two requests a second fill two decode instances, which need two prefill instances; then nothing comes."""
    found = changes(every(0.5, 20, 64, 8), {}, prefill=1, decode=1, off=4)
    assert found == [(10.0, 2, "prefill"), (10.0, 3, "mixed"), (20.0, 0, "off"), (20.0, 3, "off")]
    assert changes(every(0.5, 20, 64, 8), {}, prefill=1, decode=1) == []


def test_a_fleet_that_grows_has_the_ceiling_of_the_ratio_and_no_more_than_there_is() -> None:
    """1.5 requests a second fill two decode instances. Of P : D = 1.25, for 80 tokens, two need three.

    Of five instances there are two and three; of four, one decode instance and the others.
    """
    rows = every(2 / 3, 15, 80, 8)
    grown = changes(rows, {}, prefill=1, decode=1, off=3)[:3]
    assert grown == [(10.0, 2, "prefill"), (10.0, 3, "prefill"), (10.0, 4, "mixed")]
    assert changes(rows, {}, prefill=1, decode=1, off=2)[:2] == [(10.0, 2, "prefill"), (10.0, 3, "prefill")]


@pytest.mark.parametrize(("tpot", "mixed"), [("estimated", 1), ("observed", 2)])
def test_tpot_is_corrected_by_what_was_observed(tpot: str, mixed: int) -> None:
    """Two requests meet on one instance, which prefills the second while the first decodes.

    TPOT is 2.75 / 8 and 1.75 / 8 s, on average 9/32 s; one at a time would have 1/8 s. So a batch of one keeps the
    limit, and P : D = 0.40 for 9 tokens: 1.13 of four instances. Without the observation it is 0.89: 1.88 of four.
    """
    found = changes([(0.0, 64, 9), (1.1, 64, 9)], {"tpot": tpot, "local_tokens": 100}, prefill=3, decode=1)
    assert [(at_s, role) for at_s, _, role in found] == [(10.0, "mixed")] * mixed


@pytest.mark.parametrize(("correction", "expected"), [(1.0, (1.25, 1.0)), (2.0, (0.25, 5.0))])
def test_a_batch_keeps_the_corrected_limit(correction: float, expected: tuple[float, float]) -> None:
    """A step takes 1/4 s and 1/16 s a decode: four keep 1/2 s. If it takes twice as long, one alone takes 0.625 s.

    A prompt of 60 tokens takes 1.25 s, and 8 tokens of output 4 s, of which a request has a quarter, or 5 s.
    """
    found = []

    class Asking(Dopd):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            self.correction = correction
            found.append(self._ratio(cluster, 60.0, 8.0))
            return super().route_prefill(request, cluster)

    row = StepRow(base_s=1 / 4, per_prefill_token_s=1 / 60, per_sequence_s=1 / 16)
    play(Asking(tpot_s=0.5), [(0.0, 60, 2)], fleet(prefill=1, decode=1), row=row, **ROOM)
    assert found == [pytest.approx(expected)]
