"""Clients that give up, and come back, worked out by hand in both engines: a step lasts 1 s, and has 10 tokens."""

from __future__ import annotations

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Closed, Load, Open, Patience
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.policy import Aggregated, Policy, Preempt
from framework.policy.view import Cluster, Request
from framework.result import STATES, Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.workload import Workload
from tests.engine.test_decisions import ENGINES, GPU, TIMING, Rows
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL


def play(engine: str, rows: Rows, load: Load, policy: Policy | None = None) -> Result:
    """One instance with one seat."""
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    config = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=100, token_budget=10, max_batch=1)
    result = simulate(
        Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs)),
        ClusterSpec((PoolSpec("mixed", "mixed", 1, GPU),), LinkSpec(32.0)),
        MODEL,
        TIMING,
        EngineConfig(**vars(config) | {"implementation": engine}),
        policy or Aggregated(),
        load=load,
    )
    check_result(result)
    return result


def ends(result: Result) -> list[tuple[str, str, float]]:
    """State, reason and time of each end."""
    rows = result.requests
    return [(STATES[row["state"]], result.reasons[row["reason"]], float(row["end_s"])) for row in rows]


@ENGINES
def test_who_waits_too_long_is_cancelled(engine: str) -> None:
    """Request 1 waits for the seat of request 0, which ends at 6 s."""
    result = play(engine, [(0, 2, 6), (0.5, 2, 2)], Open(patience=Patience(2.0)))
    assert ends(result) == [("finished", "", 6.0), ("cancelled", "gave up", 2.5)]
    summary = summarize(result, Slo(ttft_s=100.0, tpot_s=None))
    assert (summary["cancelled"], summary["gave_up"], summary["sent_again"]) == (1, 1, 0)
    assert summary["slo_attainment"] == 0.5


@ENGINES
def test_it_comes_back_later_each_time(engine: str) -> None:
    """Request 1 is given up at 2.5 s, comes again at 3.5 s, is given up at 5.5 s, and comes again at 7.5 s."""
    result = play(engine, [(0, 2, 6), (0.5, 2, 2)], Open(patience=Patience(2.0, retries=2, retry_backoff_s=1.0)))
    assert token_times(result) == [[1, 2, 3, 4, 5, 6], [8.5, 9.5]]
    assert result.attempts.tolist() == [1, 3]
    assert result.requests["arrival_s"].tolist() == [0, 0.5]
    assert summarize(result, Slo(ttft_s=7.9, tpot_s=None))["slo_attainment"] == 0.5  # it waited for 8 s


@ENGINES
def test_a_prompt_under_way_is_given_up_at_the_end_of_a_step_that_does_not_complete_it(engine: str) -> None:
    """25 tokens take three steps."""
    given_up = play(engine, [(0, 25, 2)], Open(patience=Patience(1.5)))
    assert ends(given_up) == [("cancelled", "gave up", 2.0)]
    assert given_up.instances["prefill_tokens"].tolist() == [20]
    served = play(engine, [(0, 25, 2)], Open(patience=Patience(2.5)))
    assert ends(served) == [("finished", "", 4.0)]


@ENGINES
def test_clients_of_a_closed_load_that_gave_up_back_off(engine: str) -> None:
    """Two clients: request 1 is given up at 2 s; its client takes request 2 up at 5 s and gets the seat at 6 s."""
    load = Closed(2, duration_s=50.0, backoff_s=3.0, patience=Patience(2.0))
    result = play(engine, [(0, 2, 6), (0, 2, 2), (0, 2, 2)], load)
    assert ends(result) == [("finished", "", 6.0), ("cancelled", "gave up", 2.0), ("finished", "", 8.0)]


@ENGINES
def test_nobody_comes_back_once_the_load_is_over(engine: str) -> None:
    load = Closed(2, duration_s=3.0, backoff_s=3.0, patience=Patience(2.0, retries=1, retry_backoff_s=1.0))
    result = play(engine, [(0, 2, 6), (0, 2, 2)], load)
    assert ends(result) == [("finished", "", 6.0), ("cancelled", "gave up", 2.0)]


class Late(Aggregated):
    """Serves nobody before 3 s."""

    def admit(self, request: Request, cluster: Cluster) -> bool:
        return cluster.now_s >= 3.0


@ENGINES
def test_a_client_that_is_refused_does_not_wait_yet(engine: str) -> None:
    """It is refused at 0, 1 and 2 s, which counts for neither its patience nor its attempts."""
    result = play(engine, [(0, 2, 2)], Closed(1, duration_s=50.0, backoff_s=1.0, patience=Patience(2.0)), Late())
    assert ends(result) == [("finished", "", 5.0)]
    assert result.attempts.tolist() == [1]


class Holding(Aggregated):
    """Takes request 0 off, and never lets it go on."""

    tick_s = 0.5

    def on_tick(self, cluster: Cluster) -> list[Preempt]:
        return [Preempt(0)] if cluster.now_s == 0.5 else []


@ENGINES
def test_who_is_held_for_ever_is_given_up(engine: str) -> None:
    result = play(engine, [(0, 25, 2)], Open(patience=Patience(7.25)), Holding())
    assert ends(result) == [("cancelled", "gave up", 7.25)]


def test_retries_need_patience() -> None:
    with pytest.raises(InputError, match=r"load\.patience\.retries=2 needs a load\.patience\.wait_s"):
        Patience(retries=2)
