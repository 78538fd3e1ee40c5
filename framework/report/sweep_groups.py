"""The runs of a sweep as rows of one table: means over seeds, and groups of comparable runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from framework.report.load_words import load_state, ran_out, served_others_worse

Summary = Mapping[str, Any]
OF_A_GROUP = ("trace", "load", "slo")  # settings that runs must share to be comparable


@dataclass(frozen=True)
class Ended:
    """An ended run of a sweep: its directory, its arguments, its summary."""

    directory: Path
    arguments: tuple[str, ...]
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class SweepRow:
    """One row: what distinguishes it, its figures, and its `group` of comparable rows.

    `seeds` is the number of runs whose mean its figures are.
    """

    label: str
    summary: Summary
    group: tuple[str, ...]
    seeds: int = 1


def rows_of(runs: Sequence[tuple[str, Summary]]) -> list[SweepRow]:
    """The rows of (label, summary) pairs, groups together, otherwise in their order. Labels are `key=value` parts."""
    alike: dict[tuple[str, ...], list[Summary]] = {}
    for label, summary in runs:
        arguments = tuple(word for word in label.split() if not word.startswith("seed="))
        alike.setdefault(arguments, []).append(summary)
    rows = []
    for arguments, summaries in alike.items():
        group = tuple(word for word in arguments if word.startswith(OF_A_GROUP) or word == "(fitted)")
        label = " ".join(arguments) or str(summaries[0]["policy"])
        rows.append(SweepRow(label, mean_of(summaries), group, len(summaries)))
    return in_groups(rows)


def in_groups(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """The runs with those of one group together, otherwise in their order."""
    groups = list(dict.fromkeys(row.group for row in rows))
    return sorted(rows, key=lambda row: groups.index(row.group))


def mean_of(summaries: Sequence[Summary]) -> Summary:
    """The mean of each number, null if it is null in all; the worst of `load_state` and of warnings; anything else, and
    what is equal in all, as it is.
    """
    if len(summaries) == 1:
        return summaries[0]
    found = dict(summaries[0])
    for name in found:
        values = [summary.get(name) for summary in summaries]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if numbers:
            found[name] = numbers[0] if len(set(numbers)) == 1 else fmean(numbers)
    if "load_state" in found:
        found["load_state"] = load_state(summaries)
        found["window_is_short"] = any(summary.get("window_is_short") for summary in summaries)
    if "uncounted_is_worse" in found:
        found["uncounted_is_worse"] = served_others_worse(summaries)
    if "capacity_settled" in found:
        found["capacity_settled"] = not ran_out(summaries)
    return found
