"""Planners of fleets: what they forecast, how they change pools, and that a changing load is worth it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from framework.codes import DECODE, MIXED, OFF, PREFILL
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo, judge
from framework.policy import Action, Policy, SetRole
from framework.policy.view import Cluster
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.affine import Affine
from framework.workload import Workload
from policies._scaling import forecast, largest_batch, resize
from policies.arrow import Arrow
from policies.distserve import DistServe
from policies.dopd import Dopd
from policies.dynamo import Dynamo
from policies.taichi import TaiChi
from servelab.testing.worlds import CLUSTERS, GPU, MODEL, SCENARIOS, TIMING
from tests.helpers.conformance import Conformance


def fleet(prefill: int, decode: int, spare: int = 0) -> ClusterSpec:
    pools = [PoolSpec("p", "prefill", prefill, GPU), PoolSpec("d", "decode", decode, GPU)]
    if spare:
        pools.append(PoolSpec("s", "off", spare, GPU))
    return ClusterSpec(tuple(pools), LinkSpec(2.0**30))


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], 0.0),
        ([7.0], 7.0),
        ([7.0, 9.0], 9.0),
        ([5.0, 5.0, 5.0], 5.0),
        ([1.0, 2.0, 3.0, 4.0], 5.0),  # a line goes on
        ([8.0, 4.0, 2.0, 1.0], 0.5),  # changes halve
        ([0.0, 1.0, 0.0, 1.0], 0.0),  # and turn round
        ([9.0, 5.0, 1.0], 0.0),  # never below 0
    ],
)
def test_forecast(history: list[float], expected: float) -> None:
    assert forecast(history) == pytest.approx(expected)


def test_the_largest_batch_keeps_the_pace() -> None:
    """A step of d decodes that read 100 tokens each lasts 2^-6 + d (2^-12 + 100 * 2^-19) s."""
    found = []

    class Asking(Policy):
        def route_prefill(self, request: Any, cluster: Cluster) -> int:
            found.append(largest_batch(cluster.decode, 0.03, 100.0, 64))
            found.append(largest_batch(cluster.decode, 0.03, 100.0, 8))
            found.append(largest_batch(cluster.decode, 1e-9, 100.0, 8))
            return 0

    workload = Workload(np.zeros(1), np.array([10]), np.array([1]))
    simulate(workload, CLUSTERS["one mixed"], MODEL, TIMING, SCENARIOS["roomy"].engine, Asking())
    assert found == [int((0.03 - 2.0**-6) / (2.0**-12 + 100 * 2.0**-19)), 8, 1]


@pytest.mark.parametrize(
    ("wanted", "stop", "roles"),
    [
        ((2, 2), False, [PREFILL, PREFILL, DECODE, DECODE, OFF]),
        ((3, 2), False, [PREFILL, PREFILL, DECODE, DECODE, PREFILL]),  # one that is off first
        ((4, 1), False, [PREFILL, PREFILL, PREFILL, DECODE, PREFILL]),
        ((1, 4), False, [MIXED, PREFILL, DECODE, DECODE, MIXED]),
        ((0, 2), True, [OFF, PREFILL, DECODE, DECODE, OFF]),  # one of each at least
        ((1, 1), True, [OFF, PREFILL, OFF, DECODE, OFF]),
        ((1, 1), False, [PREFILL, PREFILL, DECODE, DECODE, OFF]),
        ((9, 1), False, [PREFILL, PREFILL, PREFILL, DECODE, PREFILL]),  # as far as the fleet goes
    ],
)
def test_resize(wanted: tuple[int, int], stop: bool, roles: list[int]) -> None:
    seen: list[list[int]] = []

    class Resizing(DistServe):
        roles = ("prefill", "decode", "off")
        changes_roles = True
        tick_s = 0.5

        def on_tick(self, cluster: Cluster) -> Iterable[Action]:
            seen.append([*cluster.instances.role])
            return resize(cluster, *wanted, "mixed", stop=stop) if len(seen) == 1 else ()

    workload = Workload(np.array([0.25, 5.0]), np.array([10, 10]), np.array([2, 2]))
    check_result(simulate(workload, fleet(2, 2, 1), MODEL, TIMING, SCENARIOS["roomy"].engine, Resizing()))
    assert seen[-1] == roles


def test_an_unknown_planner_is_refused() -> None:
    with pytest.raises(InputError, match=r"policy.planner must be one of none, load, sla, both; got 'best'"):
        Dynamo(planner="best")


def test_an_option_that_the_planner_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"must be one of ttft_s, itl_s, window, predictor; got 'kv_high'"):
        Dynamo(planner="sla", planning={"kv_high": 0.8})


def test_requests_flow_between_the_kinds_and_back() -> None:
    """What leaves a decode-heavy instance for lack of memory returns when its TPOT is near the limit."""
    scenario, cluster = SCENARIOS["roomy"], CLUSTERS["disaggregated"]

    def migrations(**options: Any) -> int:
        policy = TaiChi(
            prefill_chunk=64, decode_chunk=32, short_tokens=100, ttft_s=2.0, tpot_s=0.05, period_s=0.0625, **options
        )
        result = simulate(scenario.workload, cluster, MODEL, TIMING, scenario.engine, policy)
        check_result(result)
        return int(result.requests["migrations"].sum())

    none, away = migrations(full=1.0, near=1e9), migrations(full=0.005, near=1e9)
    assert none == 0 < away < migrations(full=0.005, near=1e-3)


# --- the suite, with planners that are quick to act -------------------------------------------------------------------


class Quick(Conformance):
    """On fleets with spare instances too, where the policy takes them."""

    __test__ = False

    def usable_clusters(self) -> dict[str, ClusterSpec]:
        usable = super().usable_clusters()
        if "off" in self.new_policy().roles:
            usable["spare"] = fleet(1, 1, 2)
        return usable


class TestQuickArrow(Quick):
    __test__ = True
    policy_factory = lambda: Arrow(ttft_s=2e-3, tpot_s=0.02, period_s=2.0**-4, passes=1, cooldown_s=0.5, donor=2.0)  # noqa: E731


@pytest.mark.slow
class TestQuickDopd(Quick):
    __test__ = True
    policy_factory = lambda: Dopd(interval_s=0.5, local_tokens=40, tpot="observed", rounding="ceiling")  # noqa: E731


@pytest.mark.slow
class TestQuickLoadPlanner(Quick):
    __test__ = True
    policy_factory = lambda: Dynamo(planner="load", interval_s=0.25, local_tokens=40)  # noqa: E731


class TestQuickSlaPlanner(Quick):
    __test__ = True
    policy_factory = lambda: Dynamo(planner="sla", interval_s=0.5, local_tokens=40, overlap_weight=0.5)  # noqa: E731


@pytest.mark.slow
class TestQuickBoth(Quick):
    __test__ = True
    policy_factory = lambda: Dynamo(  # noqa: E731
        planner="both",
        prefill_queue="fleet",
        queue=8,
        local_tokens=40,
        planning={"throughput_interval_s": 0.5, "load_interval_s": 0.125, "ttft_s": 0.02, "itl_s": 0.02},
    )


QUICK = [TestQuickArrow, TestQuickDopd, TestQuickLoadPlanner, TestQuickSlaPlanner, TestQuickBoth]


@pytest.mark.parametrize("suite", QUICK)
def test_they_do_act(suite: type[Quick]) -> None:
    made = suite()
    policy = made.new_policy()
    acts, inner = [], policy.on_tick

    def watched(cluster: Cluster) -> list[Action]:
        acts.extend(found := list(inner(cluster)))
        return found

    vars(policy)["on_tick"] = watched
    made.play(SCENARIOS["roomy"], CLUSTERS["disaggregated"], policy)
    assert any(isinstance(act, SetRole) for act in acts)


# --- what it is good for ----------------------------------------------------------------------------------------------


def two_phases() -> Workload:
    """Two minutes of long prompts and short outputs, then two of the reverse."""
    random = np.random.default_rng(5)
    first, second = np.arange(0.0, 120.0, 0.13), np.arange(120.0, 240.0, 0.065)
    long, short = (random.integers(low, high, len(second) + len(first)) for low, high in ((1500, 2500), (20, 60)))
    early = np.arange(len(first) + len(second)) < len(first)
    outputs = np.where(early, short, random.integers(300, 400, len(early)))
    return Workload(np.concatenate([first, second]), np.where(early, long, short), outputs)


def test_a_changing_load_is_served_best_by_changing_roles() -> None:
    """No split of four instances suits both halves."""
    workload, slo = two_phases(), Slo(2.0, 0.05)
    engine = EngineConfig(max_batch=64, kv_tokens=65536)
    timing = Affine(0.008, 2e-4, 0.0, 1e-4, 0.0)

    def goodput(policy: Policy, cluster: ClusterSpec) -> float:
        result = simulate(workload, cluster, MODEL, timing, engine, policy)
        check_result(result)
        return float(judge(result, slo).good.sum()) / len(workload)

    static = [goodput(DistServe(), fleet(prefill, 4 - prefill)) for prefill in (1, 2, 3)]
    dynamic = goodput(Arrow(), fleet(2, 2))
    assert dynamic > 1.2 * max(static)
