"""Fleets that grow and shrink, followed by hand: an iteration lasts a second, a KV block is one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.codes import MIXED, OFF
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, PolicyError
from framework.metrics.clock import clock_of
from framework.metrics.slo import Slo
from framework.metrics.usage import fleet as fleet_figures
from framework.policy import Action, Policy, Scale, SetRole
from framework.policy.view import Cluster
from framework.system.cluster import ClusterSpec, PoolSpec, mixed
from framework.system.faults import Crash, FaultSchedule
from framework.system.model import gpu_weight_bytes
from framework.system.parallelism import Parallelism
from framework.system.start_cost import StartCost
from tests.helpers.by_hand import GPU, fleet, play
from tests.helpers.scenarios import MODEL

START_2_S = StartCost(provisioning_s=2.0)


class Script(Policy):
    """Does what it is told at each tick, twice a second; keeps the roles that it sees then."""

    roles = ("mixed", "prefill", "decode", "off")
    changes_roles = True
    tick_s = 0.5

    def __init__(self, script: dict[float, Sequence[Action]]) -> None:
        self.script = script
        self.seen: dict[float, list[int]] = {}

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        self.seen[cluster.now_s] = cluster.instances.role.tolist()
        return self.script.get(cluster.now_s, ())


def partly_on(count: int, on: int) -> ClusterSpec:
    spec = fleet(mixed=count)
    return replace(spec, pools=(replace(spec.pools[0], on_at_start=on),))


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_start_takes_work_once_its_time_is_over(engine: Any) -> None:
    """Ordered at 1, ready at 3: the request that comes at 2.5 waits for the first instance, the one of 3.5 does not.

    Off until 1 of the 14 seconds, the second instance costs 13.
    """
    policy = Script({1.0: [Scale("mixed", 2)]})
    rows = [(0.0, 1, 12), (2.5, 1, 2), (3.5, 1, 2)]
    result = play(policy, rows, partly_on(2, 1), max_batch=1, start=START_2_S, implementation=engine)
    assert result.requests["prefill_instance"].tolist() == [0, 0, 1]
    assert result.requests["end_s"].tolist() == [12.0, 14.0, 5.5]
    assert (policy.seen[2.5], policy.seen[3.0], policy.seen[3.5]) == ([MIXED, OFF], [MIXED, MIXED], [MIXED, MIXED])
    assert result.instances["off_s"].tolist() == [0.0, 1.0]
    figures = fleet_figures(result, clock_of(result, Slo()))
    assert (figures["starts"], figures["stops"], figures["mean_instances_on"]) == (1, 0, 27 / 14)
    assert figures["fleet"][0]["gpu_hours"] == pytest.approx(27 / 3600)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_pools_have_their_own_prices_and_times_to_provision(engine: Any) -> None:
    """Ordered at 1, `near` is ready at 1.5, `far` at 3; each is on for 9 of the 10 seconds, at 2 and 3 USD an hour."""
    near = PoolSpec("near", "mixed", 1, replace(GPU, usd_per_hour=2.0), on_at_start=0, provisioning_s=0.5)
    far = replace(near, name="far", gpu=replace(GPU, usd_per_hour=3.0), provisioning_s=None)
    spec = fleet(mixed=1)
    policy = Script({1.0: [Scale("near", 1), Scale("far", 1)]})
    result = play(
        policy, [(0, 1, 10)], replace(spec, pools=(*spec.pools, near, far)), start=START_2_S, implementation=engine
    )
    assert [policy.seen[at_s] for at_s in (1.0, 1.5, 2.5, 3.0)] == [
        [MIXED, OFF, OFF],
        [MIXED, MIXED, OFF],
        [MIXED, MIXED, OFF],
        [MIXED, MIXED, MIXED],
    ]
    rows = fleet_figures(result, clock_of(result, Slo()))["fleet"]
    assert [row["cost_usd"] * 3600 for row in rows[1:]] == pytest.approx([2 * 9, 3 * 9])


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_source_serves_one_start_after_the_other(engine: Any) -> None:
    """Ordered at 1, all read from 1.5 on: for 2 s each, one after the other, and warm up for 0.5 s."""
    start = replace(START_2_S, provisioning_s=0.5, warm_up_s=0.5)
    start = replace(start, load_bytes_s=None, source_bytes_s=gpu_weight_bytes(MODEL, Parallelism()) / 2.0)
    policy = Script({1.0: [Scale("mixed", 3)], 6.0: [Scale("mixed", 4)]})
    result = play(policy, [(0, 1, 12)], partly_on(4, 1), start=start, implementation=engine)
    on = [sum(role == MIXED for role in policy.seen[time_s]) for time_s in (3.5, 4.0, 5.5, 6.0, 8.5, 9.0)]
    assert on == [1, 2, 2, 3, 3, 4]
    assert result.instances["off_s"].tolist() == [0, 1, 1, 6]


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_starts_vary_and_fail_by_the_seed(engine: Any) -> None:
    """Three starts of 2 s each, of which some are tried again; they come as the draws say."""
    start = StartCost(provisioning_s=2.0, spread_s=0.25, fails=0.4)
    longer_s, tries = start.draws(0)[:3].T
    assert tries.max() > 1
    policy = Script({1.0: [Scale("mixed", 2)], 1.5: [Scale("mixed", 3)], 2.0: [Scale("mixed", 4)]})
    play(policy, [(0, 1, 12)], partly_on(4, 1), start=start, implementation=engine)
    due_s = np.array([1.0, 1.5, 2.0]) + (2.0 + longer_s) * tries
    seen = [min(at_s for at_s, roles in policy.seen.items() if roles[i] == MIXED) for i in (1, 2, 3)]
    assert seen == (np.ceil(2 * due_s) / 2).tolist()


def test_draws_of_starts_have_the_spread_and_the_failures_asked_for() -> None:
    drawn = StartCost(provisioning_s=2.0, spread_s=30.0, fails=0.25).draws(3)
    assert drawn[:, 0].std() == pytest.approx(30.0, rel=0.1)
    assert drawn[:, 1].mean() == pytest.approx(4 / 3, rel=0.05)
    assert StartCost(provisioning_s=2.0).draws(3).shape == (0, 2)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_reversals_are_turns_of_the_number_of_instances(engine: Any) -> None:
    """The fleet grows twice, shrinks twice, which is one turn, and grows again, another one."""
    sizes = {1.0: 2, 1.5: 3, 2.0: 2, 2.5: 1, 3.0: 2}
    policy = Script({time_s: [Scale("mixed", count)] for time_s, count in sizes.items()})
    result = play(policy, [(0, 1, 6)], partly_on(3, 1), implementation=engine)
    figures = fleet_figures(result, clock_of(result, Slo()))
    assert (figures["starts"], figures["stops"], figures["reversals"]) == (3, 2, 2)


def test_the_one_with_the_fewest_requests_drains_and_goes() -> None:
    """Requests 0 to 2 decode on instances 0, 1, 2, request 3 on 0. At 1.5 instance 2 is the last with one request: it
    gets no new one, and is off when that has ended, at 4.
    """
    policy = Script({1.5: [Scale("mixed", 2)]})
    result = play(policy, [(0, 1, 9), (0, 1, 9), (0, 1, 4), (0, 1, 9), (2, 1, 2), (2, 1, 2)], fleet(mixed=3))
    assert result.requests["prefill_instance"].tolist() == [0, 1, 2, 0, 1, 0]
    assert (policy.seen[1.5], policy.seen[2.0]) == ([MIXED] * 3, [MIXED, MIXED, OFF])
    assert result.requests["end_s"][2] == 4
    assert result.instances["off_s"].tolist() == [0, 0, 5]
    assert result.instances["stops"].tolist() == [0, 0, 1]


def test_one_that_drains_comes_back_at_once() -> None:
    """Instance 1 drains from 1.5 on. At 2.5 it comes back, and instance 2, which is off, stays so: nothing starts."""
    policy = Script({1.5: [Scale("mixed", 1)], 2.5: [Scale("mixed", 2)]})
    rows = [(0, 1, 9), (0, 1, 5), (1, 1, 1), (3, 1, 1)]
    result = play(policy, rows, partly_on(3, 2), max_batch=1, start=START_2_S)
    assert (policy.seen[2.0], policy.seen[3.0]) == ([MIXED, OFF, OFF], [MIXED, MIXED, OFF])
    assert result.requests["prefill_instance"].tolist() == [0, 1, 0, 1]
    assert result.instances[["starts", "stops"]].tolist() == [(0, 0)] * 3


def test_a_start_is_called_off_before_anything_drains() -> None:
    """Instance 1 starts from 1 on and is called off at 2, though instance 0 has less work than none could have."""
    policy = Script({1.0: [Scale("mixed", 2)], 2.0: [Scale("mixed", 1)]})
    result = play(policy, [(0, 1, 6)], partly_on(2, 1), start=StartCost(provisioning_s=3.0))
    assert [policy.seen[time_s][1] for time_s in (1.5, 4.0, 5.0)] == [OFF] * 3
    assert result.instances["off_s"].tolist() == [0.0, 5.0]
    assert result.instances[["starts", "stops"]].tolist() == [(0, 0), (1, 1)]


def test_the_last_instance_of_a_phase_stays() -> None:
    """None to prefill would be left; of the decode instances, one stays for the same reason."""
    policy = Script({0.5: [Scale("prefill", 0), Scale("decode", 0)]})
    result = play(policy, [(0, 1, 5), (2, 1, 3)], fleet(prefill=1, decode=3))
    assert policy.seen[5.0][0] > OFF
    assert sum(role != OFF for role in policy.seen[5.0][1:]) == 1
    assert (result.requests["state"] == 1).all()


def test_one_that_crashed_is_switched_off_before_those_that_serve() -> None:
    """Instance 0 is down from 1 to 4: at 2 it is the one that goes, and it does so when it comes back."""
    faults = FaultSchedule(crashes=(Crash(1.0, 0, 3.0),))
    policy = Script({2.0: [Scale("mixed", 1)]})
    result = play(policy, [(0, 1, 3), (0, 1, 8)], fleet(mixed=2), faults=faults)
    assert [policy.seen[time_s] for time_s in (2.0, 4.5, 7.0)] == [[OFF, MIXED]] * 3
    assert result.instances["stops"].tolist() == [1, 0]
    assert (result.requests["state"] == 1).all()


def test_the_last_instance_that_is_to_come_back_stays() -> None:
    """Both are down at 2: the second may be switched off, the first serves the rest once it is back."""
    faults = FaultSchedule(crashes=(Crash(1.0, 0, 3.0), Crash(1.0, 1, 3.0)))
    policy = Script({2.0: [Scale("mixed", 0)]})
    result = play(policy, [(0, 1, 3), (0, 1, 3)], fleet(mixed=2), faults=faults)
    assert [policy.seen[time_s] for time_s in (2.0, 4.5)] == [[OFF, OFF], [MIXED, OFF]]
    assert (result.requests["state"] == 1).all()


def test_one_that_is_off_starts_before_one_that_is_down() -> None:
    """Instance 0, down from 1 to 9, is to be off; at 3 instance 2 starts, not it."""
    faults = FaultSchedule(crashes=(Crash(1.0, 0, 8.0),))
    policy = Script({2.0: [SetRole(0, "off")], 3.0: [Scale("mixed", 2)], 5.0: [Scale("mixed", 3)]})
    result = play(policy, [(0, 1, 12), (0, 1, 12)], partly_on(3, 2), faults=faults)
    assert (policy.seen[3.5], policy.seen[8.5], policy.seen[9.5]) == (
        [OFF, MIXED, MIXED],
        [OFF, MIXED, MIXED],
        [MIXED, MIXED, MIXED],
    )
    assert result.instances["starts"].tolist() == [0, 0, 1]


def test_a_start_costs_machine_weights_and_warm_up() -> None:
    """The weights of both GPUs of an instance come over one link."""
    cost = StartCost(provisioning_s=100.0, load_bytes_s=MODEL.weight_bytes / 8, warm_up_s=20.0)
    pool = mixed(2, GPU, tp=2).pools[0]
    assert gpu_weight_bytes(MODEL, Parallelism(tp=2)) == MODEL.weight_bytes / 2
    assert cost.seconds(MODEL, pool) == pytest.approx(100 + 8 + 20)
    assert StartCost().seconds(MODEL, pool) == 0.0


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (Scale("spare", 1), "pools to scale are mixed, not 'spare'"),
        (Scale("none", 1), "pools to scale are mixed, not 'none'"),
        (Scale("mixed", 3), "pool mixed has 0 to 2 instances, got 3"),
        (Scale("mixed", -1), "pool mixed has 0 to 2 instances, got -1"),
        (Scale("mixed", 1.5), "pool mixed has 0 to 2 instances, got 1.5"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_scaled_is_refused(action: Scale, told: str) -> None:
    spec = mixed(2, GPU, spare=1)
    with pytest.raises(PolicyError, match=told):
        play(Script({0.5: [action]}), [(0, 1, 4)], spec)


def test_ranks_that_step_together_are_not_scaled() -> None:
    spec = mixed(1, GPU, dp=2, rank_choice="routed")
    with pytest.raises(PolicyError, match="instances of mixed are ranks that step together, and stay on"):
        play(Script({0.5: [Scale("mixed", 1)]}), [(0, 1, 4)], spec)
    with pytest.raises(InputError, match=r"pool mixed: ranks that step together cannot be off"):
        mixed(2, GPU, dp=2, rank_choice="routed", on_at_start=1)


def test_a_policy_that_does_not_scale_says_so_first() -> None:
    class Still(Script):
        changes_roles = False

    with pytest.raises(PolicyError, match="such a policy says changes_roles = True"):
        play(Still({0.5: [Scale("mixed", 1)]}), [(0, 1, 4)], fleet(mixed=2))
    with pytest.raises(
        InputError, match="pool mixed: policy Still starts no instances, and 1 of 2 are on at the start"
    ):
        play(Still({}), [(0, 1, 4)], partly_on(2, 1))


def test_a_fleet_must_begin_with_each_phase() -> None:
    with pytest.raises(
        InputError, match=r"cluster: no instance can prefill at the start; set on_at_start of mixed to 1"
    ):
        partly_on(2, 0)
    with pytest.raises(InputError, match="pool mixed: 3 instances cannot be on at the start, there are 2"):
        partly_on(2, 3)


def test_two_start_times_are_refused() -> None:
    with pytest.raises(InputError, match=r"engine\.start_s=1 and engine\.start both give a start time; set one"):
        EngineConfig(start_s=1.0, start=START_2_S)


def test_nothing_is_told_of_a_fleet_that_stays() -> None:
    result = play(Script({}), [(0, 1, 4)], fleet(mixed=1))
    assert fleet_figures(result, clock_of(result, Slo())) == {}
    assert np.all(result.instances["off_s"] == 0)
