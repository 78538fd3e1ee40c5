"""Instances that crash and come back, worked out by hand in both engines: a step lasts 1 s, a copy no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, PolicyError
from framework.load import Load, Open
from framework.metrics.clock import clock_of
from framework.metrics.invariants import check_result
from framework.metrics.service.slowdowns import slowdown_figures
from framework.metrics.slo import Slo
from framework.metrics.usage import usage
from framework.policy import Action, Cancel, Policy, Preempt, Resume, SetRole
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import Batching, ClusterSpec, LinkSpec, PoolSpec
from framework.system.faults import Crash, FaultSchedule, LinkFault, Recovery, Slowdown
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.interpreted import printed_interpreted
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0)})
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])


class Placed(Policy):
    """Prompts go to the instance of the request's number, or else to the first that prefills. Acts as it is told."""

    roles = ("mixed", "prefill", "decode", "off")
    changes_roles = True
    tick_s = 0.25

    def __init__(self, script: Mapping[float, Sequence[Action]] | None = None, stubborn: bool = False) -> None:
        self.script, self.stubborn = script or {}, stubborn
        self.routed: list[tuple[int, float, int]] = []
        self.seen: dict[float, tuple[list[int], list[int], list[int]]] = {}

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        self.routed.append((request.id, cluster.now_s, request.generated))
        wanted, able = request.id % len(cluster.instances), cluster.prefill.ids.tolist()
        return wanted if wanted in able or self.stubborn else int(able[0])

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        columns = cluster.prefill.ids, cluster.decode.ids, cluster.instances.role
        self.seen[cluster.now_s] = tuple(column.tolist() for column in columns)
        return self.script.get(cluster.now_s, ())


def trace(*rows: tuple[float, int, int]) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))


def play(
    engine: str,
    workload: Workload,
    policy: Policy,
    crashes: Sequence[Crash],
    roles: str = "mixed mixed",
    recovery: Recovery = "recompute",
    slowdowns: Sequence[Slowdown] = (),
    links: Sequence[LinkFault] = (),
    bytes_s: float = 2.0**60,
    load: Load | None = None,
    batching: Batching = "prefill_first",
    **options: Any,
) -> Result:
    pools = [
        PoolSpec(f"{role} {k}", role, 1, GPU, batching=batching)  # type: ignore[arg-type]
        for k, role in enumerate(roles.split())
    ]
    given: dict[str, Any] = {"token_budget": 10, "block_tokens": 1, "watermark": 0.0, "kv_tokens": 100}
    faults = FaultSchedule(recovery=recovery, crashes=crashes, slowdowns=slowdowns, links=links)
    config = EngineConfig(**(given | {"implementation": engine, "faults": faults} | options))
    result = simulate(
        workload, ClusterSpec(tuple(pools), LinkSpec(bytes_s)), MODEL, TIMING, config, policy, load=load or Open()
    )
    check_result(result)
    return result


@ENGINES
def test_what_it_had_is_computed_again_elsewhere(engine: str) -> None:
    """Request 0 has two tokens when instance 0 crashes at 2.5 s; the step that would end at 3 s is lost. Instance 1
    computes its 4 tokens from 3 to 4 s, which gives token 3, while request 1 waits. From 4 s on both decode there.
    """
    policy = Placed()
    result = play(engine, trace((0, 2, 6), (0, 2, 6)), policy, [Crash(2.5, 0, 3.0)])
    assert token_times(result) == [[1, 2, 4, 5, 6, 7], [1, 2, 3, 5, 6, 7]]
    assert policy.routed == [(0, 0.0, 0), (1, 0.0, 0), (0, 2.5, 2)]
    assert result.requests["prefill_instance"].tolist() == [0, 1]
    assert result.requests["decode_instance"].tolist() == [1, 1]
    assert result.requests["preemptions"].tolist() == [0, 0]
    assert result.instances["busy_s"].tolist() == [2.5, 7.0]
    assert result.instances["steps"].tolist() == [2, 7]
    assert result.instances["prefill_tokens"].tolist() == [2, 6]
    assert result.instances["kv_token_s"].tolist() == [2 + 2 + 3 * 0.5, 2 + 2 + 3 + 8 + 8 + 10 + 12]


