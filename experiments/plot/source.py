"""The runs of a picture, from a store or from the directories of runs and sweeps, in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from experiments.table.command import read_store
from experiments.table.select import ABSENT, Label, label, rank, shown, value_of
from framework.cli.reading import parsed_yaml, read_text
from framework.cli.safe_text import printable
from framework.errors import InputError
from framework.report.arms import Arm, unlike
from framework.run.arms import decided, ran_settings
from framework.run.finished import is_sweep, runs_of_sweep, summary_of, table_of
from framework.run.job import chosen
from framework.run.store import Record

_OPTIONS = Path(".hydra") / "hydra.yaml"
_LOAD = ("trace", "trace_source", "trace.rate", "trace.rate_scale", "load.concurrency")  # keys that runs must share


@dataclass(frozen=True)
class Source:
    """Runs; `places`: the directories of those with files, by their keys."""

    records: list[Record]
    places: Mapping[str, Path]

    @property
    def policies(self) -> list[str]:
        """The policies of all runs, by name: the order in which they get their colours."""
        return sorted({policy_of(record) for record in self.records})

    def table(self, record: Record, name: str, columns: Sequence[str], how: str) -> pl.DataFrame:
        """A file of a run. Raises InputError if it is missing, with `how` to get it, or lacks a column."""
        if record.key not in self.places:
            raise InputError(f"{name} is in the directories of runs, and a store keeps figures alone: name directories")
        path = self.places[record.key] / name
        if not path.is_file():
            raise InputError(f"{printable(str(path))}: is not there; {how}")
        return table_of(path, columns)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in what is on the axis and in their seeds.

    `label` distinguishes them from the others. `cells`: the runs at each value of the axis; without an axis the only
    key is ().
    """

    label: str
    policy: str
    cells: Mapping[Label, tuple[Record, ...]]

    @property
    def records(self) -> tuple[Record, ...]:
        """All of them."""
        return tuple(record for own in self.cells.values() for record in own)


def unlike_policies(records: Sequence[Record]) -> str | None:
    """How runs on the same requests differ besides the policy; not in settings that vary with one policy too."""
    of_policy: dict[str, list[Record]] = {}
    for record in records:
        of_policy.setdefault(policy_of(record), []).append(record)
    names = dict.fromkeys(name for record in records for name in record.config)
    given = {
        name for name in names for own in of_policy.values() if len({repr(one.config.get(name)) for one in own}) > 1
    }
    arms: dict[tuple[str, Label], Arm] = {}
    for policy, own in of_policy.items():
        for record in own:
            load = label(record, _LOAD)
            arms.setdefault((policy, load), Arm(policy, record.config, load, given))
    return unlike(list(arms.values()))


def policy_of(record: Record) -> str:
    """The policy of a run, by the name of its option."""
    return shown(value_of(record, "policy"))


def read_source(places: Sequence[Path]) -> Source:
    """The runs in these directories: each a store, or that of a run or a sweep. Raises InputError for any other."""
    records: dict[str, Record] = {}
    directories: dict[str, Path] = {}
    for place in places:
        if (place / "records").is_dir() or (place / "segments").is_dir():
            records |= {record.key: record for record in read_store(place)}
            continue
        for directory in _runs_in(place):
            record = _record_of(directory)
            records[record.key], directories[record.key] = record, directory
    return Source(list(records.values()), directories)


def _runs_in(place: Path) -> list[Path]:
    if (place / "summary.json").is_file():
        return [place]
    if place.is_dir() and is_sweep(place):
        return runs_of_sweep(place)
    what = "neither a store of runs, nor the directory of a run or of a sweep" if place.is_dir() else "is no directory"
    raise InputError(
        f"{printable(str(place))}: {what}; name one, as in from=results, or fill a store with run.py -m ..."
    )


def _record_of(directory: Path) -> Record:
    """The run of a directory in the form of the store."""
    summary = summary_of(directory / "summary.json")
    settings = decided(ran_settings(directory), summary)
    path = directory / _OPTIONS
    try:
        choices = parsed_yaml(read_text(path))["hydra"]["runtime"]["choices"]
        options = chosen(choices)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{printable(str(path))}: does not name the options of the run") from error
    return Record(str(directory.resolve()), settings, options, summary, 0.0)


# --- groups -----------------------------------------------------------------------------------------------------------


def groups(records: Sequence[Record], replicate: str, axis: Sequence[str], order: Mapping[str, str]) -> list[Group]:
    """The runs in groups, by the values of as few keys as distinguish them in addition to `axis` and `replicate`.

    Policies are in the order of the filter, if there is one, else by name. Raises InputError if two runs of a cell have
    the same replicate.
    """
    apart = _telling(records, (replicate, *axis))
    found: dict[Label, dict[Label, list[Record]]] = {}
    for record in sorted(records, key=lambda one: (rank(value_of(one, replicate)), one.key)):
        found.setdefault(label(record, apart), {}).setdefault(label(record, axis), []).append(record)
    for own in found.values():
        for runs in own.values():
            _require_replicates(runs, replicate)
    first = order.get("policy", "").split(",")

    def place(one: Label) -> Any:
        name = shown(one[0])
        return (first.index(name) if name in first else len(first), [rank(value) for value in one])

    return [
        Group(
            _label_of(one, apart, list(found)), shown(one[0]), {at: tuple(found[one][at]) for at in _sorted(found[one])}
        )
        for one in sorted(found, key=place)
    ]


def _telling(records: Sequence[Record], others: Sequence[str]) -> list[str]:
    """The policy, and each key that distinguishes runs that earlier keys and `others` do not; groups come first."""
    groups = dict.fromkeys(key for record in records for key in record.choices)
    settings = dict.fromkeys(key for record in records for key in record.config if not key.endswith("_target_"))
    apart = ["policy"]
    distinct = len({label(one, (*apart, *others)) for one in records})
    for key in (*groups, *settings, "trace_source", "timing_source", "version"):
        if key not in (*apart, *others):
            now = len({label(one, (*apart, *others, key)) for one in records})
            apart += [key] if now > distinct else []
            distinct = max(distinct, now)
    return apart


def _sorted(cells: Mapping[Label, Any]) -> list[Label]:
    return sorted(cells, key=lambda one: [rank(value) for value in one])


def _require_replicates(runs: Sequence[Record], replicate: str) -> None:
    if len({value_of(one, replicate) for one in runs}) < len(runs):
        where = ", ".join(sorted({printable(one.key) for one in runs})[:2])
        raise InputError(
            f"{policy_of(runs[0])}: {len(runs)} runs have the same settings and the same {replicate}, as {where}; "
            "they were made with other code, step times or requests: choose with git_revision=, or name other runs"
        )


def _label_of(one: Label, keys: Sequence[str], every: Sequence[Label]) -> str:
    """The policy, and the settings in which it differs from others of the same policy."""
    rivals = [other for other in every if other[0] == one[0]]
    words = [
        f"{key.split('.')[-1]} {shown(value)}"
        for at, (key, value) in enumerate(zip(keys, one, strict=True))
        if at and value != ABSENT and len({other[at] for other in rivals}) > 1
    ]
    return ", ".join([shown(one[0]), *words])
