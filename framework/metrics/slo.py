"""The limits that a good request keeps, and the judgement of each request of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import MOST_S, Positive, check_fields
from framework.errors import InputError
from framework.metrics.paper_scores import gaps_of, normalized_latency_s, slowest_tbt_s
from framework.metrics.service.late_turns import sent_in_time
from framework.metrics.service.pacing import READING_TOKENS_S, reader_wait_s
from framework.metrics.slowdown import Slowdown
from framework.result import FINISHED, Result
from framework.workload import Workload

Floats = NDArray[np.float64]
_TAIL = 0.1
# Limits other than TTFT and TPOT, and the quantity of a request that each limits; NaN keeps it.
_FURTHER = {
    "tbt_p99_s": lambda result: gaps_of(result).request_p99_s,
    "tbt_tail_s": lambda result: slowest_tbt_s(result, _TAIL),
    "normalized_s": normalized_latency_s,
}
_LIMITS = ("ttft_s", "tpot_s", *_FURTHER, "reader_wait_s")


@dataclass(frozen=True)
class Slo:
    """Limits that a good request keeps, in seconds; None: not in force.

    Attributes:
        ttft_s: On the time from arrival to first token.
        tpot_s: On the mean time per output token after the first.
        tbt_p99_s: On the 99th percentile of a request's gaps between tokens.
        tbt_tail_s: On the mean of the slowest tenth of these gaps.
        normalized_s: On the latency per output token.
        reader_wait_s: On the time that a reader waits after the first token (`framework.metrics.service.pacing`).
        reading_tokens_s: Tokens/s of that reader.
        classes: Separate limits for values of `slo_class`, as in `{"batch": {"ttft_s": 30.0, "tpot_s": None}}`; a class
            has the other limits of all requests.
        slowdown: Limits of all requests, relative to their times alone.

    Raises:
        InputError: For a limit that is not positive, and for an unknown name.

    Example:
        >>> strict = servelab.Slo(ttft_s=0.5, tpot_s=0.02)
        >>> strict.scaled(2.0).ttft_s
        1.0
        >>> run.judged_by(strict).summary["slo_attainment"] <= run.summary["slo_attainment"]
        True
    """

    ttft_s: Positive | None = 2.0
    tpot_s: Positive | None = 0.05
    tbt_p99_s: Positive | None = None
    tbt_tail_s: Positive | None = None
    normalized_s: Positive | None = None
    reader_wait_s: Positive | None = None
    reading_tokens_s: Positive = READING_TOKENS_S
    classes: Mapping[str, Mapping[str, Positive | None]] | None = field(default_factory=dict)
    slowdown: Slowdown | None = None

    def __post_init__(self) -> None:
        for where, limits in self._class_limits():
            unknown = [name for name, _ in limits.items() if name not in _LIMITS]
            if unknown:
                raise InputError(f"{where}.{unknown[0]}: no such limit; choose from {', '.join(_LIMITS)}")
        check_fields(self, "slo.")

    def _class_limits(self) -> list[tuple[str, Mapping[str, float | None]]]:
        return [(f"slo.classes.{name}", limits) for name, limits in (self.classes or {}).items()]

    @property
    def is_empty(self) -> bool:
        """Whether no limit is in force, so that every finished request is good."""
        own = [getattr(self, name) for name in _LIMITS]
        of_classes = [limit for limits in (self.classes or {}).values() for limit in limits.values()]
        return self.slowdown is None and all(limit is None for limit in (*own, *of_classes))

    def scaled(self, factor: float) -> Slo:
        """The SLO with every limit `factor` times as long, at most the longest allowed; also of classes."""

        def of(limits: Mapping[str, float | None]) -> dict[str, float | None]:
            return {name: None if limit is None else min(factor * limit, MOST_S) for name, limit in limits.items()}

        own: dict[str, Any] = of({name: getattr(self, name) for name in _LIMITS})
        classes = {name: of(limits) for name, limits in (self.classes or {}).items()}
        slowdown = None if self.slowdown is None else self.slowdown.scaled(factor)
        return replace(self, **own, classes=classes, slowdown=slowdown)

    def limits_s(self, name: str, slo_class: tuple[str, ...] | None, count: int) -> Floats:
        """The limit `name` (such as "ttft_s") of each of `count` requests, (count,); inf if not in force."""
        limits = np.full(count, _or_inf(getattr(self, name)))
        if slo_class is not None:
            classes = np.asarray(slo_class)
            for own, values in (self.classes or {}).items():
                if name in values:
                    limits[classes == own] = _or_inf(values[name])
        return limits

    def allowed_s(self, workload: Workload) -> Floats:
        """From sending to last token, (N,): the TTFT limit and the TPOT limit of each later token, or the limit of
        latency per token if that is less; inf if these do not limit it.
        """
        count, later = len(workload), workload.output_tokens - 1
        names = ("ttft_s", "tpot_s", "normalized_s")
        ttft_s, tpot_s, token_s = (self.limits_s(name, workload.slo_class, count) for name in names)
        decoding_s = np.where(later > 0, tpot_s * np.maximum(later, 1), 0.0)
        return np.minimum(ttft_s + decoding_s, token_s * workload.output_tokens)


@dataclass(frozen=True)
class Judged:
    """Latencies of each request, NaN if undefined, and whether it keeps the SLO; arrays of shape (N,).

    `reader_wait_s` is None if the SLO does not limit it.
    """

    ttft_s: Floats
    tpot_s: Floats
    ttft_ok: NDArray[np.bool_]
    tpot_ok: NDArray[np.bool_]
    good: NDArray[np.bool_]
    reader_wait_s: Floats | None = None


def judge(result: Result, slo: Slo) -> Judged:
    """Judge each request of a run by the SLO, as defined in `framework.metrics.request_table`.

    Raises InputError for a limit on what the run has not kept.
    """
    requests, workload = result.requests, result.workload
    count = len(requests)
    finished = requests["state"] == FINISHED
    later_tokens = workload.output_tokens - 1

    ttft_s = requests["first_token_s"] - requests["arrival_s"]
    tpot_s = np.full(count, np.nan)
    lasting_s = requests["end_s"] - requests["first_token_s"]
    np.divide(lasting_s, later_tokens, out=tpot_s, where=finished & (later_tokens > 0))
    ttft_ok = ~np.isnan(ttft_s) & (np.nan_to_num(ttft_s) <= slo.limits_s("ttft_s", workload.slo_class, count))
    tpot_ok = finished & (np.nan_to_num(tpot_s) <= slo.limits_s("tpot_s", workload.slo_class, count))
    good = finished & ttft_ok & tpot_ok & sent_in_time(result, slo.allowed_s(workload))
    for name, score in _FURTHER.items():
        limits = slo.limits_s(name, workload.slo_class, count)
        if np.isfinite(limits).any():
            good &= np.nan_to_num(score(result)) <= limits
    waits_s, limits = None, slo.limits_s("reader_wait_s", workload.slo_class, count)
    if np.isfinite(limits).any():
        waits_s = reader_wait_s(result, slo.reading_tokens_s)
        good &= np.nan_to_num(waits_s) <= limits
    if slo.slowdown is not None:
        good &= slo.slowdown.kept(result)
    return Judged(ttft_s, tpot_s, ttft_ok, tpot_ok, good, waits_s)


def _or_inf(limit: float | None) -> float:
    return np.inf if limit is None else float(limit)
