"""The time of each request by phase, from arrival to last token; the phases add up to its E2E."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.result import FINISHED, Result

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PHASES: Mapping[str, str] = {
    "queue_s": "waits for its first admission",
    "prefill_s": "its prompt is computed, again where that was preempted",
    "transfer_s": "its KV moves to where it decodes",
    "join_s": "waits to take part in a decode step",
    "decode_s": "decode steps without prefills in them",
    "beside_prefill_s": "decode steps that have prefills of others in them",
    "stalled_s": "waits between decode steps of its instance, for steps of prefills alone",
    "displaced_s": "preempted, swapped out, or on its way to another instance",
}


def phase_table(result: Result, clock: DecodeClock | None = None) -> pl.DataFrame:
    """Seconds in each of PHASES, one row a request; null if it did not finish. `clock`: of the run's step log.

    If the step log was reduced, `decode_s` is all the time after the transfer, and phases that need the log are null.
    """
    requests = result.requests
    finished = requests["state"] == FINISHED
    first_s, end_s = requests["prefill_end_s"], requests["end_s"]
    moved_s = np.fmax(first_s, requests["transfer_end_s"])
    known = {"queue_s": requests["start_s"] - requests["arrival_s"], "prefill_s": first_s - requests["start_s"]}
    if result.engine.log == "full":
        spent = _decoding(result, clock or DecodeClock(result.step_log))
        joined_s = np.where(np.isnan(spent.joined_s), end_s, spent.joined_s)
        moved_s = np.minimum(moved_s, joined_s)
        alone_s = np.isnan(spent.joined_s)  # one token, or all later ones by recomputation
        join_s = np.where(alone_s, 0.0, joined_s - moved_s)
        later_s = end_s - moved_s - join_s - spent.steps_s - spent.stalled_s
        phases = {
            "transfer_s": moved_s - first_s,
            "join_s": join_s,
            "decode_s": spent.steps_s - spent.mixed_s,
            "beside_prefill_s": spent.mixed_s,
            "stalled_s": spent.stalled_s,
            "displaced_s": later_s,
        }
    else:
        moved_s = np.minimum(moved_s, end_s)
        unknown = np.full(len(requests), np.nan)
        phases = dict.fromkeys(PHASES, unknown) | {"transfer_s": moved_s - first_s, "decode_s": end_s - moved_s}
    columns = phases | known
    values = {name: np.where(finished, _without_rounding(columns[name], end_s), np.nan) for name in PHASES}
    return pl.DataFrame([pl.Series(name, column, nan_to_null=True) for name, column in values.items()])


@dataclass(frozen=True)
class _Decoding:
    """When the first decode step of each request began, NaN if none did, and its seconds in steps; shape (N,)."""

    joined_s: Floats
    steps_s: Floats
    mixed_s: Floats
    stalled_s: Floats


def _decoding(result: Result, clock: DecodeClock) -> _Decoding:
    count = len(result.requests)
    rows = result.token_log[result.token_log["instance"] >= 0]
    request = rows["request"].astype(np.int64)
    joined_s = np.full(count, np.inf)
    if len(rows) == 0:
        none = np.zeros(count)
        return _Decoding(np.full(count, np.nan), none, none, none)
    begin = clock.at_begin(rows["instance"], rows["first_step"])
    end = clock.at_end(rows["instance"], rows["last_step"])
    np.minimum.at(joined_s, request, begin.time_s)
    steps_s = end.steps_s - begin.steps_s

    def summed(values: Floats) -> Floats:
        total_s: Floats = np.bincount(request, values, count).astype(np.float64)
        return total_s

    stalled_s = _without_rounding(end.time_s - begin.time_s - steps_s, end.time_s)
    mixed_s = _without_rounding(end.mixed_s - begin.mixed_s, end.time_s)
    return _Decoding(
        np.where(np.isinf(joined_s), np.nan, joined_s), summed(steps_s), summed(mixed_s), summed(stalled_s)
    )


class Moment(NamedTuple):
    """A time of each instance's decode steps, shape (N,), and the time spent in decode steps by then.

    `mixed_s`, `mixed_steps`: the part of it in steps that also prefill.
    """

    time_s: Floats
    steps_s: Floats
    mixed_s: Floats
    mixed_steps: Floats


class DecodeClock:
    """When the decode steps of instances begin and end, and how much time instances have spent in them by then."""

    def __init__(self, step_log: NDArray[Any]) -> None:
        decoding = np.flatnonzero(step_log["batch"] > 0)
        order = decoding[_by_instance(step_log["instance"][decoding], step_log["step0"][decoding])]
        instance, step0, steps = (step_log[name][order].astype(np.int64) for name in ("instance", "step0", "steps"))
        self._width = int((step0 + steps).max(initial=0)) + 1
        self._keys = instance * self._width + step0
        self._step0 = step0
        self._start_s, self._first_s, self._increment_s = (
            step_log[name][order] for name in ("start_s", "first_s", "increment_s")
        )
        self._mixed = step_log["prefill_tokens"][order] > 0
        lasting_s = _lasting_s(self._first_s, self._increment_s, steps.astype(np.float64))
        self._before_s = np.cumsum(lasting_s) - lasting_s
        mixed_s = np.where(self._mixed, lasting_s, 0.0)
        self._mixed_before_s = np.cumsum(mixed_s) - mixed_s
        mixed_steps = np.where(self._mixed, steps, 0).astype(np.float64)
        self._mixed_steps_before = np.cumsum(mixed_steps) - mixed_steps

    def at_begin(self, instance: NDArray[Any], steps: NDArray[Any]) -> Moment:
        """When the step after the first `steps` decode steps of each instance begins."""
        return self._moment(instance, steps, steps)

    def at_end(self, instance: NDArray[Any], steps: NDArray[Any]) -> Moment:
        """When the last of the first `steps` decode steps of each instance ends."""
        return self._moment(instance, steps, steps - 1)

    def begin_s(self, instance: NDArray[Any], steps: NDArray[Any]) -> Floats:
        """The times of `at_begin` alone."""
        place, _, into_s = self._into(instance, steps, steps)
        return np.asarray(self._start_s[place] + into_s)

    def end_s(self, instance: NDArray[Any], steps: NDArray[Any]) -> Floats:
        """The times of `at_end` alone."""
        place, _, into_s = self._into(instance, steps, steps - 1)
        return np.asarray(self._start_s[place] + into_s)

    def _moment(self, instance: NDArray[Any], steps: NDArray[Any], lying: NDArray[Any]) -> Moment:
        place, into, into_s = self._into(instance, steps, lying)
        mixed = self._mixed[place]
        mixed_s = self._mixed_before_s[place] + np.where(mixed, into_s, 0.0)
        mixed_steps = self._mixed_steps_before[place] + np.where(mixed, into, 0.0)
        return Moment(self._start_s[place] + into_s, self._before_s[place] + into_s, mixed_s, mixed_steps)

    def _into(self, instance: NDArray[Any], steps: NDArray[Any], lying: NDArray[Any]) -> tuple[Ints, Floats, Floats]:
        """The leap with step number `lying`, how many of its steps are among the first `steps`, and their seconds."""
        keys = instance.astype(np.int64) * self._width + lying
        order = np.argsort(keys)  # searching millions of leaps in their order is several times as fast
        place = np.empty(len(keys), np.int64)
        place[order] = np.searchsorted(self._keys, keys[order], side="right") - 1
        into = (steps - self._step0[place]).astype(np.float64)
        return place, into, _lasting_s(self._first_s[place], self._increment_s[place], into)


def _by_instance(instance: Ints, step0: Ints) -> Ints:
    """The order of leaps by instance and step. The log has each instance's in order, and a stable sort keeps that."""
    small = instance.max(initial=0) < np.iinfo(np.int16).max
    order = np.argsort(instance.astype(np.int16) if small else instance, kind="stable")
    ordered, steps = instance[order], step0[order]
    if ((ordered[1:] == ordered[:-1]) & (steps[1:] < steps[:-1])).any():
        return np.lexsort((step0, instance))
    return order


def _lasting_s(first_s: Floats, increment_s: Floats, steps: Floats) -> Floats:
    lasting_s: Floats = steps * first_s + steps * (steps - 1) / 2 * increment_s
    return lasting_s


def _without_rounding(values_s: Floats, scale_s: Floats) -> Floats:
    """Differences of times, with those that rounding takes below 0 or next to it set to 0."""
    return np.where(np.abs(values_s) <= 1e-11 * np.abs(scale_s), 0.0, values_s)
