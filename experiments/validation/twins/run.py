"""The runs of the comparison: the same cells on a recording, on samples of its fitted trace, on resamples of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hydra import compose as compose_config
from numpy.typing import NDArray

from experiments.validation.twins.study import Study
from framework.errors import InputError
from framework.metrics.slo import judge
from framework.objective.capacity import Capacity
from framework.objective.experiment import Experiment
from framework.run.compose import compose_on
from framework.workload import Workload, at_rate, period_s, rate_rps
from traces.fitted.fitted_trace import FOLDER, SUFFIX
from traces.load import load

SPANS = ("whole", "first third", "second third", "last third")
BLOCK_S = 300.0  # blocks of the recording's resamples
LEAST_BLOCKS = 10  # least blocks of a recording that is shorter than an hour
_TOLERANCE = 0.01  # tolerance of a capacity
_P99 = 0.99

Spans = Mapping[str, Workload]


@dataclass(frozen=True)
class Cell:
    """A policy, a memory, a mean rate of the whole trace (requests/s; None: a search of it) and one of SPANS."""

    policy: str
    memory: str
    rate: float | None
    span: str


@dataclass(frozen=True)
class Pair:
    """A figure of a cell: on the recording, on samples of the fitted trace by seed, on resamples of the recording."""

    recorded: float
    fitted: Sequence[float]
    resampled: Sequence[float]

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the largest of the resamples; NaN without any.

        One more resample lies between those of n with a probability of (n - 1) / (n + 1): 95 % of 39.
        """
        if not self.resampled:
            return float("nan"), float("nan")
        return min(self.resampled), max(self.resampled)


@dataclass(frozen=True)
class Found:
    """The figures of one fitted trace: shares of good requests, P99 TTFT in s, and capacities in requests/s."""

    trace: str
    attainment: dict[Cell, Pair]
    p99_ttft_s: dict[Cell, Pair]
    capacity: dict[Cell, Pair]


@dataclass(frozen=True)
class Extent:
    """How many samples of the fitted trace and resamples of the recording are played, and resamples for capacities."""

    samples: int = 5
    resamples: int = 39
    capacity_resamples: int = 8


def measure(study: Study, trace: str, extent: Extent, progress: Callable[[str], None]) -> Found:
    """Run every cell of a trace. Raises InputError for a missing recording."""
    played = _played(study, trace, extent)
    recorded = played[0][SPANS[0]]
    found = Found(trace, {}, {}, {})
    for memory, offered in study.traces[trace].memories.items():
        for policy in study.policies:
            config = compose_config("config", overrides=study.overrides(trace, policy, memory))
            experiment = compose_on(config, recorded)
            for rate in offered.rates:
                factor = rate / rate_rps(recorded)
                for span in SPANS:
                    cell = Cell(policy, memory, rate, span)
                    figures = np.array([_figures(experiment, spans[span], factor) for spans in played])
                    found.attainment[cell], found.p99_ttft_s[cell] = (_pair(row, extent) for row in figures.T)
            searched = [*played[:2], *played[1 + extent.samples :][: extent.capacity_resamples]]
            rates = [_capacity_rps(experiment, spans[SPANS[0]]) for spans in searched]
            found.capacity[Cell(policy, memory, None, SPANS[0])] = Pair(rates[0], rates[1:2], rates[2:])
            progress(f"{trace}, {memory}, {policy}")
    return found


def _pair(figures: Sequence[float] | NDArray[np.float64], extent: Extent) -> Pair:
    recorded, *others = map(float, figures)
    return Pair(recorded, others[: extent.samples], others[extent.samples :])


def _figures(experiment: Experiment, workload: Workload, factor: float) -> tuple[float, float]:
    """Share of good requests, and P99 of TTFT in s, with arrivals `factor` times as fast."""
    judged = judge(experiment.on(at_rate(workload, factor * rate_rps(workload))).run(), experiment.slo)
    return float(judged.good.mean()), float(np.nanquantile(judged.ttft_s, _P99))


def _capacity_rps(experiment: Experiment, workload: Workload) -> float:
    return Capacity(tolerance=_TOLERANCE).rate_rps(experiment.on(workload))


def _played(study: Study, trace: str, extent: Extent) -> list[Spans]:
    """The recording, samples of the fitted trace, and resamples of the recording, each by spans."""
    compared = study.traces[trace]
    recording: dict[str, Any] = dict(compared.recording)
    whole = load(**recording)
    if whole.source == "twin":
        raise InputError(f"trace {trace}: the recording is not at hand; python -m traces.fetch {trace} downloads it")
    fitted = str(FOLDER / f"{trace}{SUFFIX}")
    again = {} if compared.resamples == "draws" else {"resample_s": min(BLOCK_S, period_s(whole) / LEAST_BLOCKS)}
    sources = [
        recording,
        *({"path": fitted, "format": "twin", "seed": seed} for seed in range(extent.samples)),
        *(recording | again | {"seed": seed} for seed in range(1, 1 + extent.resamples)),
    ]
    return [_spans(source, period_s(whole)) for source in sources]


def _spans(source: Mapping[str, Any], period: float) -> Spans:
    """The trace of `source` whole, and thirds of its period in s."""
    edges = np.linspace(0.0, period, len(SPANS)).tolist()
    windows = pairwise(edges)
    thirds = {name: load(**source, window_s=window) for name, window in zip(SPANS[1:], windows, strict=True)}
    return {SPANS[0]: load(**source)} | thirds
