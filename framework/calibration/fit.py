"""The terms of a calibration fitted to the requests of measured benchmarks.

The requests are replayed through the simulator, and the terms of a `Calibration` are fitted so that the replay's TTFT
and TPOT meet the measured ones. The fit compares group means of log times. Requests form groups of equal size twice: by
prompt length, which separates a cost per token from one per request, and by the order of sending, which separates a
cost per sequence from one per step as the load varies. Means are used because the time of one request depends on single
decisions of the scheduler. They are interquartile means, so that a few slow moments of a client do not count. Tails are
not fitted; they serve to check the fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from framework.calibration.benchmark_files import Benchmark
from framework.calibration.optimise import Fitted, fit
from framework.calibration.prior import calibration_of, prior
from framework.calibration.replay import Deployment, Sent, Served, load_of, measured, replay, sent_again
from framework.errors import InputError

Floats = NDArray[np.float64]
Chosen = NDArray[np.int64]

LEAST_REQUESTS = 12
_GROUP = 10  # requests of a group, at least
_GROUPS = 8  # most groups of one kind
_POINTS = 4  # simulations for each coefficient of a surface


@dataclass(frozen=True)
class Observed:
    """A benchmark, and how its requests are sent again."""

    benchmark: Benchmark
    sent: Sent

    @cached_property
    def times(self) -> Served:
        """The measured times."""
        return measured(self.benchmark)


def observe(benchmark: Benchmark, load: str | None = None, seed: int = 0) -> Observed:
    """The benchmark prepared for replays; `load` is one of LOADS, by default that of `load_of`.

    `seed` is that of drawn sending times. Raises InputError for too few requests, and for a load that the benchmark
    does not state.
    """
    if len(benchmark) < LEAST_REQUESTS:
        raise InputError(f"{benchmark.name}: {len(benchmark)} served requests; at least {LEAST_REQUESTS} are needed")
    by = load_of(benchmark) if load is None else load
    return Observed(benchmark, sent_again(benchmark, by, seed))


class Groups:
    """Groups of one benchmark's requests; their mean log times are compared with a replay's.

    `chosen` are the indices of the requests that count. `weights` is the weight of each group, shape (groups,).
    """

    def __init__(self, observed: Observed, chosen: Chosen) -> None:
        tpot_s = observed.times.tpot_s
        kinds = [observed.benchmark.input_tokens]
        if observed.sent.by != "drawn":  # Otherwise the load at one time differs from the measured load.
            kinds.append(np.arange(len(observed.benchmark)))
        self._ttft = [group for kind in kinds for group in _split(chosen, kind)]
        finite = chosen[np.isfinite(tpot_s[chosen])]
        self._tpot = [group for kind in kinds for group in _split(finite, kind)]
        self.weights = np.full(len(self._ttft) + len(self._tpot), 1 / len(kinds))

    def log_times(self, served: Served) -> Floats:
        """The mean log TTFT of each group, then the mean log TPOT of each, shape (groups,)."""
        log_ttft, log_tpot = np.log(served.ttft_s), np.log(served.tpot_s)
        means = [_middle_mean(log_ttft[group]) for group in self._ttft]
        return np.asarray(means + [_middle_mean(log_tpot[group]) for group in self._tpot])


def _split(chosen: Chosen, kind: NDArray[np.int64]) -> list[Chosen]:
    """Groups of about equal size, by rising `kind`."""
    if len(chosen) == 0:
        return []
    ordered = chosen[np.argsort(kind[chosen], kind="stable")]
    return np.array_split(ordered, min(max(len(chosen) // _GROUP, 1), _GROUPS))


def _middle_mean(values: Floats) -> float:
    """Mean of the middle half."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def calibrate(observed: Sequence[Observed], deployment: Deployment, until: float = 1.0) -> Fitted:
    """Fit the terms of the deployment's server to the first requests of each benchmark, the share `until` of them.

    Each benchmark is replayed whole, so the compared requests meet the load that they met. Raises InputError if the
    simulated server does not serve all requests.
    """
    groups = [Groups(each, np.arange(round(until * len(each.benchmark)))) for each in observed]

    def predict(values: Mapping[str, float]) -> Floats:
        calibration = calibration_of(values, deployment.server)
        return _joined(
            group.log_times(replay(each.sent, deployment, calibration))
            for each, group in zip(observed, groups, strict=True)
        )

    target = _joined(group.log_times(each.times) for each, group in zip(observed, groups, strict=True))
    weights = np.concatenate([group.weights for group in groups])
    return fit(predict, target, prior(deployment.server), weights, _POINTS)


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate(list(parts))
