"""The runs of a store that a table is made of, and which of them share a cell."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.checks import is_numeric
from framework.cli.arguments import program
from framework.cli.safe_text import printable
from framework.errors import InputError
from framework.run.store import Record

Label = tuple[Any, ...]  # the values of an axis' keys
Place = tuple[Label, Label]  # row, column
_PROVENANCE = ("version", "gpus", "load", "trace_source", "trace_sha256", "timing_source", "git_revision")
# how far its load lies from the fit's
_OF_ONE_SAMPLE = re.compile(r", this run: [^);]*|(?<=calibration left out): [^);]*")
_DIFFERENT_RUNS = ("trace_source", "timing_source")  # keys whose values must not be averaged over
_TOLD = 6  # keys, and values, that an error lists
ABSENT = "–"  # a key that a run does not have


@dataclass(frozen=True)
class Axis:
    """The keys whose values distinguish rows, or columns, and these values in order. No keys: one row or column."""

    keys: tuple[str, ...]
    labels: tuple[Label, ...]

    def of(self, record: Record) -> Label:
        return label(record, self.keys)


@dataclass(frozen=True)
class Selection:
    """The runs of a table: `cells[row, column][replicate]`, replicates in order. Cells without a run are left out."""

    rows: Axis
    columns: Axis
    replicate: str
    cells: Mapping[Place, Mapping[Any, Record]]

    @property
    def records(self) -> list[Record]:
        return [record for runs in self.cells.values() for record in runs.values()]


def value_of(record: Record, key: str) -> Any:
    """A run's option of a config group, else its setting, else its summary's word on its origin.

    For the group `trace` it is the trace that was played, if settings name another one than the option.
    """
    if key == "trace" and _names_its_trace(record):
        return record.summary.get("trace")
    for source in (record.choices, record.config):
        if key in source:
            return _hashable(source[key])
    if key == "version":
        return record.version
    if key == "timing_source":
        return timing_of(record)
    if key in _PROVENANCE:
        return record.summary.get(key)
    return record.key if key == "key" else ABSENT


def _names_its_trace(record: Record) -> bool:
    """Whether settings chose the trace, by its file or by its name."""
    option, name = record.choices.get("trace"), record.config.get("trace.name")
    return record.config.get("trace.path") is not None or (name is not None and name != option)


def timing_of(record: Record) -> str:
    """The source of a run's step times, without the place of its own load, which differs between samples."""
    return _OF_ONE_SAMPLE.sub("", str(record.summary.get("timing_source")))


def label(record: Record, keys: Iterable[str]) -> Label:
    """The values of several keys."""
    return tuple(value_of(record, key) for key in keys)


def shown(value: Any) -> str:
    """A value in the form of a command line."""
    if isinstance(value, tuple):
        return f"[{','.join(shown(inner) for inner in value)}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else printable(str(value))


def nearest(word: str, known: Collection[str]) -> str:
    """ "did you mean ...? " where something known is like `word`, else nothing."""
    close = difflib.get_close_matches(word, sorted(known), 3, cutoff=0.5)
    close += [name for name in sorted(known) if name.endswith(f".{word}") and name not in close]
    return f"did you mean {' or '.join(close[:3])}? " if close else ""


def keys_of(records: Iterable[Record]) -> set[str]:
    """All names for rows, columns and filters."""
    return {"key", *_PROVENANCE} | {key for record in records for key in (*record.choices, *record.config)}


def kept(records: Sequence[Record], filters: Mapping[str, str]) -> list[Record]:
    """The records that have one of the values of each filter, as in {"policy": "ares,distserve"}.

    Raises InputError for a key that no run has, and for a value that none of the remaining runs has.
    """
    left = list(records)
    for key, text in filters.items():
        _require_known(f"{key}={text}", key, records)
        found = {value_of(record, key) for record in left}
        for word in _words(text) or [text]:
            if not any(_is_meant(value, word) for value in found):
                raise InputError(f"{key}={word}: no run is left that has it; there are {_listed(found)}")
        left = [record for record in left if _place(value_of(record, key), text) is not None]
    return left


def _words(text: str) -> list[str]:
    """ "a,b" or "[0,600],null" in parts."""
    return [word.replace(" ", "") for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)]


def _is_meant(value: Any, word: str) -> bool:
    if is_numeric(value):
        try:
            return float(word) == value
        except ValueError:
            return False
    return shown(value) == word


def _place(value: Any, text: str) -> int | None:
    return next((place for place, word in enumerate(_words(text)) if _is_meant(value, word)), None)


