"""Many runs from Python: the product of settings, and the search for the highest rate that keeps the SLO."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from framework.errors import InputError
from framework.objective.capacity import Capacity
from framework.objective.goodput import Measurement
from framework.policy.base import Policy
from framework.run.sweep import Sweep
from framework.workload import Workload
from servelab.settings import experiment_of, word


def sweep(jobs: int = 1, **settings: Any) -> pl.DataFrame:
    """One row for each combination of settings: `sweep(policy=["chunked", "ares"], seed=range(3), trace="mooncake")`.

    A list, a tuple or a range is an axis, which becomes a column; anything else is the same in all runs. The other
    columns are the figures of the summaries. `jobs` runs go on at a time; finished runs are kept in ./results, as those
    of `run.py -m` are, and are not run again. Raises InputError for the first run that is refused.
    """
    axes = {name: list(value) for name, value in settings.items() if isinstance(value, list | tuple | range)}
    fixed = [word(name, value) for name, value in settings.items() if name not in axes]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if jobs != 1 else []
    with TemporaryDirectory() as directory:
        outcomes = Sweep([*launcher, *fixed], Path(directory)).run(
            [[word(name, value) for name, value in point.items()] for point in points]
        )
    rows = []
    for point, outcome in zip(points, outcomes, strict=True):
        if outcome.record is None:
            raise InputError(f"{' '.join(outcome.overrides)}: {outcome.refusal}")
        rows.append({**{name: str(value) for name, value in point.items()}, **_figures(outcome.record.summary)})
    return pl.DataFrame(rows, infer_schema_length=None)


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if value is None or isinstance(value, int | float | str)}


def capacity(
    policy: str | Policy = "ares",
    trace: str | Path | Workload = "mooncake",
    search: Capacity | None = None,
    **settings: Any,
) -> Measurement:
    """The highest offered rate, requests/s, that keeps the SLO for good; `value` has it, `probes` the rates tried.

    The other arguments are those of `run`. Raises InputError for whatever cannot be.
    """
    return (search or Capacity()).measure(experiment_of(policy, trace, settings))
