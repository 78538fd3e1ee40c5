"""What a front end sees of instances that report to it, worked out by hand in both engines: a step lasts 1 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy import Policy
from framework.policy.reports import Views
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.faults import Crash, FaultSchedule
from framework.workload import Workload
from tests.engine.test_decisions import ENGINES, GPU, TIMING
from tests.helpers.scenarios import MODEL

TIMES_S = (0.25, 0.75, 2.25, 2.5, 3.0, 4.25, 4.5, 6.5)


class Least(Policy):
    """Goes where the fewest requests are, and notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int]]] = []

    def loads(self, cluster: Cluster) -> Any:
        there = cluster.instances
        return there.queued + there.prefilling + there.running

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        loads = self.loads(cluster)
        self.seen.append((cluster.now_s, loads.tolist()))
        return cluster.instances.argmin(loads)


def play(engine: str, views: Views, policy: Policy, roles: str = "mixed mixed", **other: Any) -> Result:
    """Prompts of 2 tokens, and outputs that last, on two instances."""
    count = len(TIMES_S)
    config = EngineConfig(
        **{
            "block_tokens": 1,
            "watermark": 0.0,
            "kv_tokens": 400,
            "token_budget": 10,
            "implementation": engine,
            **other,
        },
        views=views,
    )
    pools = tuple(PoolSpec(f"{role} {k}", role, 1, GPU) for k, role in enumerate(roles.split()))  # type: ignore[arg-type]
    result = simulate(
        Workload(np.array(TIMES_S), np.full(count, 2), np.full(count, 20)),
        ClusterSpec(pools, LinkSpec(32.0)),
        MODEL,
        TIMING,
        config,
        policy,
    )
    check_result(result)
    return result


@ENGINES
def test_answers_rest_on_the_last_report_that_has_arrived(engine: str) -> None:
    """Reports are taken at 2, 4 and 6 s: 2 requests on instance 0; then 3 and 2; then 3 and 4. Each comes 0.5 s later.

    Steps of instance 0 end at 1.25, 2.25, ... s, those of instance 1 at 3.5, 4.5, ... s.
    """
    policy = Least()
    result = play(engine, Views(every_s=2.0, delay_s=0.5), policy)
    loads = [[0, 0], [0, 0], [0, 0], [2, 0], [2, 0], [2, 0], [3, 2], [3, 4]]
    assert policy.seen == list(zip(TIMES_S, loads, strict=True))
    assert result.requests["prefill_instance"].tolist() == [0, 0, 0, 1, 1, 1, 1, 0]


@ENGINES
def test_compiled_rules_see_the_same_reports(engine: str) -> None:
    """The default rule goes by the tokens that wait: 2 and 0 at 2 s, 0 and 2 at 4 s, 2 and 0 at 6 s."""
    result = play(engine, Views(every_s=2.0, delay_s=0.5), Policy())
    assert result.requests["prefill_instance"].tolist() == [0, 0, 0, 1, 1, 1, 0, 1]


@ENGINES
def test_a_report_without_a_period_follows_the_one_before(engine: str) -> None:
    """One is taken at 2 s and seen from 4 s on, the next is taken at 4 s and seen from 6 s on."""
    policy = Least()
    play(engine, Views(delay_s=2.0), policy)
    loads = [[0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [2, 0], [2, 0], [5, 0]]
    assert policy.seen == list(zip(TIMES_S, loads, strict=True))


class Scraping(Least):
    """Also notes what it sees at ticks."""

    tick_s = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.scraped: list[list[int]] = []

    def on_tick(self, cluster: Cluster) -> tuple[()]:
        self.scraped.append(self.loads(cluster).tolist())
        return ()


@ENGINES
def test_ticks_alone_may_go_by_reports(engine: str) -> None:
    """A router sees both instances as they are. Reports of 2, 4 and 6 s come in time for ticks at 3, 5 and 7 s."""
    policy = Scraping()
    play(engine, Views(2.0, 0.5, hooks="on_tick"), policy)
    assert [loads for _, loads in policy.seen] == [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3], [4, 3]]
    assert policy.scraped[:8] == [[0, 0], [0, 0], [1, 1], [1, 1], [3, 2], [3, 2], [4, 3], [4, 3]]


@ENGINES
def test_compiled_rules_see_the_present_where_ticks_go_by_reports(engine: str) -> None:
    current, scraped = (play(engine, views, Policy()) for views in (Views(), Views(100.0, hooks="on_tick")))
    assert scraped.requests["prefill_instance"].tolist() == current.requests["prefill_instance"].tolist()


class Placing(Least):
    """Notes what it sees when a prefill has ended."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 0

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        self.seen.append((cluster.now_s, cluster.instances.prefilling.tolist()))
        return 1


@ENGINES
def test_a_report_is_taken_after_the_steps_that_end_with_it(engine: str) -> None:
    """The prompts are computed from 0.25 s on, one step after the other; what ends at 1.25 s was reported at 1 s, and
    what ends at 2.25 s, when a report is taken, at 1.125 s.
    """
    policy = Placing()
    play(engine, Views(every_s=1.125), policy, "prefill decode")
    assert policy.seen[:3] == [(1.25, [1, 0]), (2.25, [1, 0]), (3.25, [0, 0])]


class Deciding(Least):
    """Also notes what it sees before instances schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.decided: list[tuple[float, list[int], list[int]]] = []

    def decide(self, instance: int, cluster: Cluster) -> tuple[()]:
        self.decided.append((cluster.now_s, self.loads(cluster).tolist(), cluster.queued(instance).tolist()))
        return ()


@ENGINES
def test_an_instance_decides_by_what_is_there(engine: str) -> None:
    policy = Deciding()
    play(engine, Views(every_s=100.0), policy)
    assert {tuple(loads) for _, loads in policy.seen} == {(0, 0)}
    assert policy.decided[:3] == [(0.25, [1, 0], [0]), (1.25, [2, 0], [1]), (2.25, [3, 0], [2])]


class Watching(Least):
    """Notes which instances take prompts."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        self.seen.append((cluster.now_s, cluster.prefill.ids.tolist()))
        return int(cluster.prefill.ids[0])


@ENGINES
def test_an_instance_that_is_down_is_left_out_at_once(engine: str) -> None:
    policy = Watching()
    play(engine, Views(every_s=100.0), policy, faults=FaultSchedule(crashes=(Crash(1.0, 0, 1.75),)))
    assert policy.seen[:3] == [(0.25, [0, 1]), (0.75, [0, 1]), (1.0, [1])]
    assert policy.seen[-4:] == [(3.0, [0, 1]), (4.25, [0, 1]), (4.5, [0, 1]), (6.5, [0, 1])]


class Curious(Least):
    """Asks who waits."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return len(cluster.queued(0))


@ENGINES
def test_no_report_holds_the_requests_of_an_instance(engine: str) -> None:
    with pytest.raises(ValueError, match=r"no report holds the requests that wait on an instance: with engine\.views"):
        play(engine, Views(every_s=1.0), Curious())


def test_reports_are_not_too_many() -> None:
    with pytest.raises(InputError, match=r"engine\.views\.delay_s=2 is more than 1000 times engine\.views\.every_s="):
        Views(every_s=0.001, delay_s=2.0)
