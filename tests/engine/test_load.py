"""Closed loops: how many requests are under way, and who comes next."""

from __future__ import annotations

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Closed, Load, Open
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.affine import Affine
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)


def run(workload: Workload, load: Load, row: StepRow, model: Model = MODEL) -> Result:
    engine = EngineConfig(kv_tokens=4096, batching="mixed")
    result = simulate(workload, mixed(1, GPU), model, RowTiming({"g": row}), engine, load=load)
    check_result(result)
    return result


def requests(count: int, output_tokens: int = 4) -> Workload:
    outputs = np.arange(count) % output_tokens + 1
    return Workload(np.linspace(0.0, 100.0, count), np.full(count, 8), outputs)


def under_way(result: Result) -> int:
    """Most requests between their arrival and their end; one that ends at a time leaves before others arrive."""
    rows = result.requests
    times = sorted([(t, 1) for t in rows["arrival_s"]] + [(t, 0) for t in rows["end_s"]])
    steps = np.cumsum([1 if arrives else -1 for _, arrives in times])
    return int(steps.max())


@pytest.mark.parametrize("concurrency", [1, 3, 7])
def test_as_many_requests_are_under_way_as_there_are_clients(concurrency: int) -> None:
    result = run(requests(40), Closed(concurrency), StepRow(base_s=0.25))
    assert under_way(result) == concurrency
    assert result.load == f"closed, concurrency {concurrency}"
    rows = result.requests
    # requests are taken up in trace order, each at the moment at which another ends
    assert np.all(np.diff(rows["arrival_s"]) >= 0)
    assert np.all(rows["arrival_s"][:concurrency] == 0.0)
    assert set(rows["arrival_s"][concurrency:]) <= set(rows["end_s"])


def test_one_client_waits_for_each_answer() -> None:
    rows = run(requests(6), Closed(1), StepRow(base_s=0.25)).requests
    assert rows["end_s"].tolist() == np.cumsum(0.25 * (np.arange(6) % 4 + 1)).tolist()
    assert rows["arrival_s"].tolist() == [0.0, *rows["end_s"][:-1].tolist()]


def test_more_clients_than_requests() -> None:
    assert np.all(run(requests(3), Closed(9), StepRow(base_s=0.25)).requests["arrival_s"] == 0.0)


def test_a_client_replays_whole_sessions() -> None:
    ones = np.ones(6, np.int64)
    workload = Workload(
        np.arange(6.0), ones, ones, previous=np.array([-1, -1, 0, -1, 2, 3]), think_s=np.array([9.0, 9, 2, 9, 1, 3])
    )
    rows = run(workload, Closed(1), StepRow(base_s=0.5)).requests
    # session 0: requests 0, 2, 4; then request 1; then requests 3, 5; think time only between turns
    assert rows["arrival_s"].tolist() == [0.0, 5.0 - 0.5, 2.5, 5.0, 4.0, 8.5]


def test_a_rejected_request_frees_its_client() -> None:
    workload = Workload(np.zeros(3), np.array([8, MODEL.max_context, 8]), np.array([2, 2, 2]))
    result = run(workload, Closed(1), StepRow(base_s=0.25))
    assert result.requests["state"].tolist() == [1, 2, 1]
    assert result.requests["arrival_s"].tolist() == [0.0, 0.5, 0.5]


def test_an_output_ends_where_the_context_does() -> None:
    """Of 140 tokens of context a prompt of 138 leaves two, one of 139 one; one of 140 is refused."""
    prompts = MODEL.max_context - np.array([2, 1, 0, 2])
    workload = Workload(np.array([0.0, 10.0, 20.0, 30.0]), prompts, np.array([9, 9, 9, 2]))
    result = run(workload, Open(), StepRow(base_s=0.25))
    assert result.requests["emitted"].tolist() == [2, 1, 0, 2]
    assert [result.reasons[k] for k in result.requests["reason"]] == ["length", "length", "context", ""]
    assert result.requests["end_s"].tolist() == [0.5, 10.25, 20.0, 30.5]
    assert result.workload.output_tokens.tolist() == [2, 1, 9, 2]


@pytest.mark.parametrize("load", [Open(), Closed(2)], ids=lambda load: str(load.name))
def test_the_way_to_the_scheduler_counts_for_the_client(load: Load) -> None:
    near, far = (run(requests(8), load, StepRow(base_s=0.25, request_s=delay)).requests for delay in (0.0, 0.5))
    ttft_near, ttft_far = (rows["first_token_s"] - rows["arrival_s"] for rows in (near, far))
    assert np.all(ttft_far >= 0.5 + 0.25)
    if load.clients is None:
        assert ttft_far == pytest.approx(ttft_near + 0.5, abs=1e-12)
        assert far["arrival_s"].tolist() == requests(8).arrival_s.tolist()


def test_the_front_end_takes_in_one_request_after_another() -> None:
    ones = np.ones(3, np.int64)
    workload = Workload(np.array([0.0, 0.0, 5.0]), ones, ones)
    timing = Affine(base_s=0.25, request_s=0.5, intake_s=1.0)
    rows = simulate(workload, mixed(1, GPU), MODEL, timing).requests
    assert rows["arrival_s"].tolist() == [0.0, 0.0, 5.0]
    assert rows["start_s"].tolist() == [1.5, 2.5, 6.5]  # the way there, and a second each


def test_open_is_the_default() -> None:
    workload = requests(5)
    ours = simulate(workload, mixed(1, GPU), MODEL, RowTiming({"g": StepRow(base_s=1.0)}))
    assert ours.load == "open"
    assert ours.requests["arrival_s"].tolist() == workload.arrival_s.tolist()


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "many"])
def test_impossible_concurrency_is_refused(concurrency: object) -> None:
    with pytest.raises(InputError, match=r"^load\.concurrency must be"):
        Closed(concurrency)  # type: ignore[arg-type]


def test_time_past_the_end_of_measurement_is_counted() -> None:
    row = StepRow(base_s=0.25, tokens_limit=8.0)
    within = run(requests(4), Closed(1), row)
    assert (within.extrapolated, within.extrapolation) == (0.0, 1.0)
    beyond = run(requests(4), Closed(2), row)  # two prompts of 8 tokens in one step
    assert beyond.extrapolation == 16 / 8
    assert 0.0 < beyond.extrapolated < 1.0
    busy_s = beyond.step_log["steps"] * beyond.step_log["first_s"]
    past = beyond.step_log["prefill_tokens"] + beyond.step_log["batch"] > 8
    assert beyond.extrapolated == pytest.approx(busy_s[past].sum() / busy_s.sum())


def test_parallelism_tells_its_gpus() -> None:
    parallelism = Parallelism(tp=2, pp=3, ep=4, dp=4)
    assert (parallelism.gpus, parallelism.stage_gpus, parallelism.expert_tp) == (24, 8, 2)
    assert (str(parallelism), str(Parallelism())) == ("tp2-pp3-ep4-dp4", "tp1")
    with pytest.raises(InputError, match="ep = 3 does not divide tp \\* dp = 8"):
        Parallelism(tp=8, ep=3)
