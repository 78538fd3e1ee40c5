"""Ticks of a run in which nothing happens for long are skipped, by both engines alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from framework.errors import InputError
from framework.policy import Action, SetTokenBudget
from framework.policy.base import Policy
from framework.policy.hooks import MOST_QUIET_TICKS
from framework.policy.view import Cluster, Request
from framework.reference.loop import first_tick
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSharing
from framework.workload import Workload
from servelab.testing.worlds import CLUSTERS, MODEL, ROOMY, TIMING

ENGINES = ("compiled", "reference")


class Ticking(Policy):
    """Notes when it is asked; its ticks change the budgets in turn, which wakes instances."""

    name = "ticking"

    def __init__(self, tick_s: float = 0.25, acts: bool = False) -> None:
        self.tick_s, self.acts = tick_s, acts
        self.seen_s: list[float] = []

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return request.id % 2

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        self.seen_s.append(cluster.now_s)
        if not self.acts:
            return ()
        return [SetTokenBudget(0, 256 + len(self.seen_s) % 2)]


def requests(*arrival_s: float) -> Workload:
    count = len(arrival_s)
    return Workload(np.array(arrival_s), np.full(count, 100), np.full(count, 20), name="gaps")


def played(
    engine: str, workload: Workload, policy: Ticking, cluster: ClusterSpec = CLUSTERS["mixed"]
) -> dict[str, list[float]]:
    """What became of the requests."""
    config = replace(ROOMY, implementation=engine)  # type: ignore[arg-type]
    rows = simulate(workload, cluster, MODEL, TIMING, config, policy).requests
    return {
        name: rows[name].tolist() for name in ("arrival_s", "start_s", "first_token_s", "end_s", "prefill_instance")
    }


@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize(
    "gaps", [(0.0, 1.7e9), (0.0, 1e6, 1e6 + 300.1, 3e6), (5.0, 700.0, 701.0, 1e5 + 0.25, 2e5 + 0.1), (1e8, 1e8, 2e8)]
)
def test_both_engines_skip_the_same_ticks(gaps: tuple[float, ...], acts: bool) -> None:
    seen, results = [], []
    for engine in ENGINES:
        policy = Ticking(acts=acts)
        results.append(played(engine, requests(*gaps), policy))
        seen.append(policy.seen_s)
    assert seen[0] == seen[1]
    assert results[0] == results[1]
    assert len(seen[0]) < (MOST_QUIET_TICKS + 200) * len(gaps)


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_both_engines_skip_ticks_before_the_end_of_a_copy(sharing: LinkSharing) -> None:
    cluster = CLUSTERS["disaggregated"]
    slow = replace(cluster, link=replace(cluster.link, bandwidth_bytes_s=10.0, sharing=sharing))
    seen, results = [], []
    for engine in ENGINES:
        policy = Ticking()
        workload = requests(0.0, 0.1, 2e4)
        results.append(played(engine, workload, policy, slow))
        seen.append(policy.seen_s)
    assert seen[0] == seen[1]
    assert results[0] == results[1]
    assert max(results[0]["end_s"]) > 3e4
    assert np.diff(seen[0]).max() > 1e3


def test_a_tick_that_is_not_skipped_is_where_it_would_have_been() -> None:
    policy = Ticking()
    played("compiled", requests(0.0, 5e5 + 0.1, 5e5 + 40.0), policy)
    ticks = np.array(policy.seen_s) / 0.25
    assert np.array_equal(ticks, np.round(ticks))
    gap = int(np.argmax(np.diff(policy.seen_s)))
    assert policy.seen_s[gap + 1] == 5e5 + 0.25
    assert gap + 1 >= MOST_QUIET_TICKS


def test_shorter_pauses_are_ticked_through() -> None:
    policy = Ticking()
    played("compiled", requests(0.0, 0.2 * MOST_QUIET_TICKS), policy)
    assert np.diff(policy.seen_s).max() == 0.25


@pytest.mark.parametrize(
    ("time_s", "tick_s"), [(0.1, 0.1), (0.3, 0.1), (1e9, 0.1), (1e-9, 1.0), (7.0, 0.7), (1e9, 1e-5)]
)
def test_the_first_tick_is_the_first(time_s: float, tick_s: float) -> None:
    number = first_tick(time_s, tick_s)
    assert number * tick_s >= time_s
    assert number == 1 or (number - 1) * tick_s < time_s


@pytest.mark.parametrize("tick_s", [0.0, -1.0, 1e-9, 1e-320, float("nan"), float("inf"), 1e12])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_period_that_no_run_ends_with_is_refused(engine: str, tick_s: float) -> None:
    with pytest.raises(InputError, match="tick_s"):
        played(engine, requests(0.0), Ticking(tick_s))
