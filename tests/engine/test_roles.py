"""Roles that change in the middle of a run, against timelines worked out by hand: a step lasts 1 s, a copy no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.bound.bound import any_role, bound
from framework.bound.setting import Setting
from framework.codes import DECODE, MIXED, OFF, PREFILL
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, PolicyError
from framework.metrics.clock import clock_of
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.usage import usage
from framework.objective.goodput import _as_planned
from framework.policy import Action, Disaggregated, Plan, Policy, SetRole
from framework.policy.view import Cluster
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, disaggregated, mixed
from framework.timing.affine import Affine
from framework.timing.estimate import estimate_s
from framework.workload import Workload, consecutive
from servelab.testing.recording import digest
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL

GPU = server("g", 4000)
SECOND = Affine(base_s=1.0)


class Scripted(Policy):
    """Does what it is told at each tick; keeps what `look` saw then."""

    roles = ("mixed", "prefill", "decode", "off")
    changes_roles = True
    tick_s = 0.5

    def __init__(self, script: Mapping[float, Sequence[Action]], look: Callable[[Cluster], Any] | None = None) -> None:
        self.script, self.look = script, look
        self.seen: dict[float, Any] = {}

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        if self.look is not None:
            self.seen[cluster.now_s] = self.look(cluster)
        return self.script.get(cluster.now_s, ())


def cluster(*pools: tuple[str, int]) -> ClusterSpec:
    specs = [PoolSpec(role, role, count, GPU, batching="prefill_first") for role, count in pools]  # type: ignore[arg-type]
    return ClusterSpec(tuple(specs), LinkSpec(2.0**60))


def trace(*rows: tuple[float, int, int], **columns: Any) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs), **columns)


def play(workload: Workload, spec: ClusterSpec, policy: Policy, timing: Affine = SECOND, **options: Any) -> Result:
    engine = EngineConfig(**({"token_budget": 10, "block_tokens": 1, "watermark": 0.0, "kv_tokens": 400} | options))
    result = simulate(workload, spec, MODEL, timing, engine, policy)
    check_result(result)
    return result


def roles(view: Cluster) -> list[int]:
    return [int(role) for role in view.instances.role]


FOUR = trace((0, 10, 1), (0, 10, 1), (0.25, 10, 1), (0.25, 10, 1), (1.5, 10, 3))


@pytest.mark.parametrize(("delay_s", "place"), [(0.0, 0), (2.5, 0), (3.5, 2)])
def test_what_waits_is_routed_again_and_keeps_its_turn(delay_s: float, place: int) -> None:
    """Request 2 waits behind 0; its instance leaves prefill at 0.5, and 2 goes before 3, which came after it.

    The instance has drained at 1 and decodes `delay_s` later: from 4 on request 4 does, where the fewest KV is held.
    Without a delay it changes when it is its turn to schedule at 1, after the tick of that time.
    """
    policy = Scripted({0.5: [SetRole(0, "decode")]}, roles)
    result = play(FOUR, cluster(("prefill", 2), ("decode", 1)), policy, role_change_s=delay_s)
    assert [*result.requests["first_token_s"]] == pytest.approx([1, 1, 2, 3, 4])
    assert [*result.requests["prefill_instance"]] == [0, 1, 1, 1, 1]
    assert result.requests["decode_instance"][4] == place
    assert result.requests["end_s"][4] == pytest.approx(6)
    later_s = [at_s for at_s in policy.seen if at_s > 0.5]
    first_s = 1 + delay_s if delay_s > 0 else 1.5
    assert [policy.seen[at_s][0] for at_s in later_s] == [DECODE if at_s >= first_s else OFF for at_s in later_s]


def test_what_decodes_ends_there_before_the_role_changes() -> None:
    """Request 0 decodes on instance 1 until 5; of the two that come then it prefills one."""
    workload = trace((0, 10, 5), (6, 10, 1), (6, 10, 1))
    policy = Scripted({2.5: [SetRole(1, "prefill")]}, lambda view: (roles(view), [*view.instances.changing()]))
    result = play(workload, cluster(("prefill", 1), ("decode", 2)), policy)
    assert result.requests["end_s"][0] == pytest.approx(5)
    assert policy.seen[2.5] == ([PREFILL, DECODE, DECODE], [False, False, False])
    assert policy.seen[3.0] == policy.seen[5.0 - 0.5] == ([PREFILL, OFF, DECODE], [False, True, False])
    assert policy.seen[5.5] == ([PREFILL, PREFILL, DECODE], [False, False, False])
    assert [*result.requests["prefill_instance"]] == [0, 0, 1]


def test_a_mixed_instance_keeps_the_phase_that_it_does_not_leave() -> None:
    """From 0.5 on it takes no prompts; the one that runs ends at 1 and decodes there at once."""
    policy = Scripted({0.5: [SetRole(0, "decode")]}, roles)
    result = play(trace((0, 10, 3), (0.75, 10, 2)), cluster(("mixed", 2)), policy, role_change_s=5.0)
    assert [*result.requests["prefill_instance"]] == [0, 1]
    assert [*result.requests["decode_instance"]] == [0, 1]
    assert policy.seen[1.0] == [DECODE, MIXED]


def test_a_change_can_be_taken_back() -> None:
    policy = Scripted({0.5: [SetRole(0, "decode")], 1.5: [SetRole(0, "prefill")]}, roles)
    result = play(FOUR, cluster(("prefill", 2), ("decode", 1)), policy, role_change_s=9.0)
    assert policy.seen[1.5][0] == OFF
    assert policy.seen[2.0][0] == PREFILL
    assert result.requests["prefill_instance"][4] == 0  # at 1.5, after the tick


@pytest.mark.parametrize("role", ["decode", "off"])
def test_the_last_one_of_a_phase_keeps_it(role: Any) -> None:
    spec = cluster(("prefill", 1), ("decode", 1))
    results = [play(FOUR, spec, Scripted(script)) for script in ({}, {0.5: [SetRole(0, role)]})]
    assert digest(results[0]) == digest(results[1])


def test_two_cannot_swap_at_once() -> None:
    """The second change would leave nobody to decode; the first goes on."""
    policy = Scripted({0.5: [SetRole(0, "decode"), SetRole(2, "prefill")]}, roles)
    play(FOUR, cluster(("prefill", 2), ("decode", 1)), policy)
    assert policy.seen[1.5] == [DECODE, PREFILL, DECODE]


def test_a_plan_comes_with_the_role() -> None:
    """A decode instance turned mixed by chunks of 4: a prompt of 10 takes three steps there."""
    plan = Plan(4, "decode_first")

    class Local(Scripted):
        def route_prefill(self, request: Any, view: Cluster) -> int:
            return int(view.prefill.ids[-1])

    policy = Local({0.5: [SetRole(1, "mixed", plan)]})
    result = play(trace((0, 10, 1), (2, 10, 3)), cluster(("prefill", 1), ("decode", 1)), policy)
    assert [*result.requests["prefill_instance"]] == [0, 1]
    assert result.requests["first_token_s"][1] == pytest.approx(5)
    assert result.requests["end_s"][1] == pytest.approx(7)
    assert result.instances["transferred_bytes"].sum() == 0
    assert (result.instances["token_budget"][1], result.instances["token_budget"][0]) == (4, 10)


def test_local_prefills_need_no_transfer() -> None:
    """A mixed instance with others: where route_decode answers the instance that prefilled, nothing moves."""

    class Here(Disaggregated):
        roles = ("prefill", "mixed")

        def route_prefill(self, request: Any, view: Cluster) -> int:
            return 1

        def route_decode(self, request: Any, view: Cluster) -> int:
            return int(request.prefill_instance)

    result = play(trace((0, 10, 3)), cluster(("prefill", 1), ("mixed", 1)), Here())
    assert (result.requests["end_s"][0], result.instances["transferred_bytes"].sum()) == (3, 0)


def shared_prompts(*arrivals_s: float) -> Workload:
    """Prompts of ten tokens of which eight are the same."""
    count = len(arrivals_s)
    ids = np.array([[1, 100 + r] for r in range(count)]).reshape(-1)
    columns = {"hash_ids": ids, "hash_spans": consecutive([2] * count), "hash_block_tokens": 8}
    return trace(*[(at_s, 10, 1) for at_s in arrivals_s], **columns)


@pytest.mark.parametrize(("role", "cached"), [("decode", 8), ("off", 0)])
def test_prefixes_outlive_a_role_but_not_the_instance(role: Any, cached: int) -> None:
    policy = Scripted({2.0: [SetRole(0, role)], 4.0: [SetRole(0, "prefill")]})
    result = play(shared_prompts(0, 6), cluster(("prefill", 2), ("decode", 1)), policy, prefix_cache=True)
    assert [*result.requests["prefill_instance"]] == [0, 0]
    assert [*result.requests["cached_tokens"]] == [0, cached]


def test_an_instance_that_is_off_costs_nothing() -> None:
    """The spare one is started at 2, takes work from 5 on, and is off again at 7, when its prompt is done.

    It is so from its turn to schedule at 7 on, which comes after the tick.
    """
    workload = trace((0, 10, 1), (6, 10, 1), (6, 10, 3), (9, 10, 2))
    script = {2.0: [SetRole(2, "prefill")], 6.5: [SetRole(2, "off")]}
    policy = Scripted(script, lambda view: (roles(view)[2], bool(view.instances.changing()[2])))
    result = play(workload, cluster(("prefill", 1), ("decode", 1), ("off", 1)), policy, start_s=3.0)
    assert [*result.requests["prefill_instance"]] == [0, 0, 2, 0]
    assert (policy.seen[2.5], policy.seen[5.0]) == ((OFF, True), (PREFILL, False))
    assert (policy.seen[7.0], policy.seen[7.5]) == ((OFF, True), (OFF, False))
    assert [*result.instances["off_s"]] == pytest.approx([0, 0, 2 + 11 - 7])
    used = usage(result, clock_of(result, Slo()))  # from the first request at 0 to the last answer at 11
    assert used["cost_usd"] == pytest.approx((11 + 11 + 5) / 3600)
    busy_s = result.instances["busy_s"].sum()
    assert used["energy_j"] == pytest.approx(27 * 1.0 + 99.0 * busy_s)


def test_an_instance_is_not_off_while_kv_waits_there() -> None:
    """Request 1's KV waits on instance 0 for the only seat of the decode instance until 4."""
    policy = Scripted({1.5: [SetRole(0, "off")]}, lambda view: bool(view.instances.changing()[0]))
    spec = cluster(("prefill", 1), ("decode", 1), ("mixed", 1))
    spec = replace(spec, pools=(spec.pools[0], replace(spec.pools[1], max_batch=1), spec.pools[2]))

    class First(Scripted):
        def route_prefill(self, request: Any, view: Cluster) -> int:
            return int(view.prefill.ids[0])

        def route_decode(self, request: Any, view: Cluster) -> int:
            return 1

    policy = First({1.5: [SetRole(0, "off")]}, lambda view: bool(view.instances.changing()[0]))
    result = play(trace((0, 5, 4), (0, 5, 4)), spec, policy)
    assert (policy.seen[3.5], policy.seen[4.5]) == (True, False)
    assert [*result.requests["decode_instance"]] == [1, 1]