@ENGINES
def test_gpus_that_are_down_are_paid_for(engine: str) -> None:
    """Two GPUs for 7 s, of which one is down for 3."""
    result = play(engine, trace((0, 2, 6), (0, 2, 6)), Placed(), [Crash(2.5, 0, 3.0)])
    assert usage(result, clock_of(result, Slo()))["gpu_hours"] == pytest.approx(14 / 3600)
    assert result.instances["off_s"].tolist() == [0.0, 0.0]


@ENGINES
def test_requests_wait_while_nobody_can_take_them(engine: str) -> None:
    """The only instance is down from 1.5 to 3.5 s. Request 1 comes meanwhile; both are prefilled from 3.5 s on."""
    policy = Placed()
    result = play(engine, trace((0, 2, 4), (2, 2, 1)), policy, [Crash(1.5, 0, 2.0)], "mixed")
    assert token_times(result) == [[1, 4.5, 5.5, 6.5], [4.5]]
    assert result.requests["start_s"].tolist() == [0, 3.5]
    assert policy.routed[1:] == [(0, 3.5, 1), (1, 3.5, 0)]
    assert policy.seen[2.0] == ([], [], [0])
    assert policy.seen[3.5] == ([0], [0], [3])


@ENGINES
def test_they_fail_where_that_is_chosen(engine: str) -> None:
    result = play(engine, trace((0, 2, 4), (2, 2, 1)), Placed(), [Crash(1.5, 0, 2.0)], "mixed", "fail")
    assert [result.reasons[k] for k in result.requests["reason"]] == ["crash", ""]
    assert result.requests["end_s"].tolist() == [1.5, 4.5]
    assert result.requests["emitted"].tolist() == [1, 1]


@ENGINES
def test_a_crash_between_two_steps_loses_no_step(engine: str) -> None:
    """The step ends at 2 s before the crash at that time: its token is there."""
    result = play(engine, trace((0, 2, 4)), Placed(), [Crash(2.0, 0, 1.0)], "mixed")
    assert token_times(result) == [[1, 2, 4, 5]]
    assert result.instances["busy_s"].tolist() == [4.0]


@ENGINES
def test_a_decode_instance_loses_what_was_sent_to_it(engine: str) -> None:
    """Instance 1 is down from 2.5 to 3.5 s. Request 0 has decoded there. Request 2, which comes at 2.75 s, is
    not routed before 3.5 s; request 1 is prefilled from 2 to 3 s, and finds nobody that decodes. All are prefilled by
    4.5 s.
    """
    workload = trace((0, 2, 4), (2, 2, 3), (2.75, 2, 2))
    policy = Placed()
    result = play(engine, workload, policy, [Crash(2.5, 1, 1.0)], "prefill decode")
    assert token_times(result) == [[1, 2, 4.5, 5.5], [3, 4.5, 5.5], [4.5, 5.5]]
    assert policy.routed == [(0, 0, 0), (1, 2, 0), (0, 3.5, 2), (2, 3.5, 0), (1, 3.5, 1)]
    assert result.requests["transfer_end_s"].tolist() == [1, 4.5, 4.5]
    assert policy.seen[3.0] == ([0], [], [1, 0])


@ENGINES
def test_a_policy_gives_the_phase_to_another(engine: str) -> None:
    """Instance 1, which decodes, is down from 2.25 s on. At 2.5 s instance 0 takes that up, too: request 0 is computed
    again there from then on, and decodes. Instance 0 may not leave the prefills to nobody. Instance 1 comes back at 5 s
    as what it was made meanwhile.
    """
    script = {2.25: [SetRole(0, "decode")], 2.5: [SetRole(0, "mixed")], 3.0: [SetRole(1, "prefill")]}
    policy = Placed(script)
    result = play(engine, trace((0, 2, 4), (4.5, 2, 2)), policy, [Crash(2.25, 1, 2.75)], "prefill decode")
    assert token_times(result) == [[1, 2, 3.5, 4.5], [5.5, 6.5]]
    assert policy.seen[2.5] == ([0], [], [1, 0])
    assert policy.seen[2.75] == ([0], [0], [3, 0])
    assert policy.seen[5.0] == ([0, 1], [0], [3, 1])


