"""Numbers of a run worked out by hand."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate, git_revision, summarize
from framework.result import Gaps, Spread
from tests.conftest import ROOT
from tests.helpers.results import FINISHED, REJECTED, REQUEST_FIELDS, HandMade, records, reduced_result, small_result

SLO = Slo(ttft_s=1.0, tpot_s=0.25)
LATENCY_KEYS = [
    f"{statistic}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el", "queue")
    for statistic in ("mean", "median", "std", "p90", "p95", "p99")
]
BENCH_KEYS = [  # of `vllm bench serve`, in its order
    *("duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
    *("output_throughput", "total_token_throughput"),
    *LATENCY_KEYS,
]
NONE = None


def without_steps(rows: list[dict[str, Any]]) -> HandMade:
    """Requests that no decode step was made for."""
    made = small_result()
    return replace(
        made, requests=records(REQUEST_FIELDS, rows), step_log=made.step_log[:0], token_log=made.token_log[:0]
    )


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("request_id", [0, 1, 2, 3, 4]),
        ("arrival_s", [0.5, 1.0, 1.0, 2.0, 0.5]),
        ("input_tokens", [100, 50, 5000, 50, 200]),
        ("output_tokens", [3, 1, 10, 5, 4]),
        ("state", ["finished", "finished", "rejected", "failed", "finished"]),
        ("reason", [NONE, NONE, "kv", "kv", NONE]),
        ("prefill_instance", [0, 0, NONE, 0, 0]),
        ("decode_instance", [1, NONE, NONE, NONE, 1]),
        ("queue_s", [0.5, 0.5, NONE, 0.0, 0.5]),
        ("prefill_s", [0.5, 0.5, NONE, 0.5, 0.5]),
        ("transfer_s", [0.125, NONE, NONE, NONE, 0.25]),
        ("ttft_s", [1.0, 1.0, NONE, 0.5, 1.0]),
        ("tpot_s", [0.25, NONE, NONE, NONE, 0.5]),
        ("tbt_p99_s", [0.25, NONE, NONE, NONE, 0.5]),
        ("tbt_max_s", [0.25, NONE, NONE, NONE, 0.5]),
        ("e2e_s", [1.5, 1.0, NONE, NONE, 2.5]),
        ("cached_tokens", [64, 0, 0, 0, 0]),
        ("preemptions", [0, 0, 0, 0, 2]),
        ("migrations", [1, 0, 0, 0, 0]),
        ("predicted_output_tokens", [2.5, NONE, NONE, NONE, NONE]),
        ("ttft_ok", [True, True, False, True, True]),
        ("tpot_ok", [True, True, False, False, False]),
        ("good", [True, True, False, False, False]),
    ],
)
def test_request_table(column: str, values: list[Any]) -> None:
    assert evaluate(small_result(), SLO).requests[column].to_list() == values


def test_request_table_has_these_columns_in_this_order() -> None:
    assert evaluate(small_result(), SLO).requests.columns == [
        *("request_id", "arrival_s", "input_tokens", "output_tokens", "state", "reason", "prefill_instance"),
        *(
            "decode_instance",
            "queue_s",
            "prefill_s",
            "transfer_s",
            "ttft_s",
            "tpot_s",
            "tbt_p99_s",
            "tbt_max_s",
            "e2e_s",
        ),
        *("cached_tokens", "preemptions", "migrations", "predicted_output_tokens", "ttft_ok", "tpot_ok", "good"),
    ]


def test_the_table_has_what_the_trace_says_of_classes_and_sessions() -> None:
    result = small_result()
    said: dict[str, Any] = {
        "slo_class": ("chat", "batch", "chat", "chat", "batch"),
        "priority": np.array([0, 2, 0, 1, 0]),
        "session_id": np.array([7, -1, 7, 8, -1]),
        "turn": np.array([0, 0, 1, 0, 0]),
    }
    table = evaluate(replace(result, workload=replace(result.workload, **said)), SLO).requests
    assert table.columns[4:8] == list(said)
    assert table["slo_class"].to_list() == ["chat", "batch", "chat", "chat", "batch"]
    assert table["priority"].to_list() == [0, 2, 0, 1, 0]
    assert table["session_id"].to_list() == [7, NONE, 7, 8, NONE]
    assert table["turn"].to_list() == [0, NONE, 1, 0, NONE]


def test_the_summary_begins_with_the_keys_of_a_benchmark_and_ends_with_where_it_comes_from() -> None:
    """All of its keys: test_figures."""
    keys = list(summarize(small_result(), SLO))
    assert keys[: len(BENCH_KEYS)] == BENCH_KEYS
    assert keys[-2:] == ["versions", "git_revision"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("duration", 2.5),
        ("completed", 3),
        ("offered", 5),
        ("rejected", 1),
        ("failed", 1),
        ("preemptions", 2),
        ("out_of_memory_rate", 2 / 5),
        ("preempted_rate", 1 / 5),
        ("mean_queue_ms", 500.0),
        ("std_queue_ms", 0.0),
        ("migrations", 1),
        ("total_input_tokens", 350),
        ("total_output_tokens", 8),
        ("request_throughput", 3 / 2.5),
        ("request_goodput", 2 / 2.5),
        ("window_s", 1.0 + 0.25 * (2 + 0 + 9 + 4 + 3) / 5),  # what the SLO allows one request: arrivals last 1.5 s
        ("window_is_short", True),
        ("goodput_rps", 2 / 1.9),
        ("goodput_per_gpu", 2 / 1.9 / 3),
        ("gpus", 3),
        ("gpus_on", 3),
        ("gpu_hours", 3 * 2.5 / 3600),
        ("output_throughput", 8 / 2.5),
        ("total_token_throughput", 358 / 2.5),
        ("slo_attainment", 2 / 5),
        ("mean_ttft_ms", 1000.0),
        ("std_ttft_ms", 0.0),
        ("mean_tpot_ms", 375.0),
        ("p99_tpot_ms", 497.5),
        ("mean_itl_ms", 400.0),
        ("median_itl_ms", 500.0),
        ("p90_itl_ms", 500.0),
        ("std_itl_ms", 1e3 * float(np.std([0.25, 0.25, 0.5, 0.5, 0.5]))),
        ("median_e2el_ms", 1500.0),
        ("p90_e2el_ms", 2300.0),
        ("cache_hit_rate", 64 / 400),
        ("kv_utilization", 0.3),
        ("mean_prefill_batch_tokens", 400 / 3),
        ("energy_j", (250 + 600 * 1.5) + 2 * (250 + 600 * 1.25)),
        ("cost_usd", 3 * 3.0 * 2.5 / 3600),
        ("energy_per_token_j", ((250 + 600 * 1.5) + 2 * (250 + 600 * 1.25)) / 8),
        ("usd_per_million_good_tokens", 3 * 3.0 * 1.9 / 3600 / (3 + 1) * 1e6),
        ("good_per_usd", 2 / (3 * 3.0 * 1.9 / 3600)),
    ],
)
def test_summary(key: str, value: float) -> None:
    assert summarize(small_result(), SLO)[key] == pytest.approx(value, rel=1e-12)


def test_each_class_has_its_figures() -> None:
    result = small_result()
    result = replace(result, workload=replace(result.workload, slo_class=("chat", "batch", "chat", "batch", "chat")))
    summary = summarize(result, SLO)
    assert list(summary["classes"]) == ["batch", "chat"]
    batch, chat = summary["classes"].values()
    assert (batch["offered"], batch["completed"], batch["out_of_memory"]) == (2, 1, 1)
    assert (chat["offered"], chat["completed"], chat["slo_attainment"]) == (3, 2, 1 / 3)
    assert chat["request_goodput"] == batch["request_goodput"] == 1 / 2.5
    assert chat["goodput_rps"] == batch["goodput_rps"] == pytest.approx(1 / 1.9)
    assert (batch["mean_tpot_ms"], chat["mean_tpot_ms"], chat["p90_tpot_ms"]) == (NONE, 375.0, pytest.approx(475.0))
    assert set(LATENCY_KEYS) - set(chat) == {key for key in LATENCY_KEYS if "itl" in key}


def test_provenance() -> None:
    summary = summarize(small_result(seed=7), SLO)
    assert summary["policy"] == "distserve"
    assert summary["trace"] == "mooncake"
    assert summary["trace_source"] == "twin"
    assert summary["trace_sha256"] == "ab" * 32
    assert summary["timing_source"] == "affine"
    assert summary["seed"] == 7
    assert summary["versions"]["numpy"] == np.__version__
    assert summary["versions"]["polars"] == pl.__version__


def test_limits_that_are_not_in_force() -> None:
    assert evaluate(small_result(), Slo(ttft_s=1.0, tpot_s=None)).requests["good"].to_list() == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert evaluate(small_result(), Slo(ttft_s=0.9, tpot_s=None)).requests["good"].sum() == 0
    assert evaluate(small_result(), Slo(ttft_s=None, tpot_s=None)).requests["good"].sum() == 3


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, [True, True, False, False, True]),
        ({"tbt_p99_s": 0.49}, [True, True, False, False, False]),
        ({"tbt_p99_s": 0.5}, [True, True, False, False, True]),
        ({"tbt_tail_s": 0.3}, [True, True, False, False, False]),
        ({"normalized_s": 0.5}, [True, False, False, False, False]),
        ({"tbt_p99_s": 0.5, "normalized_s": 1.1}, [True, True, False, False, True]),
    ],
)
def test_further_limits(limits: dict[str, Any], good: list[bool]) -> None:
    found = evaluate(small_result(), Slo(1.0, None, **limits)).requests
    assert found["good"].to_list() == good


def test_classes_have_limits_of_their_own() -> None:
    result = small_result()
    result = replace(result, workload=replace(result.workload, slo_class=("chat", "chat", "chat", "chat", "batch")))
    slow = Slo(1.0, 0.25, classes={"batch": {"tpot_s": 0.5}})
    strict = Slo(1.0, 0.25, classes={"chat": {"ttft_s": 0.5}, "batch": {"tpot_s": None}})
    assert evaluate(result, slow).requests["good"].to_list() == [True, True, False, False, True]
    assert evaluate(result, strict).requests["good"].to_list() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"ttft_s": 0}, "slo.ttft_s"),
        ({"tpot_s": float("nan")}, "slo.tpot_s"),
        ({"classes": {"batch": {"e2e_s": 3.0}}}, "slo.classes.batch.e2e_s"),
        ({"classes": {"batch": {"ttft_s": -1.0}}}, "slo.classes.batch.ttft_s"),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Slo(**limits)


def test_run_that_completes_nothing_has_no_latencies() -> None:
    rows = [{"state": REJECTED, "reason": 1, "arrival_s": float(r), "end_s": float(r)} for r in range(5)]
    summary = summarize(without_steps(rows), SLO)
    assert {summary[key] for key in LATENCY_KEYS} == {None}
    assert summary["completed"] == summary["request_goodput"] == summary["slo_attainment"] == 0
    assert summary["duration"] == 4.0  # to the last rejection
    assert summary["cache_hit_rate"] is None


def test_run_without_duration_has_no_rates() -> None:
    summary = summarize(without_steps([{"state": REJECTED, "reason": 1, "end_s": 0.0}] * 5), SLO)
    assert summary["request_throughput"] == 0
    assert summary["mfu"] is None


def test_gaps_reduced_during_the_run_replace_the_step_log() -> None:
    per_request = np.array([0.1, np.nan, np.nan, np.nan, 0.2])
    tokens = Spread(5, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16)
    gaps = Gaps(per_request, 2 * per_request, tokens, tokens)
    evaluation = evaluate(reduced_result(gaps), SLO)
    assert evaluation.requests["tbt_p99_s"].to_list() == [0.1, None, None, None, 0.2]
    assert evaluation.requests["tbt_max_s"].to_list() == [0.2, None, None, None, 0.4]
    assert evaluation.summary["p90_itl_ms"] == pytest.approx(140.0)
    assert evaluation.summary["mean_prefill_batch_tokens"] is None


def test_attainment_counts_all_that_were_offered() -> None:
    one_token = {"state": FINISHED, "start_s": 0.0, "prefill_end_s": 0.5, "first_token_s": 0.5, "end_s": 0.5}
    result = without_steps([*[one_token] * 4, {"state": REJECTED, "end_s": 0.0}])
    result = replace(result, workload=replace(result.workload, output_tokens=np.ones(5, np.int64)))
    summary = summarize(result, SLO)
    assert summary["slo_attainment"] == 0.8
    assert summary["median_tpot_ms"] is None


def test_a_summary_names_the_commit_of_this_project() -> None:
    assert summarize(small_result(), SLO)["git_revision"] == git_revision(ROOT)


def test_git_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    head = (tmp_path / ".git" / "refs" / "heads").iterdir()
    assert git_revision(tmp_path) == next(head).read_text().strip()
