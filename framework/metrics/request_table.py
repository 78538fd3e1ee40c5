"""The table of requests: what happened to each, and whether it was good."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.clock import Clock
from framework.metrics.slo import Slo, judge
from framework.result import FINISHED, STATES, Gaps, Result
from framework.workload import Workload
from framework.workload.programs import TRIGGERS


def request_table(result: Result, slo: Slo, gaps: Gaps, clock: Clock) -> pl.DataFrame:
    """One row a request, in trace order; times in seconds, null where undefined.

    1. TTFT = first token - arrival. `ttft_ok` is false for a request without a first token.
    2. TPOT = (last token - first token) / (tokens - 1), for finished requests of several tokens. `tpot_ok` is false
       for a request that did not finish, and true for a finished one of a single token.
    3. TBT are a finished request's gaps between tokens. E2E = last token - arrival.
    4. `good`: finished and all limits kept, and if it is a later turn of an open load, sent in time
       (`framework.metrics.service.late_turns`).
    5. Columns that depend on the run: `slo_class`, `priority`, `tenant`, `session_id`, `turn` and `trigger` if the
       trace has them; `counted` if a warm-up or a cool-down leaves requests out of the figures; `reader_wait_s` if
       the SLO limits that (`framework.metrics.service.pacing`).
    """
    requests, workload = result.requests, result.workload
    count = len(requests)
    arrival_s = requests["arrival_s"]
    finished = requests["state"] == FINISHED
    judged = judge(result, slo)

    columns = {
        "request_id": np.arange(count) if result.request_ids is None else result.request_ids,
        "arrival_s": arrival_s,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        **_of_the_trace(workload),
        **({} if clock.counted.all() else {"counted": clock.counted}),
        "state": pl.Series(STATES).gather(requests["state"]),
        "reason": pl.Series([reason or None for reason in result.reasons], dtype=pl.String).gather(requests["reason"]),
        **({"attempts": result.attempts} if len(result.attempts) else {}),
        **({"gateway_s": result.gated_s} if len(result.gated_s) else {}),
        "prefill_instance": _null_below_zero(requests["prefill_instance"]),
        "decode_instance": _null_below_zero(requests["decode_instance"]),
        "queue_s": requests["start_s"] - arrival_s,
        "prefill_s": requests["prefill_end_s"] - requests["start_s"],
        "transfer_s": requests["transfer_end_s"] - requests["prefill_end_s"],
        "ttft_s": judged.ttft_s,
        "tpot_s": judged.tpot_s,
        "tbt_p99_s": np.where(finished, gaps.request_p99_s, np.nan),
        "tbt_max_s": np.where(finished, gaps.request_max_s, np.nan),
        **({} if judged.reader_wait_s is None else {"reader_wait_s": judged.reader_wait_s}),
        "e2e_s": np.where(finished, requests["end_s"] - arrival_s, np.nan),
        "cached_tokens": requests["cached_tokens"],
        "preemptions": requests["preemptions"],
        "migrations": requests["migrations"],
        "predicted_output_tokens": requests["predicted_tokens"],
        "ttft_ok": judged.ttft_ok,
        "tpot_ok": judged.tpot_ok,
        "good": judged.good,
    }
    return pl.DataFrame([pl.Series(name, values, nan_to_null=True) for name, values in columns.items()])


def counted(requests: pl.DataFrame) -> pl.DataFrame:
    """The rows of a request table that the figures of the run count."""
    return requests.filter(pl.col("counted")) if "counted" in requests.columns else requests


def is_counted(requests: pl.DataFrame) -> NDArray[np.bool_]:
    """Whether the figures of the run count each row, (N,)."""
    return requests["counted"].to_numpy() if "counted" in requests.columns else np.ones(len(requests), np.bool_)


def _of_the_trace(workload: Workload) -> dict[str, Any]:
    """Class, priority, tenant, session, turn and trigger of each request, as far as the trace has them."""
    columns: dict[str, Any] = {}
    if workload.slo_class is not None:
        columns["slo_class"] = pl.Series(workload.slo_class, dtype=pl.String)
    if workload.priority is not None:
        columns["priority"] = workload.priority
    if workload.tenant is not None:
        columns["tenant"] = pl.Series(workload.tenant, dtype=pl.String)
    if workload.session_id is not None:
        columns["session_id"] = _null_below_zero(workload.session_id)
        if workload.turn is not None:
            columns["turn"] = pl.Series(workload.turn).set(columns["session_id"].is_null(), None)
    if workload.trigger is not None:
        columns["trigger"] = pl.Series([name or None for name in TRIGGERS]).gather(workload.trigger)
    return columns


def _null_below_zero(values: NDArray[Any]) -> pl.Series:
    series = pl.Series(np.ascontiguousarray(values))
    return series.set(series < 0, None)
