"""Whether a system keeps up with its load, from one run that plays the same requests several times.

A run that starts empty flatters the system, since an endless queue takes time to show. So a run is judged by its second
half. Its last quarter is compared, request by request, with the same requests half a run before, which removes the
variation of the trace. A backlog anywhere shows in the time that requests spend in the system (Little's law); under an
overload by a share x that time grows by about x seconds each second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.metrics.service.overdue import exceeds
from framework.metrics.slo import Slo, judge
from framework.result import FINISHED, Result

SUSTAINED, MISSED, GROWING, UNDECIDED = "sustained", "SLO missed", "queue grows", "undecided"
_BATCHES = 20  # batches of successive requests, whose means count as independent
_CONFIDENCE = 0.95
_STRAGGLERS = 0.01  # share of requests


@dataclass(frozen=True)
class Reading:
    """What a run says of its rate.

    `attainments`: of the first half and of the second. `growth`: of the time that requests spend in the system, in
    seconds per second, with the half width of its 95 % interval, infinite if there are too few requests.
    """

    attainments: tuple[float, float]
    growth: float
    growth_error: float
    verdict: str


def read(result: Result, slo: Slo, requests: int, span_s: float, attainment: float, resolution: float) -> Reading:
    """Judge a run by its first `requests` requests, which arrive over `span_s` seconds and repeat after half of them.

    `SLO missed`: the second half does not attain, nor would that of a longer run. `queue grows`: by more than half of
    `resolution`, beyond noise. `sustained`: by less, and attainment does not fall either. `undecided`: the run is too
    short to distinguish these, or to have filled the system, or it became faster, as it does if the requests that came
    first are left waiting until the end; or more of the first half were not served, and with as many the second would
    not attain.
    """
    half = requests // 2
    good = judge(result, slo).good[:requests].astype(np.float64)
    attainments = float(good[:half].mean()), float(good[half:].mean())
    growth_s, error_s = _later_less_earlier(_time_in_system_s(result)[:requests])
    growth, error = growth_s / (span_s / 2), error_s / (span_s / 2)
    change, change_error = _later_less_earlier(good)
    fades = change < -change_error and attainments[1] + change < attainment
    if attainments[1] < attainment:
        verdict = MISSED
    elif not _is_filled(result, requests, span_s):
        verdict = UNDECIDED
    elif growth - error > resolution / 2:
        verdict = GROWING
    elif growth + error < -resolution / 2:  # those that came first were left waiting
        verdict = UNDECIDED
    else:
        is_level = growth + error < resolution / 2 and not fades
        is_served = attainments[1] - _neglected(result, half) >= attainment
        verdict = SUSTAINED if is_level and is_served else UNDECIDED
    return Reading(attainments, growth, error, verdict)


def undisturbed_misses(result: Result, slo: Slo, requests: int) -> float:
    """The share of the second half that misses the SLO although only requests of the same instant are in the system.

    Stretching arrival times helps none of these requests.
    """
    arrival_s, end_s = result.requests["arrival_s"], result.requests["end_s"]
    order = np.argsort(arrival_s, kind="stable")
    arrival_s = arrival_s[order]
    empty = np.append(True, arrival_s[1:] >= np.fmax.accumulate(end_s[order])[:-1])  # empty on arrival
    period = np.cumsum(empty) - 1  # number of the period in which the system is never empty
    first_s, last_s = arrival_s[empty], arrival_s[np.append(empty[1:], True)]
    undisturbed = np.zeros(len(order), np.bool_)
    undisturbed[order] = (first_s == last_s)[period]
    judged = slice(requests // 2, requests)
    return float((undisturbed & ~judge(result, slo).good)[judged].mean())


def _time_in_system_s(result: Result) -> NDArray[np.float64]:
    """The time of each request in the system, NaN if it was not served."""
    requests = result.requests
    return np.where(requests["state"] == FINISHED, requests["end_s"] - requests["arrival_s"], np.nan)


def _later_less_earlier(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean of the last quarter less that of the same requests half a run before, and its 95 % half width.

    It uses the means of batches of successive requests. Pairs with a NaN are left out.
    """
    half = len(values) // 2
    differences = values[half:] - values[:half]
    differences = differences[half // 2 :]
    differences = differences[~np.isnan(differences)]
    batches = min(_BATCHES, len(differences))
    if batches < 2:
        return 0.0, math.inf
    means = np.array([batch.mean() for batch in np.array_split(differences, batches)])
    from scipy.special import stdtrit  # scipy takes a while to import, and most runs search for no capacity

    quantile = float(stdtrit(batches - 1, (1 + _CONFIDENCE) / 2))
    return float(means.mean()), quantile * float(means.std(ddof=1)) / math.sqrt(batches)


def _is_filled(result: Result, requests: int, span_s: float) -> bool:
    """Whether requests of the first eighth, and their sessions, ended before the first quarter did."""
    quarter_s = float(result.workload.arrival_s[0]) + span_s / 4
    ends_s = result.requests["end_s"][: requests // 8]
    return len(ends_s) > 0 and float((ends_s > quarter_s).mean()) <= _STRAGGLERS


def _neglected(result: Result, half: int) -> float:
    """By how much the share of requests that were not served is larger in the first half; 0 if no more than chance."""
    unserved = result.requests["state"] != FINISHED
    first, second = int(unserved[:half].sum()), int(unserved[half : 2 * half].sum())
    return (first - second) / half if exceeds((first, half), (second, half)) else 0.0