def test_changes_of_role_keep_no_stalled_run_alive() -> None:
    """Two requests are withheld for ever, while a third instance changes its role at each tick."""

    class Toggling(Scripted):
        def route_prefill(self, request: Any, view: Cluster) -> int:
            return int(request.id)

        def batching(self, instance: int, view: Cluster) -> Plan:
            return Plan(8, "decode_only")

        def on_tick(self, view: Cluster) -> Sequence[Action]:
            return [SetRole(2, "prefill" if view.instances.next_role[2] == DECODE else "decode")]

    policy = Toggling({})
    result = play(trace((0, 4, 2), (1, 4, 2)), cluster(("mixed", 3)), policy, kv_tokens=6, role_change_s=0.75)
    assert [result.reasons[row["reason"]] for row in result.requests] == ["stalled", "stalled"]
    assert [*result.requests["end_s"]] == [1, 1]


# --- what cannot be done ----------------------------------------------------------------------------------------------


class Stubborn(Scripted):
    def route_prefill(self, request: Any, view: Cluster) -> int:
        return 0


def test_routes_to_a_changing_instance_are_refused() -> None:
    policy = Stubborn({0.5: [SetRole(0, "decode")]})
    with pytest.raises(PolicyError, match="instance 0 for request 1, which is changing from prefill to decode"):
        play(FOUR, cluster(("prefill", 2), ("decode", 1)), policy)


