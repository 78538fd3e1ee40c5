"""Many runs from Python: the product of settings, and the search for the highest rate that keeps the SLO."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from framework.errors import InputError, shown
from framework.objective.capacity import Capacity
from framework.objective.goodput import Measurement, evaluated
from framework.run.sweep import Sweep
from servelab.objects import is_object, label_of, objects_of
from servelab.settings import experiment_of, word


def sweep(jobs: int = 1, **settings: Any) -> pl.DataFrame:
    """Run each combination of settings.

    Finished runs are kept in ./results, like those of `run.py -m`, and are not run again. With objects among the
    settings they are run one after another, and not kept.

    Args:
        jobs: Runs that go on at a time.
        settings: Those of `run`. A list, a tuple or a range is an axis, which becomes a column; anything else is the
            same in all runs.

    Returns:
        One row for each combination, in their order; the columns are the axes, then the figures of the summaries.

    Raises:
        InputError: For the first run that is refused, and for `jobs` below 1.

    Example:
        >>> table = servelab.sweep(policy=["chunked", "continuous"], seed=range(2), trace=run.experiment.workload)
        >>> table["policy"].to_list(), table["seed"].to_list()
        (['chunked', 'chunked', 'continuous', 'continuous'], [0, 1, 0, 1])
        >>> table["goodput_rps"].shape
        (4,)
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InputError(
            f"jobs is {shown(jobs)}, must be a whole number of at least 1; the axes are named, as policy=[...]"
        )
    axes = {name: list(value) for name, value in settings.items() if isinstance(value, list | tuple | range)}
    fixed = {name: value for name, value in settings.items() if name not in axes}
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    every = [(name, one) for name, value in settings.items() for one in axes.get(name, [value])]
    if objects := [name for name, one in every if is_object(name, one)]:
        if jobs != 1:
            raise InputError(f"jobs={jobs}: runs with an object ({objects[0]}) stay in this process; leave jobs out")
        summaries = [_summary_of(fixed | point) for point in points]
    else:
        summaries = _summaries(jobs, fixed, points)
    labels = {name: _labels(values) for name, values in axes.items()}
    names = [dict(zip(labels, values, strict=True)) for values in itertools.product(*labels.values())]
    rows = [{**named, **_figures(summary), **named} for named, summary in zip(names, summaries, strict=True)]
    return pl.DataFrame(rows, infer_schema_length=None)


def _summary_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    experiment = experiment_of({"policy": "ares", "trace": "mooncake", **arguments})
    return evaluated(experiment, experiment.run()).summary


def _summaries(jobs: int, fixed: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The summaries of runs of names alone, which a store keeps."""
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if jobs != 1 else []
    with TemporaryDirectory() as directory:
        outcomes = Sweep([*launcher, *_words(fixed)], Path(directory)).shown([_words(point) for point in points])
    for outcome in outcomes:
        if outcome.record is None:
            raise InputError(f"{' '.join(outcome.overrides)}: {outcome.refusal}")
    return [outcome.record.summary for outcome in outcomes if outcome.record is not None]


def _words(settings: Mapping[str, Any]) -> list[str]:
    files = objects_of({name: value for name, value in settings.items() if name == "trace"}).overrides
    return [*files, *(word(name, value) for name, value in settings.items() if name != "trace")]


def _labels(values: Sequence[Any]) -> list[Any]:
    """A column's names for the values of an axis; numbers distinguish objects of one name."""
    labels = [label_of(value) for value in values]
    return [f"{one} {at + 1}" if labels.count(one) > 1 else one for at, one in enumerate(labels)]


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if value is None or isinstance(value, int | float | str)}


def capacity(
    policy: Any = "ares", trace: Any = "mooncake", search: Capacity | None = None, **settings: Any
) -> Measurement:
    """Search for the highest offered rate that keeps the SLO in the long run.

    Args:
        policy: As in `run`.
        trace: As in `run`; its requests are offered at each rate that is tried.
        search: How to search, by default `Capacity()`: within 1 %, for 90 % of the requests.
        settings: As in `run`.

    Returns:
        The rate in requests/s as `value`, the run at that rate, and `probes`: one row for each rate tried.

    Raises:
        InputError: For wrong arguments, and for requests that have no rate.

    Example:
        >>> from framework.objective.capacity import Capacity
        >>> coarse = Capacity(tolerance=1.0, most_requests=600)
        >>> found = servelab.capacity("chunked", "synthetic", coarse, limit=60, rate=6)
        >>> found.value >= 6, found.probes.columns[:2]
        (True, ['sample', 'rate_rps'])
    """
    return (search or Capacity()).measure(experiment_of({"policy": policy, "trace": trace, **settings}))
