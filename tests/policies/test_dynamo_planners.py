"""NVIDIA Dynamo's queue of the fleet and its planners, each decision followed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framework.codes import DECODE, PREFILL
from framework.errors import InputError
from framework.policy import Action, Requeue, SetRole
from framework.policy.view import Cluster, Finished, Request
from framework.timing.table import StepRow
from policies._scaling import corrections
from policies.dynamo import Dynamo, PrefillQueue
from tests.helpers.by_hand import Rows, fleet, play

ROOM: dict[str, Any] = {"kv_tokens": 4000, "max_batch": 64}


# --- the queue of the fleet -------------------------------------------------------------------------------------------

# A step takes 4 s and 1/4 s a prompt token: the first worker is busy until 7 s, the second until 5 s. By tokens the
# third and the fourth prompt wait less behind the second worker: 4 and 10 tokens against 12.
# Both do not fit into one step.
STEPS = StepRow(base_s=4.0, per_prefill_token_s=0.25)
WAITING: Rows = [(0.0, 12, 2), (0.0, 4, 2), (0.5, 6, 2), (1.0, 3, 2)]


def prefilled(queue: PrefillQueue, rows: Rows = WAITING, **options: Any) -> tuple[list[int], list[float]]:
    """Where the prompts of two prefill workers are computed, and when they are done."""
    policy = Dynamo(local_tokens=0, queue=100, prefill_queue=queue)
    given = {**ROOM, "token_budget": 8, **options}
    requests = play(policy, rows, fleet(prefill=2, decode=1), row=STEPS, **given).requests
    return requests["prefill_instance"].tolist(), requests["first_token_s"].tolist()


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_workers_pull_from_one_queue(implementation: str) -> None:
    """At 5 s the second worker takes the third prompt, at 7 s the first one takes the fourth."""
    where, done_s = prefilled("fleet", implementation=implementation)
    assert where == [0, 1, 1, 0]
    assert done_s == pytest.approx([7.0, 5.0, 10.5, 11.75])


def test_assigned_at_arrival_a_prompt_waits_where_it_is() -> None:
    """The neighbour: the fourth prompt waits for the third, though the first worker is idle from 7 s on."""
    where, done_s = prefilled("worker")
    assert where == [0, 1, 1, 1]
    assert done_s == pytest.approx([7.0, 5.0, 10.5, 15.25])


def test_workers_take_one_prompt_at_a_time() -> None:
    """Two prompts of three tokens fit into one step of six, which takes 5.5 s."""
    rows = [(0.0, 4, 2), (0.0, 4, 2), (1.0, 3, 2), (1.0, 3, 2), (1.0, 3, 2)]
    assert prefilled("fleet", rows)[1] == pytest.approx([5.0, 5.0, 9.75, 9.75, 14.5])
    assert prefilled("worker", rows)[1] == pytest.approx([5.0, 5.0, 10.5, 9.75, 10.5])


def test_the_length_of_the_queue_is_that_of_the_fleet() -> None:
    """While two prompts wait, a third is prefilled where it decodes."""
    policy = Dynamo(local_tokens=0, queue=2, prefill_queue="fleet")
    rows = [(0.0, 8, 2), (0.0, 8, 2), (1.0, 8, 2), (1.0, 8, 2), (1.0, 8, 2)]
    where = play(policy, rows, fleet(prefill=2, decode=1), row=STEPS, token_budget=8, **ROOM).requests
    assert where["prefill_instance"].tolist() == [0, 1, 0, 1, 2]


def test_the_head_of_the_queue_is_what_was_put_there_first() -> None:
    """Prompts wait on both workers: request 5 since before request 3, or the other way round."""

    none, one = np.zeros(2, np.int64), np.ones(2, np.int64)
    there = SimpleNamespace(role=one * PREFILL, queued=one, max_batch=one, prefilling=none, running=none)
    requests = SimpleNamespace(instance=np.array([-1, -1, -1, 1, -1, 0]))
    now: Any = SimpleNamespace(instances=there, requests=requests, queued=lambda i: [5, 3][i : i + 1])
    policy = Dynamo(prefill_queue="fleet")
    policy.seats = one
    policy.pushed = {5: 0, 3: 1}
    assert list(policy._pull(1, now)) == [Requeue(5, 1)]
    policy.pushed = {3: 0, 5: 1}
    assert list(policy._pull(1, now)) == []


# --- planners ---------------------------------------------------------------------------------------------------------

# A prompt token takes 1/64 s and a decode 1/8 s. A prompt of 64 tokens: 1 s; a step of d decodes: d/8 s.
ROW = StepRow(base_s=0.0, per_prefill_token_s=1 / 64, per_sequence_s=1 / 8)
LIMITS = {"ttft_s": 2.0, "itl_s": 0.5}  # four decodes a step, or 8 tokens a second


class Noting(Dynamo):
    """Notes at each tick the time, the workers of each kind, and what is changed to what."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(local_tokens=0, queue=1000, **settings)
        self.ticks: list[tuple[float, int, int]] = []
        self.changes: list[tuple[float, int, str]] = []

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        roles = cluster.instances.role
        counts = int(np.count_nonzero(roles == PREFILL)), int(np.count_nonzero(roles & DECODE))
        self.ticks.append((cluster.now_s, *counts))
        actions = list(super().on_tick(cluster))
        for act in actions:
            assert isinstance(act, SetRole)
            self.changes.append((cluster.now_s, act.instance, act.role))
        return actions


