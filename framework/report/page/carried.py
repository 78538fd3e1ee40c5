"""The requests that a page carries for its script: those behind the dots, and those of a selected range of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.diagnosis.losses import CAUSES, Losses
from framework.metrics.series import span_s
from framework.report.page.markup import plain
from framework.report.page.script import data_block
from framework.report.page.where import CAUSE_WORDS
from framework.result import Result

MOST = 2_000
_COLUMNS = (  # column of the requests, its name on the page, factor to its unit
    ("arrival_s", "arrival (s)", 1.0),
    ("input_tokens", "prompt (tokens)", 1.0),
    ("output_tokens", "output (tokens)", 1.0),
    ("ttft_s", "TTFT (s)", 1.0),
    ("tpot_s", "TPOT (ms)", 1e3),
    ("queue_s", "queue (s)", 1.0),
    ("prefill_s", "prefill (s)", 1.0),
    ("e2e_s", "E2E (s)", 1.0),
)


def sample(count: int) -> NDArray[np.int64]:
    """Indices of at most MOST of the requests, evenly spread."""
    if count <= MOST:
        return np.arange(count)
    return np.linspace(0, count - 1, MOST).astype(np.int64)


def carried(result: Result, requests: pl.DataFrame, losses: Losses) -> str:
    """The sample as a block of columns, with the beginning of the run, the zero of its pictures over time."""
    chosen = sample(len(requests))
    own = requests[chosen]
    columns: list[dict[str, object]] = [{"name": "request", "values": [plain(value) for value in own["request_id"]]}]
    for name, shown, factor in _COLUMNS:
        columns.append({"name": shown, "values": _short(own[name].cast(pl.Float64).to_numpy() * factor)})
    if result.workload.slo_class is not None:
        columns.append({"name": "class", "values": [plain(result.workload.slo_class[index]) for index in chosen]})
    columns.append({"name": "lost to", "values": _lost_to(losses.cause[chosen], own["good"].to_numpy())})
    held = {"begin_s": span_s(result)[0], "offered": len(requests), "columns": columns}
    return data_block("requests", held)


def _lost_to(causes: NDArray[np.int64], good: NDArray[np.bool_]) -> Sequence[str]:
    words = [CAUSE_WORDS[name] for name in CAUSES]
    return [
        "" if kept else words[cause] if cause >= 0 else "not counted" for cause, kept in zip(causes, good, strict=True)
    ]


def _short(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
