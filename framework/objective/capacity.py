"""The highest offered rate that a system sustains within the SLO, by bisection over simulated runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import polars as pl

from framework.checks import Count, Positive, Share, at_least, check_fields, up_to
from framework.errors import InputError
from framework.metrics.slo import judge
from framework.objective.capacity_bound import capacity_bound
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement, Objective, Progress, evaluated
from framework.objective.probe import Criterion, Probe, probe
from framework.objective.run_limits import require_known
from framework.objective.stability import undisturbed_misses
from framework.result import FINISHED, Result
from framework.workload import rate_rps, repeated

_NEAR = 1.1  # ratio of the first two rates of a search from a rate that should be close
_FAR = 2.0  # the same ratio for bisection, as reports of progress assume it
_CHECKED = (0.5, 1.1)  # rates tried in addition to the bracket, as ratios to the capacity
_LEAST = 1e-9  # share of the first rate below which the search gives up
_CONFIDENCE = 0.95
_Tolerance = Annotated[float, at_least(1e-6)]
_Replicates = Annotated[int, up_to(1_000, least=0)]
_Step = Annotated[float, at_least(1.01)]


@dataclass(frozen=True)
class Capacity(Objective):
    """The highest offered rate, requests/s, at which a share `attainment` of the requests keeps the SLO in the long
    run.

    Every rate has the same requests and seed; arrivals are stretched, think times within sessions are not, and all
    requests count for the rate. Each run is as long as needed to see whether the system keeps up
    (`framework.objective.probe`), within `most_requests`; an undecided rate counts as not sustained. The search ends
    with a rate that failed at most 1 + `tolerance` times the capacity. `replicates`: further searches on other samples
    of the trace; samples of a recording consist of its blocks of `resample_s` seconds. Their spread gives an interval:
    how far the capacity of one trace of this length may be from that of all such traces. `run_limits`: further limits
    on figures of all requests of a run, as {p99_tbt_s: 0.1, p50_queue_s: 2} (`framework.objective.run_limits`).

    A search begins at the rate of the trace and doubles or halves it, or multiplies it by another `first_step`; near
    the capacity a small step takes fewer runs. `at_least`, requests/s, is for candidates that must beat another: the
    search begins there and goes up, and a system that does not sustain that rate is given up at once, with a capacity
    of 0.
    """

    key: ClassVar[str] = "capacity"

    attainment: Share = 0.9
    tolerance: _Tolerance = 0.01
    most_requests: Count = 200_000
    replicates: _Replicates = 0
    resample_s: Positive = 300.0
    run_limits: Mapping[str, float] | None = None
    first_step: _Step = 2.0
    at_least: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        if self.replicates == 1:
            raise InputError("objective.replicates is 1, of which there is no spread; set 0, or at least 2")
        require_known("objective.run_limits", self.run_limits or {})
        if self.at_least is not None and self.replicates:
            raise InputError("objective.at_least gives a system up on one sample; set objective.replicates=0")

    def measure(self, experiment: Experiment, progress: Progress | None = None) -> Measurement:
        """Search, then evaluate the run at capacity in full. Raises InputError for requests that have no rate."""
        start_rps = _own_rate_rps(experiment)
        search = self._searched(experiment, start_rps, self._part(progress, 0))
        search.check()
        others = []
        for number in range(1, self.replicates + 1):
            sample = experiment.on(experiment.sample(number, self.resample_s))
            others.append(Search(sample, self._criterion, self._part(progress, number)))
            others[-1].find(search.low_rps or start_rps, _NEAR)
        shown = search.ends[0]
        at_rate = experiment.at_rate(shown.rate_rps)
        at_capacity = at_rate.on(repeated(at_rate.workload, shown.passes))
        result = at_capacity.run()
        evaluation = evaluated(at_capacity, result)
        best = capacity_bound(experiment, self.attainment, search.low_rps or start_rps)
        found = _found(self, at_capacity, search, others) | best.figures(search.low_rps)
        return Measurement(
            value=search.low_rps,
            result=result,
            evaluation=replace(evaluation, summary=evaluation.summary | found),
            slo=experiment.slo,
            notes=_notes(self, experiment, search, result),
            probes=_table([search, *others]),
        )

    def rate_rps(self, experiment: Experiment) -> float:
        """The capacity alone, 0 if there is none. Raises InputError for requests that have no rate."""
        return self._searched(experiment, _own_rate_rps(experiment), self._part(None, 0)).low_rps

    @property
    def _criterion(self) -> Criterion:
        return Criterion(self.attainment, self.tolerance, self.most_requests, self.run_limits or {})

    def _searched(self, experiment: Experiment, start_rps: float, progress: Progress) -> Search:
        search = Search(experiment, self._criterion, progress)
        if self.at_least is None:
            search.find(start_rps, self.first_step)
        else:
            search.find_above(self.at_least, self.first_step)
        return search

    def _part(self, progress: Progress | None, number: int) -> Progress:
        """Progress of one search of several, as progress of the whole."""

        def report(done: int, total: int) -> None:
            if progress is not None:
                progress(number * total + done, (1 + self.replicates) * total)

        return report


class Search:
    """The search on one workload: `low_rps` passed, or is 0 if no rate does; `high_rps` failed."""

    def __init__(self, experiment: Experiment, criterion: Criterion, progress: Progress) -> None:
        self._experiment, self._criterion, self._progress = experiment, criterion, progress
        self.low_rps, self.high_rps = 0.0, math.inf
        self.probes: list[Probe] = []
        self._lost = 0.0  # share of requests for which no rate is low enough

    def find(self, start_rps: float, step: float) -> None:
        """Bracket the capacity from `start_rps`, in steps that begin with a ratio of `step`, and bisect."""
        self._narrow(start_rps)
        self._rise(step)
        while self.low_rps == 0:
            if 1 - self._lost < self._criterion.attainment or self.high_rps < _LEAST * start_rps:
                return
            self._narrow(self.high_rps / step)
            step *= step
        self._bisect()

    def find_above(self, least_rps: float, step: float) -> None:
        """Search for capacities from `least_rps` on; if that rate fails, no other is tried."""
        self._narrow(least_rps)
        if self.low_rps > 0:
            self._rise(step)
            self._bisect()

    def _rise(self, step: float) -> None:
        while self.high_rps == math.inf:
            self._narrow(self.low_rps * step)
            step *= step

    def _bisect(self) -> None:
        while self.high_rps > self.low_rps * (1 + self._criterion.resolution):
            self._narrow(math.sqrt(self.low_rps * self.high_rps))

    def check(self) -> None:
        """Try a rate on each side of the bracket too: attainment need not fall as the rate rises."""
        for ratio in _CHECKED if self.low_rps else ():
            self._probe(ratio * self.low_rps)

    @property
    def runs(self) -> int:
        return sum(one.runs for one in self.probes)

    @property
    def ends(self) -> list[Probe]:
        """The probes at the ends of the bracket, by rate; one if no rate passed."""
        return sorted(self._at(self.low_rps) + self._at(self.high_rps), key=lambda one: one.rate_rps)

    def _at(self, rate: float) -> list[Probe]:
        return [one for one in self.probes if one.rate_rps == rate]

    def _narrow(self, rate: float) -> None:
        one, result = self._probe(rate)
        if one.passed:
            self.low_rps = rate
            return
        self.high_rps = rate
        if self.low_rps == 0:
            self._lost = undisturbed_misses(result, self._experiment.slo, one.requests)

    def _probe(self, rate: float) -> tuple[Probe, Result]:
        one, result = probe(self._experiment, rate, self._criterion)
        self.probes.append(one)
        self._progress(len(self.probes), len(self.probes) + self._expected())
        return one, result

    def _expected(self) -> int:
        """The number of probes that are likely to follow."""
        is_bracketed = self.low_rps > 0 and self.high_rps < math.inf
        ratio = self.high_rps / self.low_rps if is_bracketed else _FAR
        halvings = math.log2(max(1.0, math.log(ratio) / math.log1p(self._criterion.resolution)))
        return math.ceil(halvings) + len(_CHECKED)


def _own_rate_rps(experiment: Experiment) -> float:
    if experiment.load.clients is not None:
        raise InputError(
            f"objective=capacity searches a rate of arrivals, which load {experiment.load.name} does not have;"
            " set load=open"
        )
    rate = rate_rps(experiment.workload)
    if math.isinf(rate):
        raise InputError(
            f"objective=capacity stretches arrival times, but the requests of {experiment.workload.name} all arrive at"
            " once; use more of the trace, or trace.jitter_s"
        )
    return rate


def _found(aim: Capacity, experiment: Experiment, search: Search, others: Sequence[Search]) -> dict[str, Any]:
    """The keys of the summary in addition to those of the run."""
    shown = search.ends[0]
    return {
        "capacity": search.low_rps,
        "capacity_per_gpu": search.low_rps / experiment.cluster.gpus,
        "capacity_low": search.low_rps,
        "capacity_high": search.high_rps,
        "capacity_half_width": _half_width(others),
        "capacity_replicates": [other.low_rps for other in others],
        "capacity_replicates_of": _kind(aim, experiment) if others else None,
        "capacity_attainment": aim.attainment,
        "capacity_runs": sum(one.runs for one in (search, *others)),
        "capacity_requests": shown.requests,
        "capacity_seconds": shown.simulated_s,
        "capacity_settled": all(one.settled for each in (search, *others) for one in each.ends),
    }


def _half_width(others: Sequence[Search]) -> float | None:
    """Half of Student's 95 % interval around one capacity, from the spread over other samples of the same length."""
    if not others:
        return None
    from scipy.special import stdtrit  # scipy takes a while to import, and most runs search for no capacity

    quantile = float(stdtrit(len(others) - 1, (1 + _CONFIDENCE) / 2))
    return quantile * float(np.std([other.low_rps for other in others], ddof=1))


