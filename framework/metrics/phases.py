"""Where the time of each request went, from its arrival to its last token: phases that add up to its E2E."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def phase_table(result: Result) -> pl.DataFrame:
    """Seconds in each of PHASES, one row a request; null for one that did not finish.

    Where the step log was reduced, `decode_s` is all the time after the transfer, and the phases that only the log
    tells are null.
    """
    requests = result.requests
    finished = requests["state"] == FINISHED
    first_s, end_s = requests["prefill_end_s"], requests["end_s"]
    moved_s = np.fmax(first_s, requests["transfer_end_s"])
    known = {"queue_s": requests["start_s"] - requests["arrival_s"], "prefill_s": first_s - requests["start_s"]}
    if result.engine.log == "full":
        spent = _decoding(result)
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
    """Of each request, shape (N,): when its first decode step began, NaN if none did, and its seconds in steps."""

    joined_s: Floats
    steps_s: Floats
    mixed_s: Floats
    stalled_s: Floats


def _decoding(result: Result) -> _Decoding:
    count = len(result.requests)
    rows = result.token_log[result.token_log["instance"] >= 0]
    request = rows["request"].astype(np.int64)
    joined_s = np.full(count, np.inf)
    if len(rows) == 0:
        none = np.zeros(count)
        return _Decoding(np.full(count, np.nan), none, none, none)
    clock = _Clock(result.step_log)
    begin_s, begin_steps_s, begin_mixed_s = clock.at(rows["instance"], rows["first_step"], ends=False)
    end_s, end_steps_s, end_mixed_s = clock.at(rows["instance"], rows["last_step"], ends=True)
    np.minimum.at(joined_s, request, begin_s)
    steps_s = end_steps_s - begin_steps_s

    def summed(values: Floats) -> Floats:
        total_s: Floats = np.bincount(request, values, count).astype(np.float64)
        return total_s

    stalled_s = _without_rounding(end_s - begin_s - steps_s, end_s)
    mixed_s = _without_rounding(end_mixed_s - begin_mixed_s, end_s)
    return _Decoding(
        np.where(np.isinf(joined_s), np.nan, joined_s), summed(steps_s), summed(mixed_s), summed(stalled_s)
    )


class _Clock:
    """When the decode steps of instances begin and end, and how much time they have spent in them by then."""

    def __init__(self, step_log: NDArray[Any]) -> None:
        leaps = step_log[step_log["batch"] > 0]
        leaps = leaps[np.lexsort((leaps["step0"], leaps["instance"]))]
        self._width = int((leaps["step0"] + leaps["steps"]).max(initial=0)) + 1
        self._keys = leaps["instance"].astype(np.int64) * self._width + leaps["step0"]
        self._leaps = leaps
        lasting_s = _lasting_s(leaps, leaps["steps"].astype(np.float64))
        self._mixed = leaps["prefill_tokens"] > 0
        self._before_s = np.cumsum(lasting_s) - lasting_s
        mixed_s = np.where(self._mixed, lasting_s, 0.0)
        self._mixed_before_s = np.cumsum(mixed_s) - mixed_s

    def at(self, instance: NDArray[Any], steps: NDArray[Any], ends: bool) -> tuple[Floats, Floats, Floats]:
        """After so many decode steps of each instance: the time, all time in decode steps, and in mixed ones.

        The time is that at which the step before ended or, unless `ends`, that at which the next one begins.
        """
        key = instance.astype(np.int64) * self._width + steps - ends
        place = np.searchsorted(self._keys, key, side="right") - 1
        leaps = self._leaps[place]
        into_s = _lasting_s(leaps, (steps - leaps["step0"]).astype(np.float64))
        mixed_s = self._mixed_before_s[place] + np.where(self._mixed[place], into_s, 0.0)
        return leaps["start_s"] + into_s, self._before_s[place] + into_s, mixed_s


def _lasting_s(leaps: NDArray[Any], steps: Floats) -> Floats:
    lasting_s: Floats = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    return lasting_s


def _without_rounding(values_s: Floats, scale_s: Floats) -> Floats:
    """Differences of times that come out below 0, or next to it, by rounding are 0."""
    return np.where(np.abs(values_s) <= 1e-11 * np.abs(scale_s), 0.0, values_s)
