"""Tests of a calibration on requests that it was not fitted to, and the loads without such requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.calibration.fit import Observed, calibrate
from framework.calibration.prior import calibration_of
from framework.calibration.replay import Deployment
from framework.load import Closed, Open
from framework.timing.calibration_terms import Calibration
from framework.timing.fit_domain import Domain, Place

_SHARE = 1 / 3  # share of a single run


@dataclass(frozen=True)
class HeldOut:
    """The indices of a run's requests, and terms that were fitted without them, to what `fitted_to` says."""

    observed: Observed
    requests: NDArray[np.int64]
    terms: Calibration
    fitted_to: str


def held_out(observed: Sequence[Observed], deployment: Deployment) -> Iterator[HeldOut]:
    """Each of several runs, held out as a whole; of a single run, its last third."""
    for each in observed:
        others = [other for other in observed if other is not each]
        count = len(each.benchmark)
        if others:
            fitted, first, to = calibrate(others, deployment), 0, "the other runs"
        else:
            fitted, first, to = calibrate([each], deployment, until=1 - _SHARE), round((1 - _SHARE) * count), "the rest"
        yield HeldOut(each, np.arange(first, count), calibration_of(fitted.values, deployment.server), to)


def place_of(observed: Observed, deployment: Deployment) -> Place:
    """The load of a run; if a client kept a number of requests in flight, that number."""
    concurrency = observed.benchmark.concurrency
    load = Open() if concurrency is None else Closed(concurrency)
    workload, cluster = observed.sent.workload, deployment.cluster
    pool = cluster.pools[cluster.entrance]
    cached = bool(deployment.engine.on(workload, deployment.model).prefix_cache)
    return Place.of(workload, load, pool.instances // pool.group, prefix_cache=cached)


def untested(places: Sequence[Place]) -> tuple[str, ...]:
    """The loads for which nothing was held out, in words: the fit is untested there."""
    domain = Domain.around(places)
    lacking = [
        *(["closed loops"] if domain.in_flight is None else []),
        *(["open loops"] if domain.rate_rps is None else []),
        *(["prompts in the prefix cache"] if domain.cached_share[1] == 0 else []),
    ]
    tested = f"tested on {domain}" if len(places) > 1 else f"tested on the end of one run alone, of {domain}"
    other = f"never tested: {', '.join([*lacking, 'anything beyond these ranges'])}"
    return tested, other
