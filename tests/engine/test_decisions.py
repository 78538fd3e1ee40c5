"""What a policy decides about requests that already run, worked out by hand in both engines.

A step lasts 1 s, a block is 1 token, a token of KV has 16 bytes, and two of them are copied in 1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.errors import PolicyError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.policy import Action, Cancel, Policy, Preempt, Requeue, Resume, SetDrafts, SetMaxBatch, SetRole
from framework.policy.view import Cluster, Request
from framework.reference.loop import run
from framework.reference.simulation import Simulation
from framework.reference.state import FINISHED
from framework.result import STATES, Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.agreement import drawn
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.rulers import RuledHooks, Ruler
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0)})
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
Rows = Sequence[tuple[float, int, int]]
Script = Mapping[float, Sequence[Action]]


class Scripted(Policy):
    """Acts at ticks as it is told."""

    roles = ("mixed", "prefill", "decode", "off")
    changes_roles = True
    tick_s = 0.5

    def __init__(self, script: Script) -> None:
        self.script = script

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        return self.script.get(cluster.now_s, ())


class Deciding(Policy):
    """Decides by a function of the cluster, and notes when it is asked."""

    def __init__(self, rule: Callable[[int, Cluster], Iterable[Action]]) -> None:
        self.rule = rule
        self.asked: list[tuple[float, int]] = []

    def decide(self, instance: int, cluster: Cluster) -> Iterable[Action]:
        self.asked.append((cluster.now_s, instance))
        return self.rule(instance, cluster)


def play(engine: str, rows: Rows, policy: Policy, roles: str = "mixed", **other: Any) -> Result:
    """Instances of these roles, each with 100 tokens of KV, 10 seats and 10 tokens in a step, unless `other` says
    otherwise; what is left of it are columns of the trace.
    """
    seats, kv_tokens, gpu = other.pop("seats", 10), other.pop("kv_tokens", 100), other.pop("gpu", GPU)
    speculation = other.pop("speculation", Speculation())
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    workload = Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs), **other)
    pools = tuple(PoolSpec(f"{role} {k}", role, 1, gpu) for k, role in enumerate(roles.split()))  # type: ignore[arg-type]
    config = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=kv_tokens, token_budget=10, max_batch=seats)
    config = replace(config, batching="decode_first", implementation=engine, speculation=speculation)  # type: ignore[arg-type]
    result = simulate(workload, ClusterSpec(pools, LinkSpec(32.0)), MODEL, TIMING, config, policy)
    check_result(result)
    return result


def ends(result: Result) -> list[tuple[str, str, float]]:
    """State, reason and time of each end."""
    rows = result.requests
    return [(STATES[row["state"]], result.reasons[row["reason"]], float(row["end_s"])) for row in rows]


def chat_first(instance: int, cluster: Cluster) -> Iterable[Action]:
    """Request 0 gives way while request 1 is there."""
    if 1 in cluster.queued(instance):
        return [Preempt(0)]
    return [] if 1 in cluster.decoding(instance) else [Resume(0)]


@ENGINES
def test_a_preemption_for_an_arrival_waits_for_the_step_under_way_alone(engine: str) -> None:
    """Request 1 comes at 2.5 s to the one seat of request 0, which leaves with its third token at 3 s. It is resumed at
    5 s, when request 1 has ended: its 2 + 3 tokens are computed again, which gives token 4.
    """
    policy = Deciding(chat_first)
    result = play(engine, [(0, 2, 6), (2.5, 2, 2)], policy, seats=1)
    assert token_times(result) == [[1, 2, 3, 6, 7, 8], [4, 5]]
    assert result.requests["preemptions"].tolist() == [1, 0]
    assert result.instances["prefill_tokens"].tolist() == [2 + 2 + 5]
    # At a boundary where nothing has changed, as at 2 s, nothing is asked.
    assert policy.asked == [(0, 0), (1, 0), (3, 0), (4, 0), (5, 0), (6, 0)]


@ENGINES
def test_what_a_tick_decides_about_a_step_happens_at_its_end(engine: str) -> None:
    """Request 0 is preempted at 2.5 s, in a step that ends at 3 s, and resumed at 5.5 s, before the step that begins at
    6 s; request 1 decodes all the time.
    """
    policy = Scripted({2.5: [Preempt(0)], 5.5: [Resume(0)]})
    result = play(engine, [(0, 2, 6), (0, 1, 8)], policy)
    assert token_times(result) == [[1, 2, 3, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]]


@ENGINES
def test_what_is_never_resumed_stalls(engine: str) -> None:
    result = play(engine, [(0, 2, 6), (0, 1, 5)], Scripted({2.5: [Preempt(0)]}))
    assert ends(result) == [("failed", "stalled", 5.0), ("finished", "", 5.0)]
    assert result.requests["emitted"].tolist() == [3, 5]


@ENGINES
def test_a_later_decision_takes_the_place_of_one_that_waits_but_of_no_cancellation(engine: str) -> None:
    script: Script = {
        2.5: [Preempt(0), Resume(0), Cancel(1, "late"), Resume(1), Preempt(1), Preempt(2), Cancel(2, "late")]
    }
    result = play(engine, [(0, 2, 6), (0, 1, 5), (0, 1, 5)], Scripted(script))
    assert ends(result) == [("finished", "", 6.0), ("cancelled", "late", 3.0), ("cancelled", "late", 3.0)]
    assert not result.requests["preemptions"].any()


@ENGINES
def test_one_that_waits_is_held_out_of_admission(engine: str) -> None:
    """Request 1 waits for the seat of request 0, which ends at 3 s. Taken out of the queue at 1.5 s and put back at
    4.5 s, it lets request 2 pass, and loses nothing.
    """
    script: Script = {1.5: [Preempt(1)], 4.5: [Resume(1)]}
    result = play(engine, [(0, 2, 3), (0, 2, 2), (0, 2, 3)], Scripted(script), seats=1)
    assert token_times(result) == [[1, 2, 3], [7, 8], [4, 5, 6]]
    assert not result.requests["preemptions"].any()


@ENGINES
def test_cancelled_requests_end_at_once_or_with_their_step(engine: str) -> None:
    """At 2.5 s request 0 decodes, request 1 waits for its seat. Before it comes, request 2 cannot be cancelled, nor
    request 0 after its end. Request 2 is the next turn of request 0, and comes 1 s after that has ended.
    """
    script: Script = {2.5: [Cancel(0, "gone"), Cancel(1, "late"), Cancel(2, "no")], 3.5: [Cancel(0, "again")]}
    session: dict[str, Any] = {"previous": np.array([-1, -1, 0]), "think_s": np.array([0.0, 0.0, 1.0])}
    result = play(engine, [(0, 2, 6), (0, 2, 2), (0, 2, 2)], Scripted(script), seats=1, **session)
    assert ends(result) == [("cancelled", "gone", 3.0), ("cancelled", "late", 2.5), ("finished", "", 6.0)]
    assert result.requests["emitted"].tolist() == [3, 0, 2]
    summary = summarize(result, Slo())
    assert [summary[key] for key in ("completed", "cancelled", "failed", "rejected", "offered")] == [1, 2, 0, 0, 3]
    assert summary["slo_attainment"] == 0.0  # whose TTFT is 1 s


@ENGINES
def test_a_request_on_its_way_is_not_preempted_but_cancelled(engine: str) -> None:
    """Both are prefilled by 1 s. Their KV of 2 tokens each shares the link, and has come at 3 s. Request 0 is cancelled
    at 2 s: half of its 32 bytes are sent, and the 16 that request 1 lacks take half a second more.
    """
    script: Script = {1.5: [Preempt(0), Preempt(1)], 2.0: [Cancel(0, "gone")]}
    result = play(engine, [(0, 2, 4), (0, 2, 3)], Scripted(script), "prefill decode")
    assert ends(result)[0] == ("cancelled", "gone", 2.0)
    assert token_times(result) == [[1], [1, 3.5, 4.5]]
    assert result.instances["transferred_bytes"].tolist() == [48, 0]


@ENGINES
def test_an_instance_does_not_stop_decoding_before_one_that_comes_back(engine: str) -> None:
    """Request 0 is preempted on instance 1 at 5 s. That is to be a prefill instance from 5.5 s on; it becomes one when
    request 0, resumed at 7.5 s, has decoded there. Request 1 keeps instance 2 busy.
    """
    changing: list[float] = []

    class Apart(Scripted):
        def route_decode(self, request: Request, cluster: Cluster) -> int:
            return 1 + request.id

        def on_tick(self, cluster: Cluster) -> Sequence[Action]:
            if cluster.instances.changing()[1]:
                changing.append(cluster.now_s)
            return super().on_tick(cluster)

    script: Script = {4.5: [Preempt(0)], 5.5: [SetRole(1, "prefill")], 7.5: [Resume(0)]}
    result = play(engine, [(0, 2, 6), (0, 2, 12)], Apart(script), "prefill decode decode")
    tokens = token_times(result)
    assert tokens[0][-3:] == [8.5, 9.5, 10.5]
    assert changing == [6 + k / 2 for k in range(10)]
    assert result.requests["decode_instance"].tolist() == [1, 2]


@ENGINES
def test_one_without_tokens_is_resumed_where_prompts_are_taken(engine: str) -> None:
    """Request 1 waits on instance 0 when it is suspended. Instance 0 decodes alone when it is resumed at 3.5 s, so that
    it is prefilled on instance 1.
    """

    class There(Scripted):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            return 0 if cluster.now_s < 1 else 1

    script: Script = {0.5: [Preempt(1)], 1.0: [SetRole(0, "decode")], 3.5: [Resume(1)]}
    result = play(engine, [(0, 2, 6), (0.25, 2, 2)], There(script), "mixed mixed", seats=1)
    assert result.requests["prefill_instance"].tolist() == [0, 1]
    assert token_times(result)[1] == [4.5, 5.5]


@ENGINES
def test_a_policy_sees_whom_it_has_suspended(engine: str) -> None:
    seen: list[list[int]] = []

    def rule(instance: int, cluster: Cluster) -> Iterable[Action]:
        seen.append(cluster.suspended.tolist())
        return [Preempt(0), Preempt(2)] if cluster.now_s == 2.0 else []

    play(engine, [(0, 2, 6), (0, 2, 6), (2, 2, 6), (4.5, 1, 1)], Deciding(rule))
    assert seen[:2] == [[], []]
    assert seen[3:] == [[0, 2]] * len(seen[3:])


@ENGINES
def test_the_suspended_are_listed_in_order_until_they_go_on_or_end(engine: str) -> None:
    script: Script = {
        0.5: [Preempt(2), Preempt(0), Preempt(3)],
        1.5: [Cancel(2, "gone"), Preempt(1)],
        2.5: [Resume(0)],
        3.5: [Resume(1), Resume(3)],
    }
    seen: dict[float, list[list[int]]] = {}

    class Looking(Scripted):
        def on_tick(self, cluster: Cluster) -> Sequence[Action]:
            seen[cluster.now_s] = [cluster.suspended.tolist(), *(cluster.suspended_on(i).tolist() for i in (0, 1))]
            return super().on_tick(cluster)

    play(engine, [(0, 2, 9)] * 5, Looking(script), "mixed mixed")
    assert [seen[time_s][0] for time_s in (0.5, 1.5, 2.5, 3.5)] == [[], [0, 2, 3], [0, 1, 3], [1, 3]]
    assert all(sorted(here + there) == every for every, here, there in seen.values())
    assert any(here and there for _, here, there in seen.values())


def test_a_run_without_decisions_never_leaves_the_loop_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> int:
        raise AssertionError("a decision was due")

    monkeypatch.setattr("framework.replay.compiled.decide", refuse)
    play("compiled", [(0, 2, 6), (2.5, 2, 2)], Scripted({2.5: [SetRole(0, "decode")]}), "mixed mixed")
    with pytest.raises(AssertionError, match="a decision was due"):
        play("compiled", [(0, 2, 6)], Scripted({2.5: [Preempt(0)]}))


@ENGINES
def test_kept_kv_costs_no_second_prefill(engine: str) -> None:
    """As in the first test, but request 0 keeps its KV of 4 tokens: it gives its next token at once after request 1."""

    def rule(instance: int, cluster: Cluster) -> Iterable[Action]:
        decisions = chat_first(instance, cluster)
        return [Preempt(0, "kv") if isinstance(one, Preempt) else one for one in decisions]

    result = play(engine, [(0, 2, 6), (2.5, 2, 2)], Deciding(rule), seats=1)
    assert token_times(result) == [[1, 2, 3, 6, 7, 8], [4, 5]]
    assert result.requests["preemptions"].tolist() == [0, 0]
    assert result.instances["prefill_tokens"].tolist() == [2 + 2]
    assert result.instances["decode_tokens"].tolist() == [5 + 1]


@ENGINES
def test_swapped_kv_takes_its_time_on_the_hosts_link(engine: str) -> None:
    """The 4 tokens of request 0 are 64 bytes; at 64 bytes/s the step in which they leave, and that in which they come
    back, take 1 s longer.
    """

    def rule(instance: int, cluster: Cluster) -> Iterable[Action]:
        decisions = chat_first(instance, cluster)
        return [Preempt(0, "swap") if isinstance(one, Preempt) else one for one in decisions]

    gpu = replace(GPU, pcie_bytes_s=64.0)
    result = play(engine, [(0, 2, 6), (2.5, 2, 2)], Deciding(rule), seats=1, gpu=gpu)
    assert token_times(result) == [[1, 2, 3, 8, 9, 10], [5, 6]]
    assert result.requests["preemptions"].tolist() == [1, 0]
    assert result.instances["prefill_tokens"].tolist() == [2 + 2]


@ENGINES
def test_kept_kv_denies_room_until_it_is_given_up(engine: str) -> None:
    """Request 0 keeps 3 of the 5 blocks at 2 s; request 2, of 4 tokens, waits until these are dropped at 4.5 s. Request
    3 keeps ticks going.
    """
    script: Script = {1.5: [Preempt(0, "kv")], 4.5: [Preempt(0, "drop"), Resume(0)]}
    result = play(engine, [(0, 2, 3), (0, 1, 1), (2.5, 4, 1), (20, 1, 1)], Scripted(script), kv_tokens=5)
    assert token_times(result) == [[1, 2, 6.5], [1], [5.5], [21]]


@ENGINES
def test_one_that_kept_its_kv_needs_a_seat_to_come_back(engine: str) -> None:
    """Of the one seat request 1 has its part until 6 s: what is asked for at 3.5 s is ignored."""
    script: Script = {1.5: [Preempt(0, "kv")], 3.5: [Resume(0)], 6.5: [Resume(0)]}
    result = play(engine, [(0, 2, 4), (0, 2, 4), (8, 1, 1)], Scripted(script), seats=1)
    assert token_times(result) == [[1, 2, 7.5, 8.5], [3, 4, 5, 6], [9.5]]


@ENGINES
def test_seats_are_taken_away_and_given_back(engine: str) -> None:
    """Both have a seat when one is left, at 1.5 s; request 2 waits for both to end, or for a second seat."""
    waits = [(0, 2, 3), (0, 2, 5), (1.25, 2, 1)]
    fewer = play(engine, waits, Scripted({1.5: [SetMaxBatch(0, 1)]}), seats=2)
    again = play(engine, waits, Scripted({1.5: [SetMaxBatch(0, 1)], 3.5: [SetMaxBatch(0, 2)]}), seats=2)
    assert token_times(fewer) == [[1, 2, 3], [1, 2, 3, 4, 5], [6]]
    assert token_times(again) == [[1, 2, 3], [1, 2, 3, 4, 5], [5]]


@ENGINES
@pytest.mark.parametrize("depth", [2, "adaptive"])
def test_drafts_are_taken_away_and_given_back(engine: str, depth: Any) -> None:
    """Two of two drafts are right, so a step has three tokens; none from 3 s on, one more of them from 5 s on."""
    speculation = Speculation(depth, acceptance=1.0, max_depth=2, draft_cost=0.0)
    script: Script = {2.5: [SetDrafts(0, 0)], 4.5: [SetDrafts(0, 1)]}
    result = play(engine, [(0, 2, 13)], Scripted(script), speculation=speculation)
    assert token_times(result) == [[1, 2, 2, 2, 3, 3, 3, 4, 5, 6, 6, 7, 7]]
    assert (result.instances["drafted_tokens"][0], result.instances["accepted_tokens"][0]) == (6, 6)


@ENGINES
def test_one_that_waits_is_moved_to_another_queue(engine: str) -> None:
    """Requests 1 and 2 wait behind request 0 for the one seat of instance 0. Instance 1, which is free, takes request 1
    at 1.5 s. What is asked for then of request 0, which decodes, and of request 2, as instance 2 takes no prompts, is
    ignored.
    """
    script: Script = {1.5: [Requeue(0, 1), Requeue(1, 1), Requeue(2, 2)]}
    policy = Scripted(script)
    policy.route_prefill = lambda request, cluster: 0
    rows = [(0, 2, 4), (0, 2, 2), (0, 4, 2)]
    result = play(engine, rows, policy, "mixed mixed decode", seats=1)
    assert token_times(result) == [[1, 2, 3, 4], [2.5, 3.5], [5, 6]]
    assert result.requests["prefill_instance"].tolist() == [0, 1, 0]


class Giving(Policy):
    """Gives up the candidate of that place, acts when requests have finished, and notes what it was asked and told."""

    def __init__(self, place: int, follows: Mapping[int, Sequence[Action]] | None = None) -> None:
        self.place, self.follows = place, follows or {}
        self.noted: list[Any] = []

    def victim(self, instance: int, candidates: Any, cluster: Cluster) -> int:
        self.noted.append((cluster.now_s, candidates.tolist()))
        return int(candidates[self.place]) if self.place < len(candidates) else self.place

    def on_finish(self, request: Request, cluster: Cluster) -> Sequence[Action]:
        self.noted.append((cluster.now_s, request.id, cluster.decoding(0).tolist()))
        return self.follows.get(request.id, ())


@ENGINES
def test_the_policy_says_who_is_preempted(engine: str) -> None:
    """At 1 s three requests have 9 of 10 tokens of KV. Request 0 gives way, not the last. Its 3 + 1 tokens are computed
    again when the others have ended, at 3 s.
    """
    policy, rows = Giving(0), [(0, 3, 3), (0, 3, 3), (0, 3, 3)]
    assert token_times(play(engine, rows, policy, kv_tokens=10)) == [[1, 4, 5], [1, 2, 3], [1, 2, 3]]
    assert policy.noted[0] == (1, [0, 1, 2])
    with pytest.raises(PolicyError, match="request 7 for instance 0; return one of the candidates: 0, 1, 2"):
        play(engine, rows, Giving(7), kv_tokens=10)


@ENGINES
def test_the_policy_is_told_of_each_end(engine: str) -> None:
    """Both end at 2 s: the other is gone when the first is told of. What follows comes before the next step."""
    policy = Giving(0, {0: [Cancel(2, "enough")], 1: [SetMaxBatch(0, 1)]})
    result = play(engine, [(0, 2, 2), (0, 2, 2), (0, 2, 5), (0, 2, 1)], policy, seats=4)
    assert policy.noted == [(1, 3, [0, 1, 2]), (2, 0, [2]), (2, 1, [2])]
    assert ends(result)[2] == ("cancelled", "enough", 2)


class Leaving(Policy):
    """Leaves these requests out, and notes when it is asked."""

    def __init__(self, others: Iterable[int]) -> None:
        self.others = set(others)
        self.asked: list[float] = []

    def select(self, instance: int, decoding: Any, cluster: Cluster) -> list[int]:
        self.asked.append(cluster.now_s)
        return [int(r) for r in decoding if r in self.others]


@ENGINES
def test_decodes_are_left_out_until_the_policy_says_otherwise(engine: str) -> None:
    """Request 0 keeps its seat and KV from 1 s until request 1 has ended, at 4 s: nothing is to select then. At 2 s and
    3 s nothing has changed.
    """
    policy = Leaving([0])
    result = play(engine, [(0, 2, 4), (0, 2, 4)], policy)
    assert token_times(result) == [[1, 5, 6, 7], [1, 2, 3, 4]]
    assert policy.asked == [1]
    assert result.requests["preemptions"].sum() == 0
    with pytest.raises(PolicyError, match=r"\[0, 1\] for instance 0; return some, not all, of 0, 1"):
        play(engine, [(0, 2, 4), (0, 2, 4)], Leaving([0, 1]))


class Counting(RuledHooks):
    """Checks at each question that every request that is there is in one place."""

    def __init__(self, ruler: Ruler) -> None:
        super().__init__(ruler)
        self.suspended = 0

    def decide(self, s: Simulation, i: Any) -> Sequence[tuple[Any, ...]]:
        require_one_place(s)
        self.suspended += sum(r.suspended for r in s.requests)
        return super().decide(s, i)

    def on_tick(self, s: Simulation, tick: int) -> Sequence[tuple[Any, ...]]:
        require_one_place(s)
        return super().on_tick(s, tick)


def require_one_place(s: Simulation) -> None:
    """Each request that has arrived and not ended is in exactly one list, on its way to the front end, or suspended."""
    places = [r.id for i in s.instances for _, _, r in i.waiting + i.inbox]
    for i in s.instances:
        places += [r.id for r in i.prefilling + i.running + i.joining + i.computed + i.swapped]
        places += [r.id for r in i.incoming + i.reserved if r.migration is None and r not in i.prefilling]
    sent_ahead = [r.id for i in s.instances for r in i.prefilling if r.destination is not None]
    places += [r.id for r in s.present.values() if r.suspended or r.fetch is not None or r.instance < 0]
    assert sorted(places) == sorted([*s.present, *sent_ahead])
    arrived = sum(r.taken_in for r in s.requests)
    assert arrived == len(s.present) + sum(r.taken_in for r in s.ended)


def test_nobody_is_lost_or_counted_twice() -> None:
    suspended = finished = cancelled = 0
    for seed in range(20):
        scenario = drawn("decided", seed)
        hooks = Counting(Ruler(scenario.rules))
        simulation = run(scenario.simulation(hooks))
        suspended += hooks.suspended
        finished += sum(r.state == FINISHED for r in simulation.requests)
        cancelled += sum(r.state == STATES.index("cancelled") for r in simulation.requests)
    assert min(suspended, finished, cancelled) > 20