@ENGINES
def test_a_phase_that_nobody_takes_up_again_stalls_the_run(engine: str) -> None:
    """Instance 1 comes back as one that prefills: request 0 never decodes."""
    policy = Placed({2.5: [SetRole(1, "prefill")]})
    result = play(engine, trace((0, 2, 4)), policy, [Crash(2.25, 1, 1.0)], "prefill decode")
    assert [result.reasons[k] for k in result.requests["reason"]] == ["stalled"]
    assert result.requests["end_s"].tolist() == [3.25]


@ENGINES
def test_a_decision_that_awaits_a_crashed_instance_is_carried_out(engine: str) -> None:
    """At 2.25 s request 0 is to be cancelled when its step ends, which it does not."""
    policy = Placed({2.25: [Cancel(0, "late")]})
    result = play(engine, trace((0, 2, 6), (0, 2, 6)), policy, [Crash(2.5, 0, 3.0)])
    assert result.requests["end_s"].tolist() == [2.5, 6.0]
    assert [result.reasons[k] for k in result.requests["reason"]] == ["late", ""]


@ENGINES
def test_a_suspended_request_is_resumed_elsewhere_after_a_crash(engine: str) -> None:
    """Request 0 is suspended at 3 s with three tokens. At 4 s its instance is down: instance 1 computes its 5 tokens
    up to 5 s, while request 1 waits.
    """
    policy = Placed({2.25: [Preempt(0)], 4.0: [Resume(0)]})
    result = play(engine, trace((0, 2, 6), (0, 2, 10)), policy, [Crash(3.5, 0, 20.0)])
    assert token_times(result) == [[1, 2, 3, 5, 6, 7], [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]]


@ENGINES
def test_an_instance_that_hangs_is_sent_requests_until_that_is_noticed(engine: str) -> None:
    """Instance 0 hangs from 1.5 to 3.25 s: the step that would end at 2 s does not, and it is seen as up. Request 2 is
    still routed there at 2 s. Both are computed from 4 s on by instance 1, where request 1 has ended by then.
    """
    policy = Placed()
    crash = Crash(1.5, 0, 9.0, detected_after_s=1.75)
    result = play(engine, trace((0, 2, 3), (0, 2, 4), (2.0, 2, 1)), policy, [crash])
    assert token_times(result) == [[1, 5, 6], [1, 2, 3, 4], [5]]
    assert policy.routed[2:] == [(2, 2.0, 0), (0, 3.25, 1), (2, 3.25, 0)]
    assert policy.seen[3.0] == ([0, 1], [0, 1], [3, 3])
    assert policy.seen[3.25] == ([1], [1], [0, 3])
    assert result.instances["busy_s"].tolist() == [1.5, 6.0]


@ENGINES
def test_no_copy_begins_to_an_instance_that_hangs(engine: str) -> None:
    """Instance 1, which decodes, hangs from 0.5 to 2.5 s. Request 0 is prefilled at 1 s, and waits to be sent until
    then: it is dropped, and computed again from 3 s on, when instance 1 is back.
    """
    crash = Crash(0.5, 1, 0.5, detected_after_s=2.0)
    result = play(engine, trace((0, 2, 3)), Placed(), [crash], "prefill decode")
    assert token_times(result) == [[1, 4, 5]]
    assert result.requests["transfer_end_s"].tolist() == [4.0]


@ENGINES
def test_nothing_is_sent_to_an_instance_that_is_down(engine: str) -> None:
    with pytest.raises(PolicyError, match="route_prefill returned instance 0 for request 0, which has crashed"):
        play(engine, trace((0, 2, 6), (0, 2, 6)), Placed(stubborn=True), [Crash(2.5, 0, 3.0)])