def test_routes_to_an_instance_that_is_off_are_refused() -> None:
    with pytest.raises(PolicyError, match="instance 0 for request 0, which is off"):
        play(FOUR, cluster(("off", 1), ("mixed", 1)), Stubborn({}))


def test_a_policy_says_that_it_changes_roles() -> None:
    policy = Scripted({0.5: [SetRole(0, "decode")]})
    vars(policy)["changes_roles"] = False
    with pytest.raises(PolicyError, match="says changes_roles = True"):
        play(FOUR, cluster(("prefill", 2), ("decode", 1)), policy)


@pytest.mark.parametrize("action", [SetRole(0, "both"), SetRole(0, "mixed", Plan(0, "mixed"))])  # type: ignore[arg-type]
def test_roles_and_plans_that_do_not_exist(action: Action) -> None:
    with pytest.raises(PolicyError, match="no usable action"):
        play(FOUR, cluster(("prefill", 2), ("decode", 1)), Scripted({0.5: [action]}))


def test_spare_instances_are_for_policies_that_start_them() -> None:
    assert [pool.role for pool in disaggregated(1, 1, GPU, spare=2).pools] == ["prefill", "decode", "off"]
    assert mixed(1, GPU, spare=1).instances == 2
    with pytest.raises(InputError, match=r"cannot use off instances; choose cluster=disaggregated cluster.spare=0"):
        Disaggregated().layout(disaggregated(1, 1, GPU, spare=2))
    with pytest.raises(InputError, match="no pool can prefill"):
        cluster(("off", 2), ("decode", 1))


