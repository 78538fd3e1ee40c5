"""Mean gaps by their position in the output, and the idle seats of static batches, against single tokens and steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.metrics.service import by_position as module
from framework.metrics.service.by_position import by_position
from framework.metrics.service.static_batches import idle_seats
from framework.metrics.summary import evaluate
from framework.policy import Aggregated
from framework.policy.base import Policy
from framework.report.page.latency import positions
from framework.result import FINISHED, Result
from framework.simulate import simulate
from framework.system.cluster import disaggregated, mixed
from framework.timing.affine import Affine
from framework.workload import Workload
from policies.distserve import DistServe
from tests.helpers.recovery import token_times
from tests.helpers.results import GPU, reduced_result, small_result
from tests.helpers.scenarios import MODEL
from tests.report.test_run_page import SLO

TIMING = Affine(base_s=0.01, per_prefill_token_s=1e-4, per_sequence_s=1e-3, per_context_token_s=1e-6)


def run(policy: Policy, cluster: Any, **engine: Any) -> Result:
    draw = np.random.default_rng(3)
    sizes = draw.integers(1, 60, 80), draw.integers(1, 120, 80)
    workload = Workload(np.sort(draw.uniform(0, 4, 80)), *sizes)
    return simulate(workload, cluster, MODEL, TIMING, EngineConfig(**engine), policy)


RUNS = {
    "mixed": lambda: run(Aggregated(), mixed(2, GPU)),
    "disaggregated": lambda: run(DistServe(), disaggregated(1, 2, GPU)),
    "recomputed": lambda: run(DistServe(), disaggregated(1, 2, GPU), first_token="recomputed"),
    "preempted": lambda: run(Aggregated(), mixed(1, GPU), kv_tokens=400),
    "swapped": lambda: run(Aggregated(), mixed(1, GPU), kv_tokens=400, preemption="swap"),
    "static": lambda: run(Aggregated(), mixed(2, GPU), batching="static", max_batch=6),
}


@pytest.mark.parametrize("name", RUNS)
def test_means_are_those_of_single_gaps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST", 3)
    monkeypatch.setattr(module, "_TIMES", 2)
    result = RUNS[name]()
    if name in ("preempted", "swapped"):
        assert result.requests["preemptions"].sum() > 0
    gaps: dict[int, list[float]] = {}
    for times, state in zip(token_times(result), result.requests["state"], strict=True):
        for position, gap_s in enumerate(np.diff(times), 1):
            if state == FINISHED:
                gaps.setdefault(position, []).append(gap_s)
    found = by_position(result)
    assert found
    assert [one["from_token"] for one in found[:3]] == [1, 4, 7]
    for one in found:
        own = [gap_s for at in range(one["from_token"], one["to_token"]) for gap_s in gaps.pop(at, [])]
        assert one["gaps"] == len(own)
        assert one["mean_itl_ms"] == pytest.approx(1e3 * np.mean(own), rel=1e-9)
    assert gaps == {}
    total_ms = sum(one["gaps"] * one["mean_itl_ms"] for one in found) / sum(one["gaps"] for one in found)
    assert total_ms == pytest.approx(evaluate(result, SLO).summary["mean_itl_ms"], rel=1e-9)


def test_buckets_are_powers() -> None:
    assert by_position(small_result()) == [{"from_token": 1, "to_token": 17, "gaps": 5, "mean_itl_ms": 400.0}]
    result = RUNS["mixed"]()
    edges = [(one["from_token"], one["to_token"]) for one in by_position(result) or []]
    assert edges == [(1, 17), (17, 65), (65, 257)]
    assert "TBT by position" in positions(result)[0]
    assert positions(small_result()) == []


def test_what_is_not_known_is_none() -> None:
    result = RUNS["mixed"]()
    assert by_position(run(Aggregated(), mixed(1, GPU), speculation=Speculation(depth=2, acceptance=0.5))) is None
    assert by_position(reduced_result(evaluate_gaps())) is None
    assert idle_seats(result) == {}


def evaluate_gaps() -> Any:
    from framework.metrics.paper_scores import gaps_of

    return gaps_of(small_result())


def test_seats_of_a_static_batch_are_idle_until_its_last_request_has_ended() -> None:
    """Two requests of 3 and 7 tokens: 2 decode steps of both, then 4 of one; steps take as long whatever they hold."""
    workload = Workload(np.array([0.0, 0.0]), np.array([16, 16]), np.array([3, 7]))
    timing = Affine(base_s=0.125)
    engine = EngineConfig(batching="static", kv_tokens=4096)
    result = simulate(workload, mixed(1, GPU), MODEL, timing, engine, Aggregated())
    assert idle_seats(result) == {"idle_seat_share": pytest.approx(4 / 12)}
    alike = Workload(np.array([0.0, 0.0, 9.0]), np.array([16, 16, 16]), np.array([5, 5, 9]))
    result = simulate(alike, mixed(1, GPU), MODEL, timing, engine, Aggregated())
    assert idle_seats(result) == {"idle_seat_share": 0.0}
    reduced = simulate(
        alike, mixed(1, GPU), MODEL, timing, EngineConfig(batching="static", log="reduced"), Aggregated()
    )
    assert idle_seats(reduced) == {"idle_seat_share": None}
