"""Figures by length of prompt, worked out by hand and held against the summary of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.metrics.parts import Seconds, by_length
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.objective.goodput import Goodput
from tests.helpers.results import small_result

ROWS = [
    # input, output, state, reason, TTFT, TPOT, E2E, good
    (511, 10, "finished", None, 0.1, 0.01, 1.0, True),
    (512, 20, "finished", None, 0.2, 0.02, 2.0, True),
    (4095, 30, "finished", None, 0.4, 0.04, 4.0, False),
    (600, 5, "rejected", "kv", None, None, None, False),
    (700, 5, "failed", "kv", 0.3, None, None, False),
    (4096, 40, "rejected", "context", None, None, None, False),
    (9000, 1, "rejected", "kv", None, None, None, False),
]
COLUMNS = ("input_tokens", "output_tokens", "state", "reason", "ttft_s", "tpot_s", "e2e_s", "good")
TABLE = pl.DataFrame(ROWS, schema=COLUMNS, orient="row").with_columns(queue_s=pl.col("ttft_s") / 2)


def test_figures_by_hand() -> None:
    short, medium, long = by_length(TABLE, (512, 4096), Seconds(duration=10.0, window=5.0))
    assert [(one["from_tokens"], one["to_tokens"]) for one in (short, medium, long)] == [
        (0, 512),
        (512, 4096),
        (4096, None),
    ]
    assert [one["offered"] for one in (short, medium, long)] == [1, 4, 2]
    assert [one["completed"] for one in (short, medium, long)] == [1, 2, 0]
    assert [one["out_of_memory"] for one in (short, medium, long)] == [0, 2, 1]
    assert [one["slo_attainment"] for one in (short, medium, long)] == [1.0, 0.25, 0.0]
    assert medium["request_throughput"] == 0.2
    assert medium["request_goodput"] == 0.1
    assert medium["goodput_rps"] == 0.2
    assert medium["output_throughput"] == 5.0
    assert medium["total_token_throughput"] == (512 + 4095 + 50) / 10
    assert medium["median_ttft_ms"] == pytest.approx(300.0)
    assert medium["median_queue_ms"] == pytest.approx(150.0)
    assert medium["p95_tpot_ms"] == pytest.approx(20 + 0.95 * 20)  # linear between two values
    assert medium["p99_e2el_ms"] == pytest.approx(2000 + 0.99 * 2000)
    assert short["median_e2el_ms"] == short["p99_e2el_ms"] == pytest.approx(1000.0)
    assert long["p99_ttft_ms"] is None


def test_a_bucket_without_requests_has_no_attainment() -> None:
    (_, _, huge) = by_length(TABLE, (512, 10_000), Seconds(10.0, 10.0))
    assert (huge["offered"], huge["slo_attainment"], huge["request_goodput"]) == (0, None, 0.0)


def test_one_bucket_is_the_summary_and_all_buckets_add_up_to_it() -> None:
    evaluation = evaluate(small_result(), Slo(ttft_s=1.0, tpot_s=0.25))
    summary = evaluation.summary
    seconds = Seconds(summary["duration"], summary["window_s"])
    (whole,) = by_length(evaluation.requests, (), seconds)
    own = {"from_tokens", "to_tokens", "out_of_memory"}
    assert {key: summary[key] for key in whole.keys() - own} == {key: whole[key] for key in whole.keys() - own}
    parts = by_length(evaluation.requests, (60, 150), seconds)
    assert all(part["offered"] for part in parts)
    for key in ("offered", "completed", "request_throughput", "goodput_rps", "request_goodput", "output_throughput"):
        assert np.sum([part[key] for part in parts]) == pytest.approx(summary[key])


@pytest.mark.parametrize("edges", [512, "512", [512, 512], [4096, 512], [0, 512], [512.5], [True], None])
def test_edges_that_cannot_be_are_one_line(edges: Any) -> None:
    with pytest.raises(InputError, match="prompt_edges_tokens") as caught:
        Goodput(prompt_edges_tokens=edges)
    assert "\n" not in str(caught.value)


def test_edges_are_not_needed() -> None:
    assert Goodput(prompt_edges_tokens=[]).prompt_edges_tokens == []
