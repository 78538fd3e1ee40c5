"""One offered rate, tried for as long as needed to see whether it is sustained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from framework.objective.experiment import Experiment
from framework.objective.run_limits import exceeded
from framework.objective.stability import GROWING, MISSED, SUSTAINED, Reading, read
from framework.result import Result
from framework.workload import first, repeated

_PASSES = 2  # passes of the shortest run
_UNDIMINISHED = 0.5  # growth that keeps this share of its pace over twice the time is not that of a system filling up


@dataclass(frozen=True)
class Criterion:
    """The test of a rate: the share of requests that must keep the SLO, the share of overload that must show in a run,
    and the length from which on a run is not lengthened. `limits`: on figures of the run as a whole.
    """

    attainment: float
    resolution: float
    most_requests: int
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """A rate and the result of the longest of its `runs`: the trace `passes` times in a row, `requests` requests
    judged.

    `settled`: a longer run would have the same result.
    """

    rate_rps: float
    runs: int
    passes: int
    requests: int
    simulated_s: float
    reading: Reading
    settled: bool

    @property
    def passed(self) -> bool:
        return self.settled and self.reading.verdict == SUSTAINED


def probe(experiment: Experiment, rate_rps: float, criterion: Criterion) -> tuple[Probe, Result]:
    """Play the trace at `rate_rps` twice in a row, then twice as often each time until the verdict is final.

    For a system that keeps up it is final. So it is for one that misses the SLO, since an empty start flatters it;
    unlimited growth must show twice. Also returns the result of the longest run.
    """
    passes, runs = _PASSES, 1
    reading, result = play(experiment, rate_rps, passes, criterion)
    settled = reading.verdict in (SUSTAINED, MISSED)
    while not settled and 2 * passes * len(experiment.workload) <= criterion.most_requests:
        before = reading
        passes, runs = 2 * passes, runs + 1
        reading, result = play(experiment, rate_rps, passes, criterion)
        settled = reading.verdict in (SUSTAINED, MISSED) or _goes_on(before, reading)
    requests = passes * len(experiment.workload)
    return Probe(rate_rps, runs, passes, requests, _duration_s(result), reading, settled), result


def play(experiment: Experiment, rate_rps: float, passes: int, criterion: Criterion) -> tuple[Reading, Result]:
    """Play the trace `passes` times in a row and a further eighth of it, which is not judged.

    Without that eighth the last requests would find a system that empties.
    """
    count = passes * len(experiment.workload)
    tried = experiment.at_rate(rate_rps)
    copies = repeated(tried.workload, passes + math.ceil(passes / 8))
    result = tried.on(first(copies, count + count // 8)).run()
    reading = read(result, experiment.slo, count, count / rate_rps, criterion.attainment, criterion.resolution)
    if exceeded(result, criterion.limits, count // 2, count, experiment.slo.slowdown) is not None:
        reading = replace(reading, verdict=MISSED)
    return reading, result


def _goes_on(before: Reading, reading: Reading) -> bool:
    both_grow = before.verdict == reading.verdict == GROWING
    return both_grow and reading.growth >= _UNDIMINISHED * before.growth


def _duration_s(result: Result) -> float:
    return float(np.nanmax(result.requests["end_s"]) - result.requests["arrival_s"].min())
