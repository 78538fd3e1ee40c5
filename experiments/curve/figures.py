"""The figures of a curve's runs: one table of them all, their means over seeds, and where a system saturates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from experiments.curve.arguments import Job, Plan
from experiments.curve.axis import RATE, Axis
from framework.errors import InputError
from framework.metrics.figures import HEADLINE
from framework.metrics.load_state import OVERLOADED
from framework.metrics.statistics import estimate
from framework.report.arms import Arm, unlike
from framework.report.load_words import load_state
from framework.run.store import Record
from framework.run.sweep import Outcome

Floats = NDArray[np.float64]
ALL = "all"
_LATENCIES = [f"{statistic}_{name}_ms" for name in ("ttft", "tpot", "e2el") for statistic in ("median", "p95", "p99")]
_RATES = ("request_throughput", HEADLINE, "output_throughput", "total_token_throughput")
_COUNTS = ("offered", "completed", "out_of_memory")
_PER_GPU = ("offered_rps", *_RATES, "goodput_bound")
_METRICS = (
    *(
        "duration_s",
        "offered_rps",
        *_COUNTS,
        "out_of_memory_rate",
        "slo_attainment",
        *_RATES,
        *_LATENCIES,
        "goodput_bound",
    ),
    *(f"{name}_per_gpu" for name in _PER_GPU),
)
_TEXTS = ("series", "bucket", "load_state", "policy", "trace", "trace_source", "key")
_WHOLE = ("concurrency", "seed", "from_tokens", "to_tokens", "gpus", *_COUNTS)
_COLUMNS = (
    *("series", "rate_rps", "concurrency", "seed", "bucket", "from_tokens", "to_tokens", "gpus"),
    *(*_METRICS, "load_state", "policy", "trace", "trace_source", "key"),
)
_SCHEMA = {name: pl.String if name in _TEXTS else pl.Int64 if name in _WHOLE else pl.Float64 for name in _COLUMNS}
_NEAR_ITS_MOST = 0.95  # share of the highest throughput


@dataclass(frozen=True)
class Line:
    """Means over seeds of one series and bucket, one row for each point in the order of the axis."""

    label: str
    axis: Axis
    levels: pl.DataFrame

    @property
    def values(self) -> Floats:
        """The points, on the axis."""
        return self.mean(self.axis.column)

    def mean(self, metric: str) -> Floats:
        """Shape (points,), NaN if undefined."""
        return self.levels[metric].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def half_width(self, metric: str) -> Floats:
        """Half the width of the 95 % interval (Student's t); shape (points,), NaN with fewer than two seeds."""
        return self.mean(_half_width(metric))

    @property
    def is_overloaded(self) -> NDArray[np.bool_]:
        """Whether the system is overloaded with any seed, shape (points,)."""
        return self.levels["load_state"].eq_missing(OVERLOADED).to_numpy()


@dataclass(frozen=True)
class Curve:
    """The results of a plan.

    `runs`: one row a series, point, seed and bucket of prompt lengths, `all` first; rates are per second, undefined
    values are null. `levels`: their means over seeds, and half the widths of intervals. `refusals`: a line for each
    missing point. `unlike`: how series differ besides policies and their own arguments, None if they do not.
    """

    axis: Axis
    attainment: float
    runs: pl.DataFrame
    levels: pl.DataFrame
    records: tuple[Record, ...]
    refusals: tuple[str, ...]
    unlike: str | None = None

    @property
    def labels(self) -> list[str]:
        """The series, in order."""
        return self.runs["series"].unique(maintain_order=True).to_list()

    @property
    def buckets(self) -> list[str]:
        """The buckets that contain requests, `all` first."""
        return self.runs.filter(pl.col("offered") > 0)["bucket"].unique(maintain_order=True).to_list()

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return self.runs["seed"].n_unique()

    def line(self, label: str, bucket: str = ALL) -> Line:
        """One series in one bucket."""
        own = self.levels.filter((pl.col("series") == label) & (pl.col("bucket") == bucket))
        return Line(label, self.axis, own)

    def lines(self, bucket: str = ALL) -> list[Line]:
        """Every series in one bucket."""
        return [self.line(label, bucket) for label in self.labels]

    def agreed(self, key: str) -> Any:
        """The value of `key` in the configurations and summaries of all runs, None if they differ."""
        found = {repr(one): one for one in ((record.config | record.summary).get(key) for record in self.records)}
        return next(iter(found.values())) if len(found) == 1 else None


def tabulated(plan: Plan, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Curve:
    """The curve of `outcomes`, one for each of `jobs`. Raises InputError if all were refused."""
    done = [(job, one.record) for job, one in zip(jobs, outcomes, strict=True) if one.record is not None]
    refused = [
        (job, one.refusal) for job, one in zip(jobs, outcomes, strict=True) if one.record is None and one.refusal
    ]
    if not done:
        raise InputError(f"no point is left: {refused[0][1]}")
    rows = [row for job, record in done for row in _rows(plan.axis, job, record)]
    lines = dict.fromkeys(f"{line} [{job.series.label}, {plan.axis.word} {job.value:g}]" for job, line in refused)
    runs = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    records = tuple(record for _, record in done)
    levels = _levels(runs, plan.axis)
    return Curve(plan.axis, plan.attainment, runs, levels, records, tuple(lines), _unlike(plan.axis, done))


def _unlike(axis: Axis, done: Sequence[tuple[Job, Record]]) -> str | None:
    """How the series differ, by the first run of each, besides their arguments and the axis."""
    first = {job.series: record for job, record in reversed(done)}
    given = {axis.key, *(name for one in first for name in one.given)} - {"policy"}
    return unlike([Arm(one.label, first[one].config, given=given) for one in reversed(first)])


def bucket_name(from_tokens: int, to_tokens: int | None) -> str:
    """The name of a bucket: its ends, in tokens."""
    if to_tokens is None:
        return f">= {from_tokens:,}"
    return f"< {to_tokens:,}" if from_tokens == 0 else f"{from_tokens:,} to < {to_tokens:,}"


def saturation(line: Line, attainment: float) -> int | None:
    """The point up to which a system keeps up, None if not even the first: `last_kept`, or, with clients, `fullest`."""
    return last_kept(line, attainment) if line.axis is RATE else fullest(line)


def last_kept(line: Line, attainment: float) -> int | None:
    """The last point up to which a share `attainment` of the requests keeps the SLO, None if not even the first."""
    kept = line.mean("slo_attainment") >= attainment
    return int(np.argmin(np.append(kept, False))) - 1 if kept[0] else None


def fullest(line: Line) -> int:
    """The first point whose throughput is near the highest of all: more load adds mostly waiting."""
    throughput = line.mean("request_throughput")
    return int(np.argmax(throughput >= _NEAR_ITS_MOST * throughput.max()))


def after_last_arrival(line: Line) -> Floats:
    """How much longer than the arrivals runs last, as a share, (points,): throughput is too low by as much.

    NaN if they do not arrive by the clock.
    """
    return line.mean("duration_s") * line.mean("offered_rps") / line.mean("offered") - 1


def _rows(axis: Axis, job: Job, record: Record) -> list[dict[str, Any]]:
    summary = record.summary
    buckets: list[dict[str, Any]] = summary["buckets"]
    out_of_memory = sum(bucket["out_of_memory"] for bucket in buckets)
    whole = {**summary, "out_of_memory": out_of_memory, "from_tokens": 0, "to_tokens": None}
    named = [(ALL, whole), *((bucket_name(one["from_tokens"], one["to_tokens"]), one) for one in buckets)]
    return [_row(axis, job, record, name, figures) for name, figures in named]


def _row(axis: Axis, job: Job, record: Record, bucket: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    summary = record.summary
    offered = figures["offered"]
    row = {
        **{name: summary[name] for name in ("gpus", "policy", "trace", "trace_source")},
        **figures,
        "series": job.series.label,
        axis.column: job.value if axis is RATE else int(job.value),
        "seed": job.seed,
        "bucket": bucket,
        "duration_s": summary["duration"],
        "load_state": summary.get("load_state"),
        "offered_rps": job.value * offered / summary["offered"] if axis is RATE else None,
        "out_of_memory_rate": figures["out_of_memory"] / offered if offered else None,
        "key": record.key,
    }
    for name in _PER_GPU:
        row[f"{name}_per_gpu"] = None if row.get(name) is None else row[name] / summary["gpus"]
    return {name: row.get(name) for name in _SCHEMA}


def _levels(runs: pl.DataFrame, axis: Axis) -> pl.DataFrame:
    """One row a series, point and bucket: mean and half width over seeds, null if undefined in any run, and the worst
    `load_state`.
    """
    rows = []
    for _, own in runs.group_by("series", axis.column, "bucket", maintain_order=True):
        row: dict[str, Any] = own.select("series", axis.column, "bucket").row(0, named=True)
        row["load_state"] = load_state(own.select("load_state").iter_rows(named=True))
        for name in _METRICS:
            found = None if own[name].null_count() else estimate(own[name].cast(pl.Float64).to_numpy())
            row[name], row[_half_width(name)] = (found.mean, found.half_width) if found else (None, None)
        rows.append(row)
    return pl.DataFrame(rows, schema_overrides={"load_state": pl.String}, infer_schema_length=None)


def _half_width(metric: str) -> str:
    return f"{metric}_half_width"
