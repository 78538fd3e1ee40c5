"""The arguments of a request's slice: its judgement, and its routes; and those of the run."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.slo import Judged, Slo, judge
from framework.report.timeline.levels import Levels
from framework.report.timeline.routes import routes_of
from framework.result import FINISHED, Result

_MS = 1e3
_TEXTS = ("slo", "prefill_at", "fewest_at", "decode_at", "least_at")


def request_arguments(
    result: Result, shown: NDArray[np.int64], slo: Slo | None, queued: Levels, context: Levels
) -> pl.DataFrame:
    """`request` and `further`, the text of the arguments beyond a request's own counts, for each that is `shown`."""
    table = routes_of(result, shown, queued, context)
    if slo is not None:
        table = pl.concat([_judgement(result, shown, slo), table.drop("request")], how="horizontal")
    names = [name for name in table.columns if name != "request"]
    pieces = [_piece(name) for name in names]
    return table.select("request", pl.concat_str(pieces).alias("further"))


def _piece(name: str) -> pl.Expr:
    """`,"name":value`, or nothing if there is no value."""
    value = pl.col(name).cast(pl.String)
    written = pl.concat_str(pl.lit('"'), value, pl.lit('"')) if name in _TEXTS else value
    return pl.when(value.is_null()).then(pl.lit("")).otherwise(pl.concat_str(pl.lit(f',"{name}":'), written))


def _judgement(result: Result, shown: NDArray[np.int64], slo: Slo) -> pl.DataFrame:
    """`slo`: good, or what was missed; TTFT and TPOT with their limits, ms."""
    judged = judge(result, slo)
    classes, count = result.workload.slo_class, len(result.requests)
    columns: dict[str, object] = {"request": shown, "slo": _verdicts(result, judged)[shown]}
    for name, values_s in (("ttft", judged.ttft_s), ("tpot", judged.tpot_s)):
        limits_s = slo.limits_s(f"{name}_s", classes, count)
        columns[f"{name}_ms"] = _milliseconds(values_s[shown])
        columns[f"{name}_limit_ms"] = _milliseconds(np.where(np.isfinite(limits_s), limits_s, np.nan)[shown])
    return pl.DataFrame(columns)


def _verdicts(result: Result, judged: Judged) -> NDArray[np.str_]:
    finished = result.requests["state"] == FINISHED
    conditions = [
        judged.good,
        ~finished,
        ~judged.ttft_ok & ~judged.tpot_ok,
        ~judged.ttft_ok,
        ~judged.tpot_ok,
    ]
    words = ["good", "not served", "missed TTFT and TPOT", "missed TTFT", "missed TPOT"]
    return np.select(conditions, words, "missed another limit")


def _milliseconds(values_s: NDArray[np.float64]) -> pl.Series:
    return pl.Series(np.round(_MS * values_s, 3), nan_to_null=True)


def run_arguments(result: Result, slo: Slo | None) -> dict[str, object]:
    """What the run is: policy, trace, model, pools, sources, and how many requests kept the SLO."""
    tokens = result.instances["total_blocks"] * result.engine.block_tokens
    pools = [
        f"{pool.name}: {pool.instances} x {pool.gpu.name} {pool.parallelism}, "
        f"{tokens[result.instances['pool'] == number].max():,} KV tokens each"
        for number, pool in enumerate(result.cluster.pools)
    ]
    found: dict[str, object] = {
        "policy": result.policy,
        "trace": f"{result.workload.name} ({result.workload.source})",
        "model": result.model.name,
        "pools": "; ".join(pools),
        "timing": result.timing_source,
        "predictor": result.predictor,
        "load": result.load,
        "seed": result.seed,
        "requests": len(result.requests),
    }
    if slo is not None:
        found["good"] = int(judge(result, slo).good.sum())
        found["slo"] = ", ".join(f"{name} {limit:g}" for name, limit in _limits(slo).items()) or "none"
    return found


def _limits(slo: Slo) -> dict[str, float]:
    known = ("ttft_s", "tpot_s", "tbt_p99_s", "tbt_tail_s", "normalized_s", "reader_wait_s")
    return {name: getattr(slo, name) for name in known if getattr(slo, name) is not None}
