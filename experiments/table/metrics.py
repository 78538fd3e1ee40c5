"""The figures of a command line, for all requests or for one class of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.table.select import nearest
from framework.checks import is_numeric
from framework.errors import InputError
from framework.metrics.figure import Metric
from framework.metrics.figures import metric
from framework.run.store import Record


def read_metrics(text: str, records: Sequence[Record]) -> list[Metric]:
    """The metrics of "a,b" or "a@class". Raises InputError for one that no summary has, or that is given twice."""
    summaries = [record.summary for record in records]
    keys = text.split(",")
    for key in keys:
        name, is_of_class, slo_class = key.partition("@")
        parts = _of_class(slo_class, summaries, key) if is_of_class else summaries
        known = {key for part in parts for key, value in part.items() if is_numeric(value)}
        if name not in known | {key for part in parts for key, value in part.items() if value is None}:
            raise InputError(f"metric={key}: {nearest(name, known)}there are {', '.join(sorted(known))}")
        if keys.count(key) > 1:
            raise InputError(f"metric={text}: {key} is given twice")
    return [metric(key) for key in keys]


def figure_of(summary: Mapping[str, Any], key: str) -> Any:
    """The figure of a key of `read_metrics`; None if the summary has none."""
    name, is_of_class, slo_class = key.partition("@")
    return (_classes(summary).get(slo_class, {}) if is_of_class else summary).get(name)


def _of_class(slo_class: str, summaries: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """The figures of a class in each run that has it. Raises InputError if none has."""
    names = sorted({name for summary in summaries for name in _classes(summary)})
    if not names:
        raise InputError(f"metric={key}: requests have no classes in these runs; metric={key.partition('@')[0]}")
    if slo_class not in names:
        raise InputError(f"metric={key}: no run has this class of requests; there are {', '.join(names)}")
    return [_classes(summary)[slo_class] for summary in summaries if slo_class in _classes(summary)]


def _classes(summary: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found = summary.get("classes")
    return found if isinstance(found, Mapping) else {}
