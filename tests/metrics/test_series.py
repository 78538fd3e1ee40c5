"""A run over time, and what happened to each request, against a second, plain computation over drawn runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.metrics import series
from framework.metrics.paper_scores import gaps_of
from framework.metrics.phases import PHASES, _by_instance, phase_table
from framework.metrics.series import Windows, span_s, time_series
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.metrics.token_gaps import gap_shares
from framework.result import Result
from tests.helpers.agreement import drawn
from tests.helpers.differences import run_engine
from tests.helpers.families import FAMILIES
from tests.helpers.recovery import step_times, token_times
from tests.helpers.results import reduced_result, small_result

_FAMILIES = [*FAMILIES][:6]
_NEAR = 1e-9


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_second_computation_over_time(family: str) -> None:
    result, _ = run_engine(drawn(family, 41))
    evaluation = evaluate(result, Slo(ttft_s=0.5, tpot_s=0.05))
    good = evaluation.requests["good"].to_numpy()
    start_s, end_s = span_s(result)
    window_s = max((end_s - start_s) / 4.5, 1e-3)
    rows = time_series(result, good, window_s).rows(named=True)
    for row in rows:
        wanted = plain_window(result, good, row["start_s"], row["start_s"] + row["window_s"], end_s, row["pool"])
        for name, value in wanted.items():
            near = None if value is None else pytest.approx(value, rel=1e-7, abs=1e-9)
            assert row[name] == near, f"{family} {name} {row}"
    whole = pl.DataFrame(rows).filter(pl.col("pool").is_null())
    assert whole["arrivals"].sum() == (~np.isnan(result.requests["arrival_s"])).sum()
    assert whole["good"].sum() == good.sum()
    busy_s = sum(row["utilization"] * row["window_s"] for row in whole.iter_rows(named=True)) * len(result.instances)
    assert busy_s == pytest.approx(result.instances["busy_s"].sum(), rel=1e-9)


def plain_window(
    result: Result, good: np.ndarray, begin_s: float, until_s: float, end_s: float, pool: str | None
) -> dict[str, Any]:
    """One row, request by request and step by step."""
    names = [p.name for p in result.cluster.pools]
    own = {i for i in range(len(result.instances)) if pool in (None, names[result.instances["pool"][i]])}
    last = until_s >= end_s * (1 - 1e-12)
    length_s = until_s - begin_s

    def inside(time_s: float) -> bool:
        return begin_s <= time_s < until_s or (last and time_s >= begin_s)

    def overlap(one_s: float, other_s: float) -> float:
        return max(0.0, min(other_s, until_s) - max(one_s, begin_s))

    came = good_came = done = good_done = 0
    queue_s = 0.0
    for request, is_good in zip(result.requests, good, strict=True):
        here = pool is None or int(request["prefill_instance"]) in own
        if here and inside(request["arrival_s"]):
            came, good_came = came + 1, good_came + bool(is_good)
        if here:
            admitted = request["start_s"] == request["start_s"]
            queue_s += overlap(request["arrival_s"], request["start_s"] if admitted else request["end_s"])
        ended_on = request["decode_instance"] if request["decode_instance"] >= 0 else request["prefill_instance"]
        if request["state"] == 1 and (pool is None or int(ended_on) in own) and inside(request["end_s"]):
            done, good_done = done + 1, good_done + bool(is_good)
    decoding_s = context_s = busy_s = 0.0
    for instance in own:
        covered_s = -1.0
        steps = sorted(step_times(result).get(instance, []))
        for one_s, other_s, batch, _, context in steps:
            decoding_s += batch * overlap(one_s, other_s)
            context_s += context * (batch > 0) * overlap(one_s, other_s)
            busy_s += overlap(max(one_s, covered_s), max(other_s, covered_s))
            covered_s = max(covered_s, other_s)
    return {
        "arrivals": came,
        "attainment": good_came / came if came else None,
        "completions": done,
        "good": good_done,
        "queue": queue_s / length_s,
        "decoding": decoding_s / length_s,
        "batch": decoding_s / busy_s if busy_s else None,
        "utilization": busy_s / length_s / len(own),
        "decode_kv_tokens": context_s / length_s,
    }


@pytest.mark.parametrize("family", _FAMILIES)
def test_phases_are_those_of_steps_and_add_up(family: str) -> None:
    result, _ = run_engine(drawn(family, 42))
    table = phase_table(result)
    e2e_s = evaluate(result, Slo()).requests["e2e_s"].to_numpy()
    finished = ~np.isnan(e2e_s)
    phases = table.to_numpy()
    assert np.isnan(phases[~finished]).all()
    assert phases[finished].sum(axis=1) == pytest.approx(e2e_s[finished], rel=_NEAR)
    assert (phases[finished] >= 0).all()
    for name, values in plain_decoding(result).items():
        assert table[name].to_numpy()[finished] == pytest.approx(np.array(values)[finished], rel=1e-7, abs=1e-9), name


def plain_decoding(result: Result) -> dict[str, list[float]]:
    """Of each request, what the steps that it took part in were."""
    decodes = {i: [step for step in steps if step[2]] for i, steps in step_times(result).items()}
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(result.requests))
    for row in result.token_log:
        if row["instance"] < 0:
            continue
        before_s = None
        for begin_s, end_s, _, prefills, _ in decodes[int(row["instance"])][row["first_step"] : row["last_step"]]:
            found["beside_prefill_s" if prefills else "decode_s"][row["request"]] += end_s - begin_s
            found["stalled_s"][row["request"]] += 0.0 if before_s is None else begin_s - before_s
            before_s = end_s
    return found


def test_phases_of_a_run_by_hand() -> None:
    rows = phase_table(small_result()).rows(named=True)
    assert rows[0] == dict.fromkeys(PHASES, 0.0) | {
        "queue_s": 0.5,
        "prefill_s": 0.5,
        "transfer_s": 0.125,
        "join_s": 0.0,
        "decode_s": 0.375,
    }
    assert rows[2] == dict.fromkeys(PHASES)


def test_a_reduced_log_leaves_what_requests_tell() -> None:
    full = small_result()
    reduced = reduced_result(gaps_of(full))
    one, other = (time_series(each, np.ones(5, np.bool_), 0.5) for each in (full, reduced))
    assert other["queue"].to_list() == one["queue"].to_list()
    assert other["batch"].null_count() == len(other)
    assert other.columns == one.columns
    row = phase_table(reduced).row(0, named=True)
    assert (row["transfer_s"], row["decode_s"], row["stalled_s"]) == (0.125, 0.375, None)


def test_windows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_WINDOWS", 7)
    table = time_series(small_result(), np.ones(5, np.bool_), 1e-9).filter(pl.col("pool").is_null())
    assert len(table) == 7
    assert table["window_s"].sum() == pytest.approx(2.5)


@pytest.mark.parametrize("family", _FAMILIES)
def test_the_distribution_of_gaps_is_that_of_tokens(family: str) -> None:
    scenario = drawn(family, 43)
    result, _ = run_engine(replace(scenario, engine=replace(scenario.engine, log="full")))
    workload = result.workload
    upto_s, shares = gap_shares(result.step_log, result.token_log, workload.output_tokens, len(result.instances))
    gaps_s = np.sort(np.concatenate([[np.nan], *(np.diff(times) for times in token_times(result))]))[:-1]
    counts = np.searchsorted(gaps_s, upto_s * (1 + 1e-9), side="right")
    assert len(shares) == 0 or shares[-1] == 1.0
    assert np.abs(counts / max(1, len(gaps_s)) - shares).max(initial=0.0) <= 0.02


def test_the_last_window_ends_with_the_run() -> None:
    """From 0.5 to 3 s in windows of 1 s: the last one has half a second, in which only the decode instance works."""
    table = time_series(small_result(), np.ones(5, np.bool_), 1.0).filter(pl.col("pool").is_null())
    assert table["start_s"].to_list() == [0.5, 1.5, 2.5]
    assert table["window_s"].to_list() == [1.0, 1.0, 0.5]
    assert table["utilization"].to_list() == [0.25, (1.0 + 0.875) / 2, 0.5]
    assert table["arrivals"].to_list() == [4, 1, 0]
    assert table["completions"].to_list() == [0, 2, 1]


@pytest.mark.parametrize(
    ("span_s", "window_s", "edges_s"),
    [
        (2.0, 1.0, [1.0, 2.0, 3.0]),
        (2.0, 5.0, [1.0, 3.0]),
        (2.0, 1.5, [1.0, 2.5, 3.0]),
        (0.0, 1.0, [1.0, 1.0]),
    ],
)
def test_windows_cover_the_run_and_no_more(span_s: float, window_s: float, edges_s: list[float]) -> None:
    count = len(edges_s) - 1
    windows = Windows(1.0, 1.0 + span_s, window_s, count)
    assert windows.edges_s.tolist() == edges_s
    assert windows.index(np.array([1.0, edges_s[-1], 99.0, -5.0])).tolist() == [0, count - 1, count - 1, 0]
    if count > 1:
        assert windows.index(np.array([edges_s[1], edges_s[1] - 1e-9])).tolist() == [1, 0]


def test_a_run_ends_with_its_last_step_or_its_last_request() -> None:
    result = small_result()
    assert span_s(result) == (0.5, 3.0)
    leaps = result.step_log.copy()
    leaps["steps"][-1], leaps["increment_s"][-1] = 4, 0.25  # from 2 s on: 0.5, 0.75, 1 and 1.25 s
    assert span_s(replace(result, step_log=leaps)) == (0.5, 5.5)
    assert span_s(replace(result, step_log=leaps[:0])) == (0.5, 3.0)


def test_leaps_of_two_streams_are_put_in_order() -> None:
    """Where the log does not have the steps of an instance in their order, as of two streams, they are sorted."""
    assert _by_instance(np.array([1, 0, 1, 0]), np.array([0, 5, 3, 2])).tolist() == [3, 1, 0, 2]
    assert _by_instance(np.array([1, 0, 1, 0]), np.array([0, 2, 3, 5])).tolist() == [1, 3, 0, 2]
    many = np.array([40_000, 1, 40_000])
    assert _by_instance(many, np.array([0, 0, 1])).tolist() == [1, 0, 2]


def test_a_leap_within_another_of_its_instance_adds_nothing() -> None:
    alone_s, until_s = series._first_covered(np.array([0, 0, 0]), np.array([0.0, 1.0, 3.0]), np.array([4.0, 2.0, 5.0]))
    assert alone_s.tolist() == [0.0, 4.0, 4.0]
    assert until_s.tolist() == [4.0, 4.0, 5.0]