def plan(
    rows: Rows, *, prefill: int = 1, decode: int = 1, off: int = 4, start_s: float = 0.0, **settings: Any
) -> Noting:
    """The run of a planner on a fleet, most of which is off."""
    policy = Noting(**settings)
    pools = {"prefill": prefill, "decode": decode} | ({"off": off} if off else {})
    play(policy, rows, fleet(**pools), row=ROW, token_budget=64, start_s=start_s, **ROOM)
    return policy


def every(period_s: float, count: int, prompt: int, output: int, start_s: float = 0.0) -> Rows:
    return [(start_s + k * period_s, prompt, output) for k in range(count)]


def test_the_load_planner_adds_a_prefill_worker_while_prompts_wait() -> None:
    """Of four prompts three wait at 0.5 s, and the first tick has no trend. Two wait at 1 s: fewer by one, so that none
    will in three intervals. They still do at 1.5 s, two for two workers, but at 2 s the trend is level.
    """
    policy = plan([(0.0, 64, 2)] * 4, planner="load", interval_s=0.5)
    assert policy.changes[:2] == [(0.5, 2, "prefill"), (2.0, 3, "prefill")]


def test_the_sla_planner_counts_workers_for_the_forecast_load() -> None:
    """In 10 s come 20 prompts of 64 tokens with 8 of output.

    Prefill: 2 a second of 1 s each are 2 workers. Decode: 16 tokens a second, by workers that make 8 within the limit,
    are 2 workers. At 40 s nothing has come for an interval.
    """
    policy = plan(every(0.5, 60, 64, 8), planner="sla", interval_s=10.0, planning=LIMITS)
    assert policy.changes == [(10.0, 2, "prefill"), (10.0, 3, "mixed"), (40.0, 0, "off"), (40.0, 3, "off")]


@pytest.mark.parametrize(("predictor", "workers"), [("constant", 3), ("arima", 4)])
def test_predictors(predictor: str, workers: int) -> None:
    """10, 20 and 30 prompts of 1 s in intervals of 10 s: as many again, or 40."""
    rows = [*every(1.0, 10, 64, 2), *every(0.5, 20, 64, 2, 10.0), *every(1 / 3, 30, 64, 2, 20.0), (31.0, 64, 100)]
    policy = plan(rows, planner="sla", interval_s=10.0, planning=LIMITS | {"predictor": predictor})
    assert [prefill for at_s, prefill, _ in policy.ticks if at_s == 40.0] == [workers]


@pytest.mark.parametrize(("interval_s", "expected"), [(8.0, (2.0, 2.0)), (4.0, (2.0, 1.0))])
def test_corrections_are_those_of_the_interval(interval_s: float, expected: tuple[float, float]) -> None:
    """Two requests of 4 s each, with 64 tokens, first ones after 2 s and others every 1/4 s.

    A prompt of 64 takes 1 s. In 8 s one worker had one of them on average, a step of which takes 1/8 s; in 4 s it had
    both, whose step takes 1/4 s.
    """
    two = np.ones(2)
    done = Finished(np.arange(2), np.full(2, 64), np.full(2, 9), 2.0 * two, 0.25 * two)
    found = []

    class Asking(Dynamo):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            found.append(corrections(cluster, done, interval_s))
            return super().route_prefill(request, cluster)

    play(Asking(), [(0.0, 64, 2)], fleet(prefill=1, decode=1), row=ROW, **ROOM)
    assert found == [expected]


