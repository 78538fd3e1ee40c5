"""Limits on the figures of a whole run, as papers set them for a capacity: on a mean or a percentile over requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_positive
from framework.errors import InputError
from framework.metrics.paper_scores import gaps_of, job_completion_time_s, normalized_latency_s
from framework.metrics.slo import Slo, judge
from framework.metrics.slowdown import Slowdown
from framework.result import Result

Floats = NDArray[np.float64]
_ANY = Slo(ttft_s=None, tpot_s=None)
_OF_REQUESTS: dict[str, Callable[[Result], Floats]] = {
    "queue_s": lambda result: result.requests["start_s"] - result.requests["arrival_s"],
    "ttft_s": lambda result: judge(result, _ANY).ttft_s,
    "tpot_s": lambda result: judge(result, _ANY).tpot_s,
    "e2e_s": job_completion_time_s,
    "normalized_s": normalized_latency_s,
}
_OF_SLOWDOWN = ("ttft_slowdown", "tpot_slowdown", "e2e_slowdown")
_OF_GAPS = {f"{name}_tbt_s": f"{field}_s" for name, field in {"mean": "mean", "p50": "median", "p99": "p99"}.items()}
_NAME = re.compile(r"(mean|p(?P<percentile>\d\d?(\.\d+)?))_(?P<quantity>\w+)")


def require_known(where: str, limits: Mapping[str, float]) -> None:
    """Raise InputError, beginning with `where`, for an unknown figure and for a limit that is not positive."""
    for name, limit in limits.items():
        match = _NAME.fullmatch(name)
        if name not in _OF_GAPS and (match is None or match["quantity"] not in (*_OF_REQUESTS, *_OF_SLOWDOWN)):
            raise InputError(
                f"{where}.{name}: no such figure; choose mean or a percentile (p90) of "
                f"{', '.join((*_OF_REQUESTS, *_OF_SLOWDOWN))}, as in p50_queue_s, or {', '.join(_OF_GAPS)}"
            )
        require_positive(f"{where}.{name}", limit)


def exceeded(
    result: Result, limits: Mapping[str, float], first: int, last: int, slowdown: Slowdown | None = None
) -> str | None:
    """The first of `limits` that requests `first` to `last - 1` exceed, None if they keep all.

    `mean_ttft_s`, for example, is over the requests that have a TTFT; a request that was not served counts as infinite.
    `p99_tbt_s` is over all gaps between tokens of the whole run. `ttft_slowdown` and similar figures are relative to
    the times alone of `slowdown`. Raises InputError for such a limit without it.
    """
    found = ((name, figure(result, name, first, last, slowdown)) for name in limits)
    return next((name for name, value in found if not value <= limits[name]), None)


def figure(result: Result, name: str, first: int, last: int, slowdown: Slowdown | None = None) -> float:
    """The figure `name` of requests `first` to `last - 1`; see `exceeded`."""
    if name in _OF_GAPS:
        return float(getattr(gaps_of(result).tokens, _OF_GAPS[name]))
    match = _NAME.fullmatch(name)
    assert match is not None
    quantity = match["quantity"]
    if quantity not in _OF_SLOWDOWN:
        values = _OF_REQUESTS[quantity](result)
    elif slowdown is None:
        raise InputError(f"{name} has no machine to compare with; set slo=slowdown")
    else:
        values = slowdown.factors(result)[quantity.removesuffix("_slowdown")]
    values = values[first:last]
    unserved = np.isnan(result.requests["first_token_s"][first:last])
    values = np.where(unserved, np.inf, values)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return 0.0
    if match["percentile"] is None:
        return float(values.mean())
    return float(np.percentile(values, float(match["percentile"]), method="higher"))
