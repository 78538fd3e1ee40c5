"""A run over time: one row for each window and pool, and one for the whole cluster.

Counts are of events within a window; all else is averaged over it. Work in steps is spread over windows exactly, by the
step log: a leap that crosses the edge of a window is cut there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.result import FINISHED, Result

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class Windows:
    """`count` windows of `window_s` seconds from `start_s` on; the last one ends with the run."""

    start_s: float
    end_s: float
    window_s: float
    count: int

    @property
    def edges_s(self) -> Floats:
        """The starts of the windows and the end of the last one, shape (count + 1,)."""
        edges_s = self.start_s + self.window_s * np.arange(self.count + 1.0)
        edges_s[-1] = max(self.end_s, edges_s[-2])
        return edges_s

    def index(self, time_s: Floats) -> Ints:
        """The window that each time lies in."""
        found = np.searchsorted(self.edges_s, time_s, side="right") - 1
        return np.clip(found, 0, self.count - 1)


def windows_of(result: Result, window_s: float) -> Windows:
    """The windows from the first arrival to the last end; they become longer if there would be more than
    MOST_WINDOWS.
    """
    start_s, end_s = span_s(result)
    wide_s = max(window_s, (end_s - start_s) / MOST_WINDOWS)
    count = min(max(1, math.ceil((end_s - start_s) / wide_s)), MOST_WINDOWS)
    return Windows(start_s, end_s, wide_s, count)


def span_s(result: Result) -> tuple[float, float]:
    """The first arrival and the last end, of a step or a request."""
    requests, leaps = result.requests, result.step_log
    last_s = float(np.nanmax(requests["end_s"]))
    if len(leaps):
        last_s = max(last_s, float((leaps["start_s"] + _lasting_s(leaps, leaps["steps"])).max()))
    return float(np.nanmin(requests["arrival_s"])), last_s


def time_series(result: Result, good: NDArray[np.bool_], window_s: float) -> pl.DataFrame:
    """One row for each window, in order, for the cluster (`pool` null) and then for each of its pools.

    `arrivals`, `attainment`: requests that came in the window (for a pool: whose prompts it computed), and the share of
    them that kept their SLOs, by `good` (N,). `completions`, `good`: requests that ended there (for a pool: on it), and
    the number of good ones among them. `queue`: requests that wait for their first admission.

    From the step log, null if that was reduced:

    `decoding`, `batch`: requests in decode steps, over time and per step.
    `utilization`: share of the time of all instances in a step.
    `decode_kv_tokens`, `decode_kv_share`: KV tokens that decode steps read, and their share of what the memory holds;
    shared prefixes count for each request.
    `instances_active`: instances with a step in the window.
    """
    windows = windows_of(result, window_s)
    pools = len(result.cluster.pools)
    counted = _requests(result, good, windows)
    stepped = _steps(result, windows) if result.engine.log == "full" else {}
    names = [None, *(pool.name for pool in result.cluster.pools)]
    columns: dict[str, Any] = {
        "start_s": np.repeat(windows.edges_s[:-1], pools + 1),
        "window_s": np.repeat(np.diff(windows.edges_s), pools + 1),
        "pool": pl.Series(names * windows.count, dtype=pl.String),
        **{name: values.T.ravel() for name, values in (counted | stepped).items()},
    }
    table = pl.DataFrame([pl.Series(name, values, nan_to_null=True) for name, values in columns.items()])
    missing = [pl.lit(None, pl.Float64).alias(name) for name in _FROM_STEPS if name not in table.columns]
    return table.with_columns(*missing)


_FROM_STEPS = (
    *("decoding", "batch", "utilization", "decode_kv_tokens", "decode_kv_share", "instances_active"),
)  # columns that need the step log


def _requests(result: Result, good: NDArray[np.bool_], windows: Windows) -> dict[str, Any]:
    """Columns of shape (1 + pools, windows), the whole cluster first."""
    requests = result.requests
    finished = requests["state"] == FINISHED
    arrival_s, end_s, start_s = requests["arrival_s"], requests["end_s"], requests["start_s"]
    came = _pool_of(result, requests["prefill_instance"])
    last = np.where(requests["decode_instance"] >= 0, requests["decode_instance"], requests["prefill_instance"])
    left = _pool_of(result, last)
    groups = len(result.cluster.pools) + 1

    def count(chosen: NDArray[np.bool_], time_s: Floats, group: Ints) -> Floats:
        places = group[chosen] * windows.count + windows.index(time_s[chosen])
        return _with_total(np.bincount(places, minlength=groups * windows.count).reshape(groups, -1))

    arrived = ~np.isnan(arrival_s)  # a turn never arrives if its session ended earlier
    arrivals = count(arrived, arrival_s, came)
    waited_until_s = np.where(np.isnan(start_s), end_s, start_s)[arrived]
    queued_s = integral(windows, arrival_s[arrived], waited_until_s, np.ones(arrived.sum()), came[arrived], groups)
    return {
        "arrivals": arrivals.astype(np.int64),
        "completions": count(finished, end_s, left).astype(np.int64),
        "good": count(good, end_s, left).astype(np.int64),
        "attainment": _ratio(count(good, arrival_s, came), arrivals),
        "queue": _with_total(queued_s) / _lengths_s(windows),
    }


def _steps(result: Result, windows: Windows) -> dict[str, Any]:
    leaps, instances = result.step_log, result.instances
    pool = instances["pool"].astype(np.int64)
    pools = len(result.cluster.pools)
    per_pool = (pool == np.arange(pools)[:, None]).astype(np.float64)
    begin_s, end_s = leaps["start_s"], leaps["start_s"] + _lasting_s(leaps, leaps["steps"])
    own = pool[leaps["instance"]]
    batch = leaps["batch"].astype(np.float64)
    fresh_s, until_s = _first_covered(leaps["instance"], begin_s, end_s)
    busy_s = integral(windows, fresh_s, until_s, np.ones(len(leaps)), leaps["instance"], len(instances))
    batch_s = _total(integral(windows, begin_s, end_s, batch, own, pools))
    context_s = _total(_context(windows, leaps, end_s, own, pools))
    lengths_s = _lengths_s(windows)
    kv_tokens = _total((per_pool @ (instances["total_blocks"] * result.engine.block_tokens))[:, None])
    pool_busy_s, members = _total(per_pool @ busy_s), _total(per_pool.sum(axis=1)[:, None])
    return {
        "decoding": batch_s / lengths_s,
        "batch": _ratio(batch_s, pool_busy_s),
        "utilization": pool_busy_s / (lengths_s * members),
        "decode_kv_tokens": context_s / lengths_s,
        "decode_kv_share": _ratio(context_s / lengths_s, np.broadcast_to(kv_tokens, context_s.shape)),
        "instances_active": _total(per_pool @ (busy_s > 0.0)),
    }


def integral(windows: Windows, begin_s: Floats, end_s: Floats, height: Floats, group: Ints, groups: int) -> Floats:
    """The integral of `height` from `begin_s` to `end_s`, all (N,), by group and window: shape (groups, windows)."""
    edges_s, count = windows.edges_s, windows.count
    first, last = windows.index(begin_s), windows.index(end_s)
    within = first == last
    begun_s = np.where(within, end_s, edges_s[first + 1]) - begin_s
    ended_s = np.where(within, 0.0, end_s - edges_s[last])
    row = group.astype(np.int64) * count
    size = groups * count
    parts = np.bincount(row + first, height * begun_s, size) + np.bincount(row + last, height * ended_s, size)
    across = np.flatnonzero(last > first + 1)  # these cover the windows between their first and their last
    row, size = group[across].astype(np.int64) * (count + 1), groups * (count + 1)
    change = np.bincount(row + first[across] + 1, height[across], size)
    change -= np.bincount(row + last[across], height[across], size)
    filled = np.cumsum(change.reshape(groups, count + 1), axis=1)[:, :-1]
    spread: Floats = parts.reshape(groups, count) + filled * np.diff(edges_s)
    return spread


def _context(windows: Windows, leaps: NDArray[Any], end_s: Floats, group: Ints, groups: int) -> Floats:
    """The integral of the KV tokens that decodes read, with leaps cut at the edges of windows."""
    decodes = np.flatnonzero(leaps["batch"] > 0)
    end_s, group, start_s = end_s[decodes], group[decodes], leaps["start_s"][decodes]
    reads = _Reads(*(leaps[name][decodes].astype(np.float64) for name in _Reads._fields))
    first, last = windows.index(start_s), windows.index(end_s)
    pieces = last - first + 1
    of = np.repeat(np.arange(len(decodes)), pieces)
    window = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    edges_s, lasting_s = windows.edges_s, end_s - start_s
    is_last, is_first = window == last[of], window == first[of]

    def until(pieces: NDArray[np.bool_], edge: Ints) -> Floats:
        """The integral up to an edge of the window."""
        own = of[pieces]
        elapsed_s = np.clip(edges_s[edge[pieces]] - start_s[own], 0.0, lasting_s[own])
        return _context_until(_Reads(*(column[own] for column in reads)), elapsed_s)

    upto, since = np.empty(len(of)), np.zeros(len(of))
    upto[is_last] = _context_until(reads, lasting_s)  # every leap has one last piece
    upto[~is_last] = until(~is_last, window + 1)
    since[~is_first] = until(~is_first, window)
    place = group[of] * windows.count + window
    read: Floats = np.bincount(place, upto - since, groups * windows.count).astype(np.float64).reshape(groups, -1)
    return read


class _Reads(NamedTuple):
    """Columns of leaps that determine the tokens that their decodes read, shape (N,)."""

    first_s: Floats
    increment_s: Floats
    batch: Floats
    context: Floats
    steps: Floats


def _context_until(leaps: _Reads, elapsed_s: Floats) -> Floats:
    """The integral of the tokens read, over the first `elapsed_s` seconds of each leap."""
    slope_s = leaps.first_s - leaps.increment_s / 2
    root_s = np.sqrt(np.maximum(slope_s**2 + 2 * leaps.increment_s * elapsed_s, 0.0))
    speed_s = slope_s + root_s
    done = np.floor(np.divide(2 * elapsed_s, speed_s, out=np.zeros_like(elapsed_s), where=speed_s > 0))
    done = np.clip(done, 0, leaps.steps)
    numbers, squares = done * (done - 1) / 2, (done - 1) * done * (2 * done - 1) / 6
    done_s = done * leaps.first_s + numbers * leaps.increment_s
    whole = leaps.context * done_s + leaps.batch * (leaps.first_s * numbers + leaps.increment_s * squares)
    rest: Floats = (leaps.context + leaps.batch * done) * (elapsed_s - done_s)
    return whole + rest


def _lasting_s(leaps: NDArray[Any], steps: NDArray[Any]) -> Floats:
    steps = steps.astype(np.float64)
    lasting_s: Floats = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    return lasting_s


def _first_covered(instance: Ints, begin_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """The part of each leap during which no earlier leap of its instance runs: time in two streams counts once."""
    order = _in_turn(instance, begin_s, end_s)
    if order is not None:
        same = np.append(False, instance[order][1:] == instance[order][:-1])
        before_s = np.where(same, np.roll(end_s[order], 1), -np.inf)
        alone_s = np.empty(len(order))
        alone_s[order] = np.maximum(begin_s[order], before_s)
        return alone_s, np.maximum(alone_s, end_s)
    table = pl.DataFrame({"instance": instance, "begin": begin_s, "end": end_s}).with_row_index("row")
    table = table.sort("instance", "begin", maintain_order=True)
    covered = pl.col("end").cum_max().shift(1).over("instance").fill_null(-np.inf)
    table = table.with_columns(begin=pl.max_horizontal("begin", covered)).sort("row")
    fresh_s = table["begin"].to_numpy()
    return fresh_s, np.maximum(fresh_s, table["end"].to_numpy())


def _in_turn(instance: Ints, begin_s: Floats, end_s: Floats) -> Ints | None:
    """The order of leaps by instance and start, in which no leap of an instance ends before one that started
    earlier.
    """
    if instance.max(initial=0) >= np.iinfo(np.int16).max:
        return None
    order = np.argsort(instance.astype(np.int16), kind="stable")
    same = instance[order][1:] == instance[order][:-1]
    back = (np.diff(begin_s[order]) < 0) | (np.diff(end_s[order]) < 0)
    return None if (same & back).any() else order


def _pool_of(result: Result, instance: NDArray[Any]) -> Ints:
    """The pool of each instance; one past the last pool if there is no instance."""
    pools = np.append(result.instances["pool"], len(result.cluster.pools)).astype(np.int64)
    return pools[np.where(instance < 0, len(pools) - 1, instance)]


def _with_total(by_group: NDArray[Any]) -> Floats:
    """The sum of all groups, before the pools; the last group, which is no pool, counts in that sum only."""
    return np.vstack([by_group.sum(axis=0), by_group[:-1]]).astype(np.float64)


def _total(by_pool: Floats) -> Floats:
    return np.vstack([by_pool.sum(axis=0), by_pool])


def _lengths_s(windows: Windows) -> Floats:
    """The lengths of windows; 1 for a window without length, in which nothing lasts."""
    lengths_s = np.diff(windows.edges_s)
    return np.where(lengths_s > 0, lengths_s, 1.0)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