@pytest.mark.parametrize(
    ("crashes", "message"),
    [
        ("all", "crashes must be a list of crashes, got 'all'"),
        ([{"instance": 0, "at_s": 1.0}], "a crash is written {instance: 0, at_s: 60.0, down_s: 120.0}, and may have"),
        ([{"instance": -1, "at_s": 1.0, "down_s": 1.0}], "instance must be a whole number of at least 0, got -1"),
        ([{"instance": 0, "at_s": 1.0, "down_s": 0.0}], "down_s must be a finite number above 0, got 0.0"),
        ([{"instance": 0, "at_s": -1.0, "down_s": 1.0}], "at_s must be a finite number of at least 0, got -1.0"),
        ([Crash(1.0, 2, 1.0)], "there is no instance 2; the cluster has instances 0 to 1"),
        ([Crash(1.0, 0, 2.0), Crash(2.5, 0, 1.0)], "instance 0 crashes at 2.5 s, but is down from 1 s to 3 s"),
    ],
)
def test_what_is_no_schedule_is_refused_in_a_line(crashes: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"^engine\.faults\.crashes") as refusal:
        play("compiled", trace((0, 2, 2)), Placed(), crashes)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@ENGINES
def test_steps_that_start_while_an_instance_is_slow_take_longer(engine: str) -> None:
    """The step that runs at 1.5 s ends at 2 s. Those from 2 s and 4 s on take 2 s each; the slow-down ends at 5.5 s."""
    slow = [Slowdown(1.5, 0, 4.0, 2.0)]
    result = play(engine, trace((0, 2, 6)), Placed(), [], "mixed", slowdowns=slow)
    assert token_times(result) == [[1, 2, 4, 6, 7, 8]]
    assert slowdown_figures(result, clock_of(result, Slo())) == {
        "slowed_share": 0.5,
        "slowdowns": [{"at_s": 1.5, "instance": 0, "for_s": 4.0, "factor": 2.0}],
    }


@ENGINES
def test_a_step_at_the_end_of_a_slow_down_is_fast(engine: str) -> None:
    """Slow from 1 to 3 s, then from 3 to 4 s by another factor, not at 6 s; a crash at 6.5 s leaves it."""
    slow = [Slowdown(1.0, 0, 2.0, 2.0), Slowdown(3.0, 0, 1.0, 3.0), Slowdown(6.25, 0, 9.0, 1.5)]
    result = play(engine, trace((0, 2, 5)), Placed(), [Crash(6.5, 0, 0.5)], "mixed", slowdowns=slow)
    assert token_times(result) == [[1, 3, 6, 8.5, 10]]


@ENGINES
def test_copies_wait_while_a_network_is_parted(engine: str) -> None:
    """KV of 2 tokens, 32 bytes, at 32 bytes/s from 1 to 2 s. The network of instance 1 is parted from 1.5 to 4 s, and
    has half of its bandwidth for another 0.5 s: the second half takes until then and 0.25 s more.
    """
    links = [LinkFault(1.5, 1, 2.5, 0.0), LinkFault(4.0, 1, 0.5, 0.5)]
    result = play(engine, trace((0, 2, 2)), Placed(), [], "prefill decode", links=links, bytes_s=32.0)
    assert result.requests["transfer_end_s"].tolist() == [4.75]
    assert token_times(result) == [[1, 5.75]]


@pytest.mark.parametrize(
    ("slowdowns", "message"),
    [
        ([{"at_s": 1.0}], "a slow-down is written {instance: 0, at_s: 60.0, for_s: 600.0, factor: 1.5}, got"),
        ([Slowdown(1.0, 2, 1.0, 2.0)], "there is no instance 2; the cluster has instances 0 to 1"),
        ([Slowdown(1.0, 0, 2.0, 2.0)] * 2, "instance 0 is slowed down at 1 s, but is slow from 1 s to 3 s"),
        ([{"instance": 0, "at_s": 1.0, "for_s": 1.0, "factor": 0.5}], "factor must be a finite number of at least 1"),
    ],
)
def test_what_is_no_slow_down_is_refused_in_a_line(slowdowns: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"^engine\.faults\.slowdowns") as refusal:
        play("compiled", trace((0, 2, 2)), Placed(), [], slowdowns=slowdowns)
    assert message in str(refusal.value)


