"""The runs of an ablation: every variant on every replicate, and their results."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hydra import compose as compose_config
from hydra.utils import instantiate

from experiments.ablation.file import Ablation
from framework.checks import is_numeric
from framework.cli.arguments import name_files
from framework.cli.composition import composing
from framework.cli.conf import CONF
from framework.errors import InputError
from framework.metrics.statistics import Estimate, Floats, estimate
from framework.objective.goodput import Goodput, judged
from framework.run.compose import compose
from framework.workload import Workload


@dataclass(frozen=True)
class Outcome:
    """Every figure of an ablation: `values[variant][metric]` has one value for each replicate, NaN if undefined."""

    ablation: Ablation
    replicates: int
    overrides: Sequence[str]
    trace: str
    trace_source: str
    values: Mapping[str, Mapping[str, Floats]]

    def level(self, variant: str, metric: str) -> Estimate:
        """The mean of a metric."""
        return estimate(self.values[variant][metric])

    def difference(self, variant: str, baseline: str, metric: str) -> Estimate:
        """The mean of the paired differences."""
        return estimate(self.values[variant][metric] - self.values[baseline][metric])

    def change(self, variant: str, baseline: str, metric: str) -> Estimate:
        """The mean of the paired relative changes, in %; NaN if a baseline's value is 0."""
        reference = self.values[baseline][metric]
        relative = np.divide(
            self.values[variant][metric], reference, out=np.full_like(reference, np.nan), where=reference != 0
        )
        return estimate(100 * (relative - 1))


def run(ablation: Ablation, replicates: int, overrides: Sequence[str] = ()) -> Outcome:
    """Run every variant on every replicate, with progress on stderr.

    Raises InputError for a metric that summaries lack and for replicates that are all equal, and the errors of Hydra
    and of the parts for their settings.
    """
    with composing(CONF):
        return _run(ablation, replicates, overrides)


def _run(ablation: Ablation, replicates: int, overrides: Sequence[str]) -> Outcome:
    rows: dict[str, list[dict[str, Any]]] = {variant: [] for variant in ablation.variants}
    first: Workload | None = None
    started_s = time.monotonic()
    for replicate in range(replicates):
        sample: Workload | None = None
        for variant, own in ablation.variants.items():
            own_seed = f"{ablation.replicate}={replicate}"
            workload, summary = _run_once([*ablation.base, *own, *overrides, own_seed], sample)
            _check_metrics(ablation, summary)
            sample = workload if sample is None else sample
            if first is not None and _same(first, sample):
                raise InputError(
                    f"trace {sample.name} does not vary with {ablation.replicate}, so that there is no interval over "
                    "replicates; choose a fitted trace or a synthetic trace, or replicates=1"
                )
            rows[variant].append(summary)
        first = sample if first is None else first
        print(f"replicate {replicate + 1} of {replicates}, {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    values = {
        variant: {key: np.asarray([row[key] for row in runs], np.float64) for key in ablation.metrics}
        for variant, runs in rows.items()
    }
    any_run = next(iter(rows.values()))[0]
    return Outcome(ablation, replicates, list(overrides), any_run["trace"], any_run["trace_source"], values)


def _run_once(overrides: Sequence[str], sample: Workload | None) -> tuple[Workload, dict[str, Any]]:
    """One run or search, and its summary. Raises InputError if its workload differs from `sample`, because runs
    are paired.
    """
    config = compose_config("config", overrides=name_files(overrides))
    experiment = compose(config)
    if sample is not None and not _same(sample, experiment.workload):
        raise InputError("variants run on different requests, which cannot be paired: leave the trace to base")
    objective = instantiate(config.objective, _convert_="all")
    if isinstance(objective, Goodput):  # The objective is that of a single run, since no table needs its bound.
        return experiment.workload, judged(experiment, experiment.run()).summary
    return experiment.workload, objective.measure(experiment).evaluation.summary


def _same(one: Workload, other: Workload) -> bool:
    columns = ("arrival_s", "input_tokens", "output_tokens")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def _check_metrics(ablation: Ablation, summary: Mapping[str, Any]) -> None:
    numeric = [key for key, value in summary.items() if is_numeric(value)]
    unknown = [key for key in ablation.metrics if key not in summary]
    if unknown:
        raise InputError(f"ablation {ablation.name}: no metric {', '.join(unknown)}; there are {', '.join(numeric)}")