def _kind(aim: Capacity, experiment: Experiment) -> str:
    source = experiment.workload.source
    if source == "real":
        return f"samples of blocks of {aim.resample_s:g} s"
    return "samples of the fitted trace" if source == "twin" else "samples"


def _notes(aim: Capacity, experiment: Experiment, search: Search, result: Result) -> tuple[str, ...]:
    """Anomalies of the search that ended with `result`."""
    notes = [] if search.low_rps else [_given_up(aim.at_least) or _why_none(aim, experiment, search, result)]
    for one in search.probes:
        if not one.passed and one.rate_rps < search.low_rps:
            notes.append(f"{one.rate_rps:.4g} req/s, less than the capacity, fails: {one.reading.verdict}")
        if one.passed and one.rate_rps > search.high_rps:
            notes.append(f"{one.rate_rps:.4g} req/s passes, although {search.high_rps:.4g} req/s fails")
        if not one.settled and one in search.ends:
            notes.append(
                f"{one.rate_rps:.4g} req/s counts as too much, but {one.requests:,} requests do not tell;"
                " raise objective.most_requests"
            )
    return tuple(notes)


def _given_up(at_least: float | None) -> str:
    """The note that a system was given up at a rate; empty if no rate was requested."""
    return (
        "" if at_least is None else f"{at_least:.4g} req/s is not sustained; objective.at_least asks for no lower rate"
    )


