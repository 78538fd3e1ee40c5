"""By how much all limits of the SLO could be tightened at one rate while enough requests still keep them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from framework.checks import Share, check_fields
from framework.errors import InputError
from framework.metrics.clock import clock_of
from framework.metrics.slo import Slo, judge
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement, Objective, Progress, evaluated
from framework.result import Result

_LOOSEST = 1e6  # loosest factor of the limits; the tightest is its inverse
_RESOLUTION = 1e-4  # resolution of the factor that is found


@dataclass(frozen=True)
class Tightness(Objective):
    """The factor by which all limits could be divided while a share `attainment` of the requests keeps them.

    One run at the rate of its trace is judged by scaled limits; the share is the `slo_attainment` with these, of the
    requests that count and of clients that were not kept waiting. Above 1 the limits could be tighter; below 1 they are
    missed as they are; 0 if no limits are loose enough, because requests were not served. A policy that plans by the
    limits uses the given ones. At a rate that is not sustained the figure falls with the length of the run. The SLO
    scale of Zhong et al. (OSDI 2024, section 6.2) is 1 over it. Raises InputError if nothing is limited.
    """

    key: ClassVar[str] = "slo_tightness"

    attainment: Share = 0.9

    def __post_init__(self) -> None:
        check_fields(self, "objective.")

    def measure(self, experiment: Experiment, progress: Progress | None = None) -> Measurement:
        if experiment.slo.is_empty:
            raise InputError("objective=tightness scales the limits of the SLO, and none is set; set slo.ttft_s, say")
        result = experiment.run(progress)
        evaluation = evaluated(experiment, result)
        found = tightness(result, experiment.slo, self.attainment)
        evaluation = replace(evaluation, summary=evaluation.summary | {self.key: found})
        return Measurement(found, result, evaluation, experiment.slo)


def tightness(result: Result, slo: Slo, attainment: float) -> float:
    """1 over the least factor on all limits of `slo` with which that share of the requests keeps them, by bisection.

    Raises InputError if that share keeps any limits."""

    def is_kept(scale: float) -> bool:
        scaled = slo.scaled(scale)
        clock, good = clock_of(result, scaled), judge(result, scaled).good
        return clock.attainment(int(good[clock.counted].sum()), int(clock.counted.sum())) >= attainment

    tight, loose = 1 / _LOOSEST, _LOOSEST
    if is_kept(tight):
        raise InputError(
            f"objective=tightness: {100 * attainment:g} % of the requests keep the SLO however tight it is, for hardly"
            " any request is held to one of its limits; set slo.ttft_s, say"
        )
    if not is_kept(loose):
        return 0.0
    while loose > tight * (1 + _RESOLUTION):
        middle = math.sqrt(tight * loose)
        tight, loose = (tight, middle) if is_kept(middle) else (middle, loose)
    return 1 / loose
