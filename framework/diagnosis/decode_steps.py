"""The parts of decode steps, from the step log: reading of contexts, and what prefills add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.metrics.phases import DecodeClock
from framework.result import Result

Floats = NDArray[np.float64]
_LEAST_STEPS = 4  # least steps without prefills that show the length of a request's own steps
_LONG = 64  # steps of a request that show how its gaps change
_LOW = 5.0  # percentile of steps with prefills that replaces steps without, if there are none


@dataclass(frozen=True)
class DecodeSteps:
    """The parts of decode steps; NaN if there are none.

    For each request (N,):

    `interference_s`: additional time of its decode steps with prefills of others. `context_share`: the share of decode
    steps, on its instance, that reads contexts.

    For the run:

    `step_s`, `context_s`: the mean decode step without prefills, and the part of it that reads contexts. `batch`,
    `context_tokens`: requests in such a step, and tokens that each of them reads. `growth`: the last quarter of the
    steps of long outputs relative to the first one, as a ratio. `stall_s`, `stall_every_s`: the median time that a
    prefill adds to a gap of concurrent decodes, and the mean time from one such prefill to the next.
    """

    interference_s: Floats
    context_share: Floats
    step_s: float
    context_s: float
    batch: float
    context_tokens: float
    growth: float
    stall_s: float
    stall_every_s: float


def decode_steps(result: Result, clock: DecodeClock) -> DecodeSteps:
    """The parts of a run's decode steps, all NaN without decode steps; `clock`: of the run's step log."""
    count = len(result.requests)
    leaps = result.step_log[result.step_log["batch"] > 0]
    pool = result.instances["pool"].astype(np.int64)
    pools = len(result.cluster.pools)
    pure = leaps[leaps["prefill_tokens"] == 0]
    lasting_s = _lasting_s(pure)
    context_s = _context_s(pure, pool, pools)
    own = pool[pure["instance"]]
    step_s = _ratio(np.bincount(own, lasting_s, pools), np.bincount(own, pure["steps"], pools))
    share = np.nan_to_num(_ratio(np.bincount(own, context_s, pools), np.bincount(own, lasting_s, pools)))
    step_s = _with_mixed(step_s, leaps, pool)
    rows = result.token_log[result.token_log["instance"] >= 0]
    interference_s, growth = _interference(clock, rows, step_s[pool])
    decoded_on = np.where(result.requests["decode_instance"] >= 0, result.requests["decode_instance"], 0)
    steps, seconds = float(pure["steps"].sum()), float(lasting_s.sum())
    decodes = float((pure["batch"].astype(np.float64) * pure["steps"]).sum())
    stall_s, every_s = _stalls(leaps, result.step_log, step_s[pool])
    return DecodeSteps(
        interference_s=np.bincount(rows["request"], interference_s, count).astype(np.float64),
        context_share=share[pool[decoded_on]],
        step_s=seconds / steps if steps else np.nan,
        context_s=float(context_s.sum()) / steps if steps else np.nan,
        batch=decodes / steps if steps else np.nan,
        context_tokens=float(_tokens(pure).sum()) / decodes if steps else np.nan,
        growth=growth,
        stall_s=stall_s,
        stall_every_s=every_s,
    )


def _context_s(pure: NDArray[Any], pool: NDArray[np.int64], pools: int) -> Floats:
    """Seconds of each leap that read contexts: the cost of a further token, times the tokens read.

    Each step of a leap is longer than the one before by the cost of one more token for each request. Single steps,
    which do not show this, cost as much a token as the leaps of their pool.
    """
    steps, batch = pure["steps"].astype(np.float64), pure["batch"].astype(np.float64)
    own = pool[pure["instance"]]
    telling = steps > 1
    per_token_s = np.divide(pure["increment_s"], batch, out=np.zeros(len(pure)), where=telling)
    weight = np.where(telling, steps, 0.0)
    mean_s = np.nan_to_num(_ratio(np.bincount(own, per_token_s * weight, pools), np.bincount(own, weight, pools)))
    per_token_s = np.where(telling, per_token_s, mean_s[own])
    read_s: Floats = np.minimum(per_token_s * _tokens(pure), _lasting_s(pure))
    return read_s


def _tokens(pure: NDArray[Any]) -> Floats:
    """KV tokens that decodes read in all steps of each leap."""
    steps, batch = pure["steps"].astype(np.float64), pure["batch"].astype(np.float64)
    tokens: Floats = pure["context"] * steps + batch * steps * (steps - 1) / 2
    return tokens


def _with_mixed(step_s: Floats, leaps: NDArray[Any], pool: NDArray[np.int64]) -> Floats:
    """The seconds of decode steps; for pools whose steps all hold prefills, those of the shortest steps."""
    found = step_s.copy()
    for index in np.flatnonzero(np.isnan(step_s)):
        own_s = leaps["first_s"][pool[leaps["instance"]] == index]
        found[index] = np.percentile(own_s, _LOW) if len(own_s) else 0.0
    return found


def _interference(clock: DecodeClock, rows: NDArray[Any], step_s: Floats) -> tuple[Floats, float]:
    """The seconds that prefills add to the decode steps of each row of the token log; and how gaps grow (`growth`).

    `step_s` (M,): a decode step without prefills, for a request that has had few of them.
    """
    if len(rows) == 0:
        return np.zeros(0), float("nan")
    instance, first, last = rows["instance"], rows["first_step"], rows["last_step"]
    begin, end = clock.at_begin(instance, first), clock.at_end(instance, last)
    mixed_s, mixed = end.mixed_s - begin.mixed_s, end.mixed_steps - begin.mixed_steps
    alone_s, alone = end.steps_s - begin.steps_s - mixed_s, (last - first) - mixed
    known = alone >= _LEAST_STEPS
    own_s = np.where(known, alone_s / np.where(known, alone, 1.0), step_s[instance])
    added_s: Floats = np.where(mixed > 0, np.maximum(mixed_s - mixed * own_s, 0.0), 0.0)

    long = last - first >= _LONG
    quarter = (last - first)[long] // 4
    if not long.any():
        return added_s, float("nan")
    ends = (first[long] + quarter, last[long] - quarter)
    early, late = clock.at_end(instance[long], ends[0]), clock.at_end(instance[long], ends[1])
    early_s = _alone(early.steps_s - begin.steps_s[long], early.mixed_s - begin.mixed_s[long])
    late_s = _alone(end.steps_s[long] - late.steps_s, end.mixed_s[long] - late.mixed_s)
    early_steps = quarter - (early.mixed_steps - begin.mixed_steps[long])
    late_steps = quarter - (end.mixed_steps[long] - late.mixed_steps)
    both = (early_steps > 0) & (late_steps > 0)
    if not both.any():
        return added_s, float("nan")
    ratio = (late_s[both] / late_steps[both]) / (early_s[both] / early_steps[both])
    return added_s, float(np.median(ratio))


def _alone(steps_s: Floats, mixed_s: Floats) -> Floats:
    alone_s: Floats = np.maximum(steps_s - mixed_s, 1e-12)
    return alone_s


def _stalls(leaps: NDArray[Any], log: NDArray[Any], step_s: Floats) -> tuple[float, float]:
    """The median time that a prefill adds to a gap of concurrent decodes, and the seconds from one prefill to
    the next.
    """
    mixed = leaps[leaps["prefill_tokens"] > 0]
    decoding = np.isin(log["instance"], np.unique(leaps["instance"]))
    alone = log[(log["batch"] == 0) & (log["stream"] == 0) & decoding]
    added_s = np.concatenate([mixed["first_s"] - step_s[mixed["instance"]], alone["first_s"]])
    if len(added_s) == 0 or len(leaps) == 0:
        return float("nan"), float("nan")
    span_s = float((log["start_s"] + _lasting_s(log)).max() - log["start_s"].min())
    instances = len(np.unique(leaps["instance"]))
    return float(np.median(added_s)), span_s * instances / len(added_s)


def _lasting_s(leaps: NDArray[Any]) -> Floats:
    steps = leaps["steps"].astype(np.float64)
    lasting_s: Floats = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    return lasting_s


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