def _why_none(aim: Capacity, experiment: Experiment, search: Search, crowded: Result) -> str:
    """The number of requests that miss the SLO even with the whole system to themselves."""
    gap_s = float(np.nanmax(crowded.requests["end_s"] - crowded.requests["arrival_s"]))
    count = len(experiment.workload)
    alone = replace(
        experiment.workload, arrival_s=gap_s * np.arange(count, dtype=np.float64), previous=None, think_s=None
    )
    result = experiment.on(alone).run()
    judged, served = judge(result, experiment.slo), result.requests["state"] == FINISHED
    missed = int((~judged.good).sum())
    reasons = {"TTFT": served & ~judged.ttft_ok, "TPOT": served & ~judged.tpot_ok, "not served": ~served}
    found = f"no rate attains {100 * aim.attainment:.4g} %: even alone {missed:,} of {count:,} requests miss the SLO"
    found += f" ({', '.join(f'{reason} {int(those.sum()):,}' for reason, those in reasons.items())})"
    if 1 - missed / count >= aim.attainment and aim.run_limits:
        found = f"no rate keeps {', '.join(f'{name} {limit:g}' for name, limit in aim.run_limits.items())}"
    elif 1 - missed / count >= aim.attainment:
        found += f", and more at {search.high_rps:.3g} req/s; trace.jitter_s spreads those of the same instant"
    return found


def _table(searches: Sequence[Search]) -> pl.DataFrame:
    """One row a probe in the order of trial; `sample` 0 is the workload itself."""
    rows = [
        {
            "sample": number,
            "rate_rps": one.rate_rps,
            "attainment_first_half": one.reading.attainments[0],
            "attainment": one.reading.attainments[1],
            "growth": one.reading.growth,
            "growth_error": one.reading.growth_error,
            "passes": one.passes,
            "requests": one.requests,
            "simulated_s": one.simulated_s,
            "verdict": one.reading.verdict,
            "settled": one.settled,
            "passed": one.passed,
        }
        for number, search in enumerate(searches)
        for one in search.probes
    ]
    return pl.DataFrame(rows)
