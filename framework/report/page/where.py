"""How requests spent their time, and the requests with the worst service."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.diagnosis.findings import Diagnosis
from framework.diagnosis.losses import CAUSES
from framework.metrics.phases import PHASES
from framework.metrics.slo import Slo
from framework.report.page.bars import stacked_bars
from framework.report.page.markup import Cell, Legend, Sheet, figure
from framework.result import Result

Floats = NDArray[np.float64]
_NAMES = {
    "queue_s": "queue",
    "prefill_s": "prefill",
    "transfer_s": "transfer",
    "join_s": "wait to join decodes",
    "decode_s": "decode",
    "beside_prefill_s": "decode concurrent with prefills",
    "stalled_s": "stalled by prefills",
    "displaced_s": "preempted or moving",
}
_KINDS = {
    "queue_s": "f0",
    "prefill_s": "f1",
    "transfer_s": "f2",
    "join_s": "f3",
    "decode_s": "f6",
    "beside_prefill_s": "f5",
    "stalled_s": "f7",
    "displaced_s": "f4",
}
_WORST = 20
CAUSE_WORDS = {
    "unserved": "not served",
    "queue": "queue before prefill",
    "prefill": "prefill itself",
    "transfer": "transfer of its KV",
    "join": "wait for a decode step",
    "interference": "prefills of others",
    "displaced": "preemption",
    "context": "reading of contexts",
    "decode": "decode steps",
    "other": "a further limit",
}


def where_time_went(phases: pl.DataFrame, requests: pl.DataFrame) -> str | None:
    """Shares of the time of all requests, of those that kept the SLO, of those that did not, and of the slowest."""
    e2e_s = requests["e2e_s"].to_numpy()
    finished, good = np.isfinite(e2e_s), requests["good"].to_numpy()
    if not finished.any():
        return None
    slow = finished & (e2e_s >= np.nanquantile(e2e_s, 0.99))
    groups = {"all requests": finished, "kept the SLO": finished & good, "missed the SLO": finished & ~good}
    groups = {name: own for name, own in groups.items() if own.any()} | {"slowest 1 % of E2E": slow}
    names = [name for name in PHASES if phases[name].fill_null(0.0).sum() > 0]
    seconds = np.array([[_sum(phases[name], own) for name in names] for own in groups.values()])
    totals = seconds.sum(axis=1)
    shares = seconds / np.where(totals > 0, totals, 1.0)[:, None]
    kinds = [_KINDS[name] for name in names]
    bars = stacked_bars("Shares of the time from arrival to last token", list(groups), shares, kinds)
    rows: list[list[Cell]] = []
    for column, name in enumerate(names):
        means = [float(seconds[row, column] / own.sum()) for row, own in enumerate(groups.values())]
        rows.append([_NAMES[name], PHASES[name], *means])
    sheet = Sheet(["phase", "the request", *(f"{name}: mean (s)" for name in groups)], rows)
    legend = Legend([(_NAMES[name], kind) for name, kind in zip(names, kinds, strict=True)])
    drawn = figure("Phases", "from arrival to last token, summed over requests", bars, legend, sheet)
    return drawn.replace("<figure>", '<figure class="wide">', 1)


def _sum(column: pl.Series, own: NDArray[np.bool_]) -> float:
    return float(np.nansum(column.to_numpy().astype(np.float64)[own]))


def worst_requests(result: Result, requests: pl.DataFrame, slo: Slo, diagnosis: Diagnosis) -> str | None:
    """The requests that missed a limit by the largest factor, and why; requests that were not served come last."""
    count, losses = len(requests), diagnosis.losses
    lost = np.flatnonzero(losses.cause >= 0)
    if len(lost) == 0:
        return None
    factors = [
        requests[f"{name}_s"].to_numpy() / slo.limits_s(f"{name}_s", result.workload.slo_class, count)
        for name in ("ttft", "tpot")
    ]
    factor = np.nan_to_num(np.maximum(np.nan_to_num(factors[0]), np.nan_to_num(factors[1])))
    factor = np.where(losses.cause == CAUSES.index("unserved"), -1.0, factor)
    worst = lost[np.argsort(-factor[lost], kind="stable")][:_WORST]
    classes = result.workload.slo_class
    rows: list[list[Cell]] = []
    for index in worst:
        row = requests.row(int(index), named=True)
        cause = CAUSES[losses.cause[index]]
        own: list[Cell] = [classes[index]] if classes is not None else []
        tpot_s, why = row["tpot_s"], CAUSE_WORDS[cause]
        rows.append(
            [
                *(row["request_id"], row["arrival_s"], *own, row["input_tokens"], row["output_tokens"]),
                *(row["ttft_s"], None if tpot_s is None else 1e3 * tpot_s, row["queue_s"], row["prefill_s"]),
                *(row["preemptions"], why if row["reason"] is None else f"{why}: {row['reason']}"),
            ]
        )
    columns = ["request", "arrival (s)", *(["class"] if classes is not None else []), "prompt", "output"]
    columns += ["TTFT (s)", "TPOT (ms)", "queue (s)", "prefill (s)", "preempted", "lost to"]
    return Sheet(columns, rows).html()
