"""The gateway before the fleet: requests wait there in bands until some instance can take them (SEMANTICS.md: Gateway).

The terms and the default thresholds are those of flow control in the Gateway API inference extension and llm-d
(llm-d-inference-scheduler: pkg/epp/framework/plugins/flowcontrol, README files of the utilization and the concurrency
detector, and of the fairness policies).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, Share, check_fields
from framework.errors import InputError, shown

Integers = NDArray[np.int64]
_LIMITS = ("most_waiting", "ttl_s")


@dataclass(frozen=True)
class Gateway:
    """When requests are released to the fleet, in which order, and which are refused. No gateway by default.

    `saturation`: what the fleet is judged by. utilization: an instance's score is the larger of its queue length over
    `queue_threshold` and the used share of its KV blocks over `kv_threshold`; in_flight: the requests on instances over
    `most_in_flight` for each instance that takes prompts. `saturated_at`: the fleet is saturated if the mean score is 1
    or more, or if every score is.

    `bands_by`: the column of a trace that divides requests into bands. Those of a higher priority are released first;
    classes or tenants in the order of `band_order`, the others last. `fairness`: whose request of a band is next: the
    first to arrive, one of each tenant in turn, or one of the tenant with the fewest tokens so far, which are those of
    prompts and `output_weight` times those of outputs (VTC, arXiv 2401.00588).

    `most_waiting`: more than these may not wait, None: no limit. `ttl_s`: who has waited for so long is refused.
    `bands`: both for single bands, as in `{"batch": {"ttl_s": 60}}`. Raises InputError for a value out of range.
    """

    saturation: Literal["none", "utilization", "in_flight"] = "none"
    queue_threshold: Positive = 5.0
    kv_threshold: Share = 0.8
    saturated_at: Literal["mean", "all"] = "mean"
    most_in_flight: Count = 100
    bands_by: Literal["priority", "slo_class", "tenant"] = "priority"
    band_order: Sequence[str] = ()
    fairness: Literal["arrival", "round_robin", "tokens"] = "arrival"
    output_weight: NotNegative = 2.0
    most_waiting: Count | None = None
    ttl_s: NotNegative | None = None
    bands: Mapping[str, Mapping[str, float | None]] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "gateway.")
        if isinstance(self.band_order, str) or not all(isinstance(name, str) for name in self.band_order):
            raise InputError(f"gateway.band_order must be a list of names, got {shown(self.band_order)}")
        if len(set(self.band_order)) < len(self.band_order):
            raise InputError(f"gateway.band_order names a band twice: {', '.join(self.band_order)}")
        if self.band_order and self.bands_by == "priority":
            raise InputError("gateway.band_order orders classes or tenants; set gateway.bands_by=slo_class or tenant")
        if self.bands_by != "priority" and not self.band_order and self:
            raise InputError(f"gateway.bands_by={self.bands_by} needs gateway.band_order, the first band first")
        for name, limits in (self.bands or {}).items():
            _check_band(f"gateway.bands.{name}", limits)

    def __bool__(self) -> bool:
        """Whether there is a gateway."""
        return self.saturation != "none"

    def bands_of(self, trace: Any) -> tuple[tuple[str, ...], Integers]:
        """The bands, the first to be released first, and the band of each request of a Workload, (N,).

        Raises InputError for limits of a band that no request is in.
        """
        names, bands = self._divided(trace)
        unknown = sorted(set(map(str, self.bands or {})) - set(names))
        if unknown:
            there = ", ".join(names)
            raise InputError(f"gateway.bands.{unknown[0]}: no request is in this band; the bands are {there}")
        return names, bands

    def _divided(self, trace: Any) -> tuple[tuple[str, ...], Integers]:
        column = getattr(trace, self.bands_by)
        if self.bands_by == "priority":
            priority = np.zeros(len(trace), np.int64) if column is None else column
            values, bands = np.unique(-priority, return_inverse=True)
            return tuple(str(-value) for value in values), bands
        if column is None:
            raise InputError(f"gateway.bands_by={self.bands_by}: trace {trace.name} has no column {self.bands_by}")
        order = {name: band for band, name in enumerate(self.band_order)}
        return (*self.band_order, "others"), np.array([order.get(name, len(order)) for name in column])

    def limits_of(self, band: str) -> tuple[float, float]:
        """Requests of the band that may wait, and seconds that each may; inf: no limit."""
        own = {str(name): limits for name, limits in (self.bands or {}).items()}.get(band, {})
        most, ttl_s = own.get("most_waiting"), own.get("ttl_s", self.ttl_s)
        return math.inf if most is None else most, math.inf if ttl_s is None else ttl_s


def _check_band(name: str, limits: Any) -> None:
    if not isinstance(limits, Mapping):
        raise InputError(f"{name} must be limits, as {{ttl_s: 60}}; got {shown(limits)}")
    for key in limits:
        if key not in _LIMITS:
            raise InputError(f"{name}.{key}: no such limit; choose from {', '.join(_LIMITS)}")
    check_fields(_Band(**limits), f"{name}.")


@dataclass(frozen=True)
class _Band:
    """The limits of one band."""

    most_waiting: Count | None = None
    ttl_s: NotNegative | None = None


OPEN = Gateway()
