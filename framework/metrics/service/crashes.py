"""The cost of crashes: time that instances were down, lost KV, and how soon requests continued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import LOST, RECOMPUTED, RESTORED
from framework.metrics.clock import Clock
from framework.metrics.service.token_times import TokenTimes, token_times
from framework.result import Result

Floats = NDArray[np.float64]
_RECOVERIES = {"dropped_recomputed": RECOMPUTED, "dropped_restored": RESTORED, "dropped_failed": LOST}


def crash_figures(result: Result, clock: Clock) -> dict[str, Any]:
    """The figures of a run in which instances may crash, by the summary's names; none if no instance may.

    `availability`: share of the time of all instances, from the first request to the last answer, in which they were up
    and made progress. `dropped` counts a request each time a crash took it off its instance; `lost_tokens` counts the
    KV tokens lost that way. `dropped_recomputed`, `dropped_restored` and `dropped_failed` say how often such a request
    was then computed again, restored from a backup, or failed; `restored_tokens` counts the KV tokens that were read
    from backups. The recovery of a dropped request lasts from the crash, or its later arrival, to its next token, over
    requests that got one. `crashes`: one row each, with the time until each request that it dropped had a token or had
    ended.
    """
    if not result.engine.faults:
        return {}
    next_s = next_tokens_s(result)
    recovery_s = recoveries_s(result, next_s)
    known_s = recovery_s[~np.isnan(recovery_s)]
    statistics = {"median_recovery_s": 50, "p99_recovery_s": 99}
    return {
        "availability": _availability(result, clock),
        "dropped": len(result.drops),
        "lost_tokens": int(result.drops["lost_tokens"].sum()),
        **{key: int((result.drops["recovery"] == recovery).sum()) for key, recovery in _RECOVERIES.items()},
        "restored_tokens": int(result.instances["restored_tokens"].sum()),
        **{key: float(np.percentile(known_s, q)) if len(known_s) else None for key, q in statistics.items()},
        "crashes": list(_rows(result, next_s)),
    }


def recoveries_s(result: Result, next_s: Floats) -> Floats:
    """Seconds from each drop's crash, or the request's later arrival, to `next_s`, (drops,)."""
    began_s = result.crashes["at_s"][result.drops["crash"]]
    return next_s - np.maximum(began_s, result.requests["arrival_s"][result.drops["request"]])


def next_tokens_s(result: Result) -> Floats:
    """When the request of each drop got its next token, (drops,); NaN if it got none, or if the run's logs were
    reduced.
    """
    found = np.full(len(result.drops), np.nan)
    if result.engine.log == "reduced" or len(found) == 0:
        return found
    times = token_times(result)
    chosen = np.isin(times.request, result.drops["request"])
    single = np.isin(times.single_request, result.drops["request"])
    dropped_s = result.crashes["noticed_s"][result.drops["crash"]]
    for k, (r, after_s) in enumerate(zip(result.drops["request"].tolist(), dropped_s.tolist(), strict=True)):
        found[k] = min(_tokens_after_s(times, chosen, single, r, after_s), default=np.nan)
    return found


def _tokens_after_s(
    times: TokenTimes, chosen: NDArray[np.bool_], single: NDArray[np.bool_], request: int, after_s: float
) -> Iterator[float]:
    """The first token of a request after a time, of each span at most one."""
    for k in np.flatnonzero(chosen)[times.request[chosen] == request].tolist():
        ends_s = times.ends_s[int(times.instance[k])][int(times.first[k]) : int(times.last[k])]
        behind = int(np.searchsorted(ends_s, after_s, side="right"))
        if behind < len(ends_s):
            yield float(ends_s[behind])
    own_s = times.single_s[single][times.single_request[single] == request]
    yield from own_s[own_s > after_s].tolist()


def _availability(result: Result, clock: Clock) -> float | None:
    first_s = float(np.nanmin(result.requests["arrival_s"]))
    crashes = result.crashes
    down_s = np.minimum(crashes["back_s"], result.end_s) - np.maximum(crashes["at_s"], first_s)
    lost_s = float(np.maximum(down_s, 0.0) @ crashes["instances"])
    lost_s += sum(result.end_s - max(at_s, first_s) for at_s in _hanging_since_s(result))
    whole_s = len(result.instances) * clock.run_s
    return 1.0 - lost_s / whole_s if whole_s > 0 else None


def _hanging_since_s(result: Result) -> Iterator[float]:
    """For each instance that hangs as the run ends, which is in no row of a crash, when its last crash began."""
    if not result.hung.any():
        return
    crashes = [one for one in result.engine.faults.schedule(result.cluster).crashes if one.at_s <= result.end_s]
    for group in result.cluster.groups:
        if result.hung[group[0]]:
            began_s = max((one.at_s for one in crashes if one.instance in group), default=result.end_s)
            yield from [began_s] * len(group)


def _rows(result: Result, next_s: Floats) -> Iterator[dict[str, Any]]:
    """One row for each crash: time, instance, duration, dropped requests, and the time when all of them had
    continued or ended.
    """
    ends_s = result.requests["end_s"][result.drops["request"]]
    settled_s = np.fmin(next_s, ends_s) - result.crashes["at_s"][result.drops["crash"]]
    for k, crash in enumerate(result.crashes):
        own = result.drops["crash"] == k
        late_s = float(crash["noticed_s"] - crash["at_s"])
        late = {"detected_after_s": late_s} if late_s > 0 else {}
        yield late | {
            "at_s": float(crash["at_s"]),
            "instance": int(crash["instance"]),
            "instances": int(crash["instances"]),
            "down_s": float(crash["back_s"] - crash["noticed_s"]),
            "dropped": int(own.sum()),
            "lost_tokens": int(result.drops["lost_tokens"][own].sum()),
            "settled_s": float(settled_s[own].max()) if own.any() and result.engine.log != "reduced" else None,
        }