def select(
    records: Sequence[Record], rows: Sequence[str], columns: Sequence[str], replicate: str, filters: Mapping[str, str]
) -> Selection:
    """The runs that `filters` keep, by cell.

    Values of an axis are in the filter's order, else in that of numbers or letters. Raises InputError for keys that no
    run has, or if the runs of a cell are not replicates of each other.
    """
    chosen = kept(records, filters)
    for word, keys in (("rows", rows), ("columns", columns), ("replicate", [replicate])):
        for key in keys:
            _require_known(f"{word}={','.join(keys)}", key, chosen)
    across = (_axis(chosen, rows, filters), _axis(chosen, columns, filters))
    runs: dict[Place, list[Record]] = {}
    for record in sorted(chosen, key=lambda record: (rank(value_of(record, replicate)), record.key)):
        runs.setdefault((across[0].of(record), across[1].of(record)), []).append(record)
    places = [(row, column) for row in across[0].labels for column in across[1].labels if (row, column) in runs]
    _require_replicates([(place, runs[place]) for place in places], (*rows, *columns), replicate)
    cells = {place: {value_of(record, replicate): record for record in runs[place]} for place in places}
    return Selection(*across, replicate, cells)


def _axis(records: Sequence[Record], keys: Sequence[str], filters: Mapping[str, str]) -> Axis:
    def place_of(one: Label) -> list[Any]:
        return [
            _place(value, filters[key]) if key in filters else rank(value) for value, key in zip(one, keys, strict=True)
        ]

    return Axis(tuple(keys), tuple(sorted({label(record, keys) for record in records}, key=place_of)))


def rank(value: Any) -> tuple[Any, ...]:
    """A sort key: numbers by size, then all else by its letters."""
    is_number = is_numeric(value)
    return (0, value, "") if is_number else (1, 0, shown(value))


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(inner) for inner in value)
    return str(value) if isinstance(value, dict) else value


# --- one run a replicate ----------------------------------------------------------------------------------------------


def _require_replicates(cells: Sequence[tuple[Place, list[Record]]], keys: Sequence[str], replicate: str) -> None:
    """Raise InputError unless the runs of every cell differ in the replicate alone, one run each."""
    everything = [record for _, runs in cells for record in runs]
    followers = {
        key
        for key in keys_of(everything)
        if all(value_of(record, key) == value_of(record, replicate) for record in everything)
    }
    for (row, column), runs in cells:
        where = ", ".join(f"{key}={shown(value)}" for key, value in zip(keys, (*row, *column), strict=True)) or "all"
        varying = _varying(runs, followers | {replicate})
        if varying:
            listed = "; ".join(
                f"{key} ({_listed({value_of(record, key) for record in runs})})" for key in varying[:_TOLD]
            )
            more = f"; and {len(varying) - _TOLD} more" if len(varying) > _TOLD else ""
            key = varying[0]
            example = f"{key}={_listed({value_of(record, key) for record in runs}).split(', ')[0]}"
            raise InputError(
                f"{where}: {len(runs)} runs differ in {listed}{more}; choose with {example}, or tell them apart with "
                f"rows=...,{key} or columns=...,{key}"
            )
        if len({value_of(record, replicate) for record in runs}) < len(runs):
            revisions = sorted({shown(value_of(record, "git_revision")) for record in runs})
            choice = f"choose with git_revision={revisions[0]}, or " if len(revisions) > 1 else ""
            raise InputError(
                f"{where}: {len(runs)} runs with the same settings, made with other code, step times or requests; "
                f"{choice}fill a new store"
            )


def _varying(runs: Sequence[Record], replicates: Collection[str]) -> list[str]:
    """Keys that vary among runs, without those of `replicates`: groups first, and then nothing that an option implies.

    For runs of several versions, the version alone.
    """

    def column(key: str) -> tuple[Any, ...]:
        return tuple(value_of(record, key) for record in runs)

    if "version" not in replicates and len(set(column("version"))) > 1:
        return ["version"]  # Another version names its settings and classes differently.
    groups = {key: None for record in runs for key in record.choices}
    settings = {key: None for record in runs for key in record.config if key not in groups}
    found = [key for key in groups if len(set(column(key))) > 1]
    implied = {column(key) for key in settings if _is_of_any(key, found)}
    for key in (*settings, *_DIFFERENT_RUNS):
        own = column(key)
        if len(set(own)) > 1 and key not in replicates and not _is_of_any(key, found) and own not in implied:
            found.append(key)
            implied.add(own)
    return found


def _is_of_any(key: str, groups: Collection[str]) -> bool:
    """Whether it is a setting, or a group of settings, within one of these."""
    return any(key.startswith(f"{group}.") for group in groups)


def _require_known(word: str, key: str, records: Sequence[Record]) -> None:
    known = keys_of(records)
    if key not in known:
        groups = {group for record in records for group in record.choices}
        raise InputError(
            f"{word}: no run has {key}; {nearest(key, known)}it may be one of {', '.join(sorted(groups))}, or a key of "
            f"the configuration ({program()} --cfg job)"
        )


def _listed(found: Collection[Any]) -> str:
    ordered = [shown(value) for value in sorted(found, key=rank)]
    more = f" and {len(ordered) - _TOLD} more" if len(ordered) > _TOLD else ""
    return ", ".join(ordered[:_TOLD]) + more
