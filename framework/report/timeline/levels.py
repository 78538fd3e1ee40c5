"""What each instance holds over time, as steps: KV that its decodes read, prompts under way, prompt tokens that wait.

Sums over instances of what requests and steps say; they change where a request is routed, admitted, prefilled, copied
or ended, and where a leap begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.result import Result

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NS = 1e9
_ROUNDING_NS = 1  # nanoseconds between the end of a leap and the start of one that follows at once


@dataclass(frozen=True)
class Levels:
    """`level[k]` holds at instance[k] from `ts_ns[k]` on; in the order of instances, then of time."""

    instance: Ints
    ts_ns: Ints
    level: Floats

    def at(self, instance: int, ts_ns: Ints) -> Floats:
        """The level of an instance just before each time, 0 before its first."""
        own = self._rows(instance)
        found = np.searchsorted(self.ts_ns[own], ts_ns, side="left") - 1
        values = np.concatenate((self.level[own], [0.0]))  # the last one is what -1 finds
        return values[found]

    def within(self, window_s: tuple[float, float]) -> pl.DataFrame:
        """The changes within a window, and before them what each instance had at its start, if that is not 0."""
        table = pl.DataFrame({"instance": self.instance, "ts_ns": self.ts_ns, "level": self.level})
        table = table.filter(pl.col("ts_ns") < window_s[1] * NS)
        is_before = pl.col("ts_ns") <= window_s[0] * NS
        before = table.filter(is_before).group_by("instance", maintain_order=True).last()
        inside = table.filter(~is_before)
        return pl.concat([before.filter(pl.col("level") != 0), inside]).sort("instance", "ts_ns", maintain_order=True)

    def _rows(self, instance: int) -> slice:
        first, last = np.searchsorted(self.instance, [instance, instance + 1])
        return slice(int(first), int(last))


def leaps_of(result: Result) -> pl.DataFrame:
    """Leaps in the order of instances and time, with `idle_after`; integer nanoseconds, so adjacent ones meet
    exactly.
    """
    leaps = result.step_log
    steps = leaps["steps"].astype(np.float64)
    duration_s = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    start_ns, end_ns = _ns(leaps["start_s"]), _ns(leaps["start_s"] + duration_s)
    names = ("instance", "steps", "batch", "prefill_tokens", "context", "stream")
    columns = {name: np.ascontiguousarray(leaps[name]) for name in names}
    times = {"start_ns": start_ns, "end_ns": end_ns, "duration_ns": end_ns - start_ns}
    table = pl.DataFrame({**columns, **times}).sort("instance", "start_ns", maintain_order=True)
    next_ns = pl.col("start_ns").shift(-1).over("instance", "stream")
    idle = (next_ns - pl.col("end_ns") > _ROUNDING_NS).fill_null(value=True)
    return table.with_columns(idle.alias("idle_after"))


def context_of(leaps: pl.DataFrame) -> Levels:
    """KV tokens that the decodes of each instance read, at the start of each leap; 0 while it idles."""
    steps = leaps.filter(pl.col("stream") == 0)
    begins = steps.select("instance", pl.col("start_ns").alias("ts_ns"), pl.col("context").cast(pl.Int64))
    ends = steps.filter("idle_after").select("instance", pl.col("end_ns").alias("ts_ns"), pl.lit(0).alias("context"))
    table = pl.concat([begins, ends.cast(begins.schema)]).sort("instance", "ts_ns", maintain_order=True)
    return _made(table.rename({"context": "level"}))


def queued_of(result: Result, end_s: Floats) -> Levels:
    """Prompt tokens that wait at each instance for their first admission."""
    start_s = result.requests["start_s"]
    return _sum([(_entrance(result), routed_s(result), np.where(np.isnan(start_s), end_s, start_s))], _tokens(result))


def held_of(result: Result, context: Levels, end_s: Floats) -> Levels:
    """KV tokens of each instance: what its decodes read, prompts under way, and prompts whose copy is under way."""
    requests = result.requests
    until_s = np.fmin(np.where(np.isnan(requests["prefill_end_s"]), end_s, requests["prefill_end_s"]), end_s)
    until_s = np.fmin(np.where(np.isnan(requests["transfer_end_s"]), until_s, requests["transfer_end_s"]), end_s)
    prompts = _sum([(_entrance(result), requests["start_s"], until_s)], _tokens(result))
    parts = [_changes(context), _changes(prompts)]
    return _levels(pl.concat(parts))


def routed_s(result: Result) -> Floats:
    """When each request was routed: on its arrival, or when a gateway released it."""
    arrival_s: Floats = result.requests["arrival_s"]
    return arrival_s + np.nan_to_num(result.gated_s) if len(result.gated_s) else arrival_s


def _entrance(result: Result) -> Ints:
    found: Ints = result.requests["prefill_instance"].astype(np.int64)
    return found


def _tokens(result: Result) -> Floats:
    return result.workload.input_tokens.astype(np.float64)


def _sum(spans: list[tuple[Ints, Floats, Floats]], amount: Floats) -> Levels:
    """The sum of `amount` (N,) over requests that are within their span at each instance."""
    parts = []
    for instance, begin_s, end_s in spans:
        own = (instance >= 0) & ~np.isnan(begin_s) & ~np.isnan(end_s)
        for times_s, sign in ((begin_s, 1.0), (end_s, -1.0)):
            change = {"instance": instance[own], "ts_ns": _ns(times_s[own]), "change": sign * amount[own]}
            parts.append(pl.DataFrame(change))
    return _levels(pl.concat(parts))


def _changes(levels: Levels) -> pl.DataFrame:
    table = pl.DataFrame({"instance": levels.instance, "ts_ns": levels.ts_ns, "level": levels.level})
    before = pl.col("level").shift(1, fill_value=0.0).over("instance")
    return table.select("instance", "ts_ns", (pl.col("level") - before).alias("change"))


def _levels(changes: pl.DataFrame) -> Levels:
    table = changes.group_by("instance", "ts_ns").agg(pl.col("change").sum()).filter(pl.col("change") != 0)
    table = table.sort("instance", "ts_ns").with_columns(pl.col("change").cum_sum().over("instance").alias("level"))
    return _made(table)


def _made(table: pl.DataFrame) -> Levels:
    instance, ts_ns = (table[name].to_numpy().astype(np.int64) for name in ("instance", "ts_ns"))
    return Levels(instance, ts_ns, table["level"].to_numpy().astype(np.float64))


def _ns(times_s: NDArray[Any]) -> Ints:
    return np.rint(times_s * NS).astype(np.int64)