# --- what planners see ------------------------------------------------------------------------------------------------


def test_finished_requests_tell_their_latencies() -> None:
    policy = Scripted({}, lambda view: view.finished(0))
    play(trace((0, 10, 3), (0.25, 10, 1)), cluster(("prefill", 1), ("decode", 1)), policy)
    assert len(policy.seen[1.5].ids) == 0
    last = policy.seen[2.5]
    assert ([*last.ids], [*last.input_tokens], [*last.output_tokens]) == ([1], [10], [1])
    assert [*last.ttft_s] == [1.75]
    assert np.isnan(last.tpot_s[0])


def test_estimates_are_those_of_the_step() -> None:
    timing = Affine(0.5, 2.0**-4, 2.0**-10, 2.0**-5, 2.0**-8)
    seen = []

    class Estimating(Policy):
        def route_prefill(self, request: Any, view: Cluster) -> int:
            there = view.instances
            sizes = (16, 0, 0), (0, 4, 64), (16, 4, 64), (16, 4, 64, 32)
            seen.append([float(there.estimate_s(*size)[1]) for size in sizes])
            assert seen[-1] == [estimate_s(there.step_times, 1, *size) for size in sizes]
            return 0

    simulate(trace((0, 10, 1)), cluster(("mixed", 2)), MODEL, timing, EngineConfig(kv_tokens=400), Estimating())
    both_s = 0.5 + 1 + 0.25 + 0.125 + 0.25
    assert seen == [[0.5 + 1 + 0.25, 0.5 + 0.125 + 0.25, both_s, both_s - 0.25 + (48**2 - 32**2) / 2**10]]


# --- the bound --------------------------------------------------------------------------------------------------------


def test_the_bound_lets_every_instance_do_anything() -> None:
    """One prefill and three decode instances; prompts alone: by changing roles three can prefill."""
    spec, workload = (
        replace(cluster(("decode", 3), ("prefill", 1)), link=LinkSpec(1e9)),
        trace(*[(k / 4, 10, 1) for k in range(40)]),
    )
    policy = Scripted({0.5: [SetRole(0, "prefill"), SetRole(1, "prefill")]})
    planned = _as_planned(policy, spec)
    assert [pool.name for pool in planned.pools] == ["prefill", "decode"]  # requests still come in by the first
    assert {pool.role for pool in planned.pools} == {"mixed"}
    assert planned == any_role(policy.layout(spec))
    timing = Affine(base_s=1.0, per_prefill_token_s=2.0**-6)
    result = play(workload, spec, policy, timing)
    engine, slo = result.engine, Slo(None, None)  # else goodput were over the window of arrivals
    found, fixed = (bound(Setting(workload, those, MODEL, timing, engine, slo=slo)) for those in (planned, spec))
    reached = 40 / result.requests["end_s"].max()
    assert fixed.goodput < reached <= found.goodput
