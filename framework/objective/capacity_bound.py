"""The rate that no schedule sustains: an upper bound on the capacity of every policy on the same GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from framework.bound.bound import NOT_KNOWN, Bound, any_role, any_stream, sustained
from framework.load import Open
from framework.objective.experiment import Experiment
from framework.policy.base import overrides

_PRECISION = 0.002  # ratio of the two rates at which the search ends, above 1
_FARTHEST = 2.0**30  # ratio to the first rate, up and down, at which the search gives up


@dataclass(frozen=True)
class CapacityBound:
    """No schedule sustains `rate_rps` or more, requests/s; `limit`: which limit decides.

    0 if no rate is low enough, infinite if none is too high.
    """

    rate_rps: float
    limit: str

    def figures(self, capacity_rps: float) -> dict[str, Any]:
        """The keys of the summary."""
        is_rate = 0 < self.rate_rps < math.inf
        return {
            "capacity_bound": None if self.rate_rps == math.inf else self.rate_rps,
            "capacity_share_of_bound": capacity_rps / self.rate_rps if is_rate else None,
            "capacity_bound_limit": self.limit,
        }


def capacity_bound(experiment: Experiment, attainment: float, start_rps: float) -> CapacityBound:
    """The least rate found, from `start_rps` on, at which no schedule keeps the SLO for a share `attainment` for ever.

    A schedule sustains a rate if that share of the requests of a trace that is played over and over keeps the SLO, as
    `objective=capacity` asks. Every GPU may prefill and decode at any time. Raises as `framework.bound.bound.bound` and
    `Experiment.at_rate` do.
    """
    if overrides(experiment.policy, "span"):
        return CapacityBound(math.inf, NOT_KNOWN)
    best = _at_rate(experiment, start_rps)
    low_rps = high_rps = start_rps
    limit = best.limit
    if best.attainment >= attainment:
        while best.attainment >= attainment:
            if high_rps > _FARTHEST * start_rps:
                return CapacityBound(math.inf, best.limit)
            low_rps, high_rps = high_rps, 2 * high_rps
            best = _at_rate(experiment, high_rps)
        limit = best.limit
    else:
        while best.attainment < attainment:
            if low_rps < start_rps / _FARTHEST:
                return CapacityBound(0.0, best.limit)
            low_rps, high_rps, limit = low_rps / 2, low_rps, best.limit
            best = _at_rate(experiment, low_rps)
    while high_rps > low_rps * (1 + _PRECISION):
        middle_rps = math.sqrt(low_rps * high_rps)
        best = _at_rate(experiment, middle_rps)
        if best.attainment >= attainment:
            low_rps = middle_rps
        else:
            high_rps, limit = middle_rps, best.limit
    return CapacityBound(high_rps, limit)


def _at_rate(experiment: Experiment, rate_rps: float) -> Bound:
    tried = experiment.at_rate(rate_rps)
    cluster = any_role(tried.setting.cluster)
    planned = any_stream(cluster) if tried.policy.shares_gpus else cluster
    return sustained(replace(tried.setting, cluster=planned, load=Open()), len(tried.workload) / rate_rps)