# In plain Python, event by event: where each request is, and whether lists and counts agree.
PLACES = """
from collections import Counter
from framework.codes import *
from framework.engine.events.agreement import require_agreement
from framework.engine.memory.attach import attach
from framework.engine.setup import binding
from framework.replay import compiled
from tests.helpers.agreement import drawn
from tests.helpers.differences import run_engine

HELD = ("queued", "prefilling", "running", "joining", "swapped")
IN_TRANSIT = (FETCHING, PREFILLED, HANDING_OVER)
WAITING = (PARKED, SUSPENDED, SUSPENDED_HERE, SUSPENDED_OUT, GATED, SPANLESS)
seen, memories = Counter(), []

def check(memory, status):
    require_agreement(attach(memory, 0))
    requests, instances = memory.requests, memory.instances
    states = Counter(requests["state"].tolist())
    arrived = int((requests["taken_in"] & (requests["end_s"] != requests["end_s"])).sum())
    reading = int(((requests["state"] == FUTURE) & requests["taken_in"]).sum())
    listed = sum(int(instances[name].sum()) for name in HELD)
    transit = sum(states[state] for state in IN_TRANSIT)
    assert states[PARKED] == memory.sim["parked"][0] or status == DONE
    if not instances["busy"].any() or status == FAULT_DUE:
        waiting = sum(states[state] for state in WAITING)
        assert arrived == reading + listed + transit + waiting, (seed, arrived, reading, listed, transit, states)
    idle = (instances["draining_role"] == OFF) & ~instances["hung"]
    down, without = instances[instances["down"]], instances[idle]
    assert not any(without[name].any() for name in (*HELD, "incoming", "reserved", "kv_tokens", "evictable_blocks"))
    assert (without["free_blocks"] == without["total_blocks"]).all()
    starts = int((idle & (instances["next_role"] != OFF)).sum()) - len(down)
    drains = int(((instances["draining_role"] != OFF) & (instances["next_role"] == OFF)).sum())
    seen.update(down=len(down), hung=int(instances["hung"].sum()), parked=states[PARKED], gated=states[GATED])
    seen.update(transit=transit if len(down) else 0, spanless=states[SPANLESS])
    seen.update(off=len(without) - len(down), starts=max(starts, 0), drains=drains)

def by_event(go_on):
    def run(words, most):
        status = go_on(words, 1)
        check(memories[-1], status)
        return status
    return run

def handed(memory, *others, handed=binding.handed):
    memories.append(memory)
    return handed(memory, *others)

binding.handed = handed
compiled.run, compiled.run_plain = by_event(compiled.run), by_event(compiled.run_plain)
for seed in range(*SEEDS):
    run_engine(drawn(FAMILY, seed))
print(sorted(set(SOUGHT) - set(+seen)))
"""


@pytest.mark.parametrize(
    ("family", "seeds", "sought"),
    [
        ("crashing", (6, 10), ("down", "hung", "parked", "transit")),
        ("scaling", (0, 3), ("off", "starts", "drains")),
        pytest.param(
            "scaling", (5, 60), ("down", "parked", "transit", "off", "starts", "drains"), marks=pytest.mark.slow
        ),
        *(
            pytest.param(family, (0, 30), sought, marks=pytest.mark.slow)
            for family, sought in (
                *(("decided", ()), ("impatient", ()), ("pinned", ()), ("programs", ()), ("stateful", ())),
                *(("gateway", ("gated", "down")), ("spanning", ("spanless",)), ("stale", ()), ("tiered", ())),
            )
        ),
    ],
)
def test_nothing_is_lost_or_counted_twice_at_any_event(
    family: str, seeds: tuple[int, int], sought: tuple[str, ...]
) -> None:
    code = f"FAMILY, SEEDS, SOUGHT = {family!r}, {seeds}, {sought}\n{PLACES}"
    assert printed_interpreted(code) == "[]\n"
