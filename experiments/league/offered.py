"""The capacity that a few offered rates show: an objective that thousands of configurations can afford."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from framework.checks import Share, check_fields, is_number, up_to
from framework.diagnosis.losses import CAUSES, losses_of
from framework.errors import InputError, shown
from framework.metrics.summary import Evaluation
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement, Objective, Progress, judged
from framework.result import Result
from framework.workload import repeated

_MOST_RATES = 100
_MOST_PASSES = 1000


@dataclass(frozen=True)
class Play:
    """The requests at one offered rate. `cpu_s`: of the run; `answers_s`: of it in the policy's Python hooks."""

    rate_rps: float
    attainment: float
    cpu_s: float
    answers_s: float
    result: Result
    evaluation: Evaluation

    @property
    def row(self) -> dict[str, Any]:
        summary = self.evaluation.summary
        keys = ("goodput_rps", "load_state", "p99_ttft_ms", "p99_tpot_ms")
        return {"rate_rps": self.rate_rps, "attainment": self.attainment} | {key: summary[key] for key in keys}


@dataclass(frozen=True)
class Offered(Objective):
    """The rate, requests/s, at which a share `attainment` of the requests keeps the SLO, read off given rates.

    Rate number `first` of `rates_rps` is offered first, then the next higher one as long as the share is kept, or the
    next lower one until it is. Each run has the same requests, `passes` times in a row; arrivals are stretched. The
    last pass counts, the others fill the system up: a run from empty, or one that is short for the lengths of its
    outputs, keeps the SLO at rates that would overload the system. Between the highest rate that keeps the share and
    the next one the share is a line. Below the lowest rate the line begins at a share of 1 at
    rate 0. Above the highest rate nothing is known, and the highest counts.

    The summary gets `offered_rates`: `rates`, a row for each rate that was offered; `lost_at_rps`, the lowest that
    failed, and `lost_to`, the number of its requests that each cause cost; `cpu_s`, of all runs, and `answer_us`, CPU
    time in the policy's Python hooks, in microseconds a request. Both times are measured, so they differ from run to
    run. Compiled rules are part of the simulation, and not counted.
    """

    key: ClassVar[str] = "offered_capacity"

    rates_rps: Sequence[float] | None = None
    first: Annotated[int, up_to(_MOST_RATES - 1, least=0)] = 0
    attainment: Share = 0.9
    passes: Annotated[int, up_to(_MOST_PASSES)] = 2

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        rates = self.rates_rps
        if rates is None:
            return
        if not 0 < len(rates) <= _MOST_RATES or not all(is_number(rate) and rate > 0 for rate in rates):
            raise InputError(f"objective.rates_rps must be positive numbers of requests/s, got {shown(rates)}")
        if any(np.diff(rates) <= 0):
            raise InputError(f"objective.rates_rps must rise, got {shown(rates)}")
        if self.first >= len(rates):
            raise InputError(
                f"objective.first is {self.first}, but there are {len(rates)} rates, the first is number 0"
            )

    def measure(self, experiment: Experiment, progress: Progress | None = None) -> Measurement:
        """Offer the rates. Raises InputError without rates, and as `Experiment.at_rate` does."""
        if self.rates_rps is None:
            raise InputError("objective=offered needs rates: objective.rates_rps=[20,30,40]")
        if experiment.load.clients is not None:
            raise InputError("objective=offered sets the rate of arrivals, and load=closed has none; set load=open")
        plays = self._played(experiment, self.rates_rps)
        capacity_rps = read_off({one.rate_rps: one.attainment for one in plays}, self.attainment)
        kept = [one for one in plays if one.attainment >= self.attainment]
        shown_play = kept[-1] if kept else plays[0]
        offered = {"rates": [one.row for one in plays], **self._lost(experiment, plays), **_times(plays)}
        summary = shown_play.evaluation.summary | {self.key: capacity_rps, "offered_rates": offered}
        evaluation = replace(shown_play.evaluation, summary=summary)
        return Measurement(capacity_rps, shown_play.result, evaluation, experiment.slo)

    def _played(self, experiment: Experiment, rates_rps: Sequence[float]) -> list[Play]:
        """The runs that were needed, by rate."""
        plays: dict[int, Play] = {}
        at = self.first
        while at in range(len(rates_rps)) and at not in plays:
            plays[at] = self._play(experiment, rates_rps[at])
            at += 1 if plays[at].attainment >= self.attainment else -1
        return [plays[at] for at in sorted(plays)]

    def _play(self, experiment: Experiment, rate_rps: float) -> Play:
        tried = experiment.at_rate(rate_rps)
        before_s = (self.passes - 1) * len(tried.workload) / rate_rps
        tried = tried.on(repeated(tried.workload, self.passes))
        load: Any = tried.load  # open: see `measure`
        tried = replace(tried, load=replace(load, warmup_s=before_s))
        begin_s = time.process_time()
        result = tried.run()
        cpu_s = time.process_time() - begin_s
        evaluation = judged(tried, result)
        # Both times are of a clock that also runs while another process has the core: their ratio is of this one.
        share = min(1.0, result.hooks_s / result.replay_s) if result.replay_s > 0 else 0.0
        return Play(rate_rps, evaluation.summary["slo_attainment"], cpu_s, share * cpu_s, result, evaluation)

    def _lost(self, experiment: Experiment, plays: Sequence[Play]) -> dict[str, Any]:
        failed = next((one for one in plays if one.attainment < self.attainment), None)
        if failed is None:
            return {"lost_at_rps": None, "lost_to": {}}
        losses = losses_of(failed.result, failed.evaluation, experiment.slo)
        counts = {cause: int(losses.of(cause).sum()) for cause in CAUSES}
        return {"lost_at_rps": failed.rate_rps, "lost_to": {cause: count for cause, count in counts.items() if count}}


def read_off(shares: Mapping[float, float], attainment: float) -> float:
    """The rate at which the share of good requests, given by offered rate, falls to `attainment`."""
    low_rps, kept = 0.0, 1.0
    for rate_rps, share in sorted(shares.items()):
        if share < attainment:
            return low_rps + (rate_rps - low_rps) * (kept - attainment) / (kept - share)
        low_rps, kept = rate_rps, share
    return low_rps


def _times(plays: Sequence[Play]) -> dict[str, float]:
    requests = sum(len(one.result.requests) for one in plays)
    answers_s, cpu_s = sum(one.answers_s for one in plays), sum(one.cpu_s for one in plays)
    return {"cpu_s": cpu_s, "answer_us": 1e6 * answers_s / requests}