SHORT = LIMITS | {"throughput_interval_s": 10.0, "load_interval_s": 1.0}
LAST = (25.0, 64, 2)  # keeps a run going


def test_the_forecast_is_the_floor_of_the_loop_by_load() -> None:
    """Two workers of each kind are the floor of a load that ends at 10 s, until 20 s. Before that there is none."""
    rows = [*every(0.5, 20, 64, 8), LAST]
    policy = plan(rows, planner="both", planning=SHORT)
    of = {at_s: (prefill, decode) for at_s, prefill, decode in policy.ticks}
    assert of[20.0] == (2, 2)
    assert of[21.0] == (1, 1)
    alone = plan(rows, planner="both", planning=SHORT | {"throughput_interval_s": 1000.0})
    assert [tick for tick in alone.ticks if 10.0 < tick[0] < 20.0 and tick[1:] == (1, 1)]


def test_above_the_floor_a_worker_is_added_if_a_next_prompt_would_be_late_on_all() -> None:
    """At 1 s six prompts of a second are left, and a seventh would take 7 s. At 2 s the new worker has none."""
    policy = plan([*[(0.0, 64, 2)] * 7, LAST], planner="both", planning=SHORT)
    assert policy.changes[0] == (1.0, 2, "prefill")
    assert [change for change in policy.changes if change[0] == 2.0] == []


def test_above_the_floor_a_decode_worker_is_added_if_steps_would_be_too_long() -> None:
    """Four decodes and a next one take 0.625 s; three and a next one keep 0.5 s."""
    for count, changes in ((4, [(1.0, 2, "mixed")]), (3, [])):
        rows = [*[(0.0, 1, 30)] * count, LAST]
        policy = plan(rows, planner="both", planning=SHORT)
        assert [change for change in policy.changes if change[0] == 1.0] == changes


@pytest.mark.parametrize(("decodes", "workers"), [(4, 2), (2, 1)])
def test_above_the_floor_a_decode_worker_leaves_if_steps_stay_short_without_it(decodes: int, workers: int) -> None:
    """Of two workers with one request each, one would decode two and a next one in 0.375 s, within 0.8 of 0.5 s; with
    two each, four and a next one take 0.625 s.
    """
    rows = [*every(0.1, decodes, 1, 30), LAST]
    policy = plan(rows, decode=2, off=0, planner="both", planning=SHORT)
    assert policy.ticks[1][2] == workers


@pytest.mark.parametrize(("tokens", "workers"), [(48, 2), (24, 1)])
def test_above_the_floor_a_prefill_worker_leaves_if_prompts_stay_in_time_without_it(tokens: int, workers: int) -> None:
    """A prompt of 0.75 s waits on each of two workers. One would have 1.5 s of them; a next prompt leaves 1.25 s of the
    limit for the queue, of which 0.8 are 1 s. With prompts of 0.375 s it would have 0.75 s, of 1.3.
    """
    rows = [(0.9, tokens, 2), (0.9, tokens, 2), LAST]
    policy = plan(rows, prefill=2, off=0, planner="both", planning=SHORT)
    assert policy.ticks[1][1] == workers


def test_no_loop_acts_while_a_worker_changes() -> None:
    """A start takes 3.5 s: what is wanted at 1 s is there at 4.5 s, and a further worker is asked for at 5 s."""
    policy = plan([(0.25 * k, 64, 2) for k in range(100)], planner="both", planning=SHORT, start_s=3.5)
    assert [at_s for at_s, _, _ in policy.changes[:2]] == [1.0, 5.0]


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy.planning.predictor must be one of constant, arima; got 'prophet'"):
        Dynamo(planner="sla", planning={"predictor": "prophet"})
    with pytest.raises(InputError, match=r"load_interval_s must not exceed throughput_interval_s, 180.0; got 200"):
        Dynamo(planner="both", planning={"load_interval_s": 200})
    with pytest.raises(InputError, match=r"policy.prefill_queue must be one of worker, fleet; got 'global'"):
        Dynamo(prefill_queue="global")  # type: ignore[arg-type]
    assert Dynamo(planner="both").tick_s == 5.0
    assert Dynamo(planner="both").planning["throughput_interval_s"] == 180.0
