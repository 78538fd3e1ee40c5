"""The results of a league, in one JSON file: what was played, and each policy's figures in each cell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.cli.files import write_whole
from framework.cli.reading import parsed_json
from framework.errors import InputError, shown

SHIPPED = Path(__file__).with_name("shipped.json")
_DIGITS = 5


@dataclass(frozen=True)
class Entry:
    """A policy in a cell.

    `capacities_rps`: read off the offered rates (`experiments.league.offered`), on each sample of the second half;
    empty if it could not be run, for `refusal`. `tuned_rps`, `untuned_rps`: of the best trial and the first, on the
    first half. `settings`: of the best trial. `curve`: by offered rate the mean share of good requests, over the
    samples to which it was offered. `lost_to`: requests that each cause cost, at the lowest rate that failed, of all
    samples; `answer_us`: CPU time in the policy's Python hooks, in microseconds a request. `cpu_s`: of all `runs`.
    `code`: the first digits of its runs' keys.
    """

    capacities_rps: tuple[float, ...] = ()
    tuned_rps: float = 0.0
    untuned_rps: float = 0.0
    settings: tuple[str, ...] = ()
    trials: int = 0
    curve: tuple[tuple[float, float], ...] = ()
    lost_to: Mapping[str, int] = field(default_factory=dict)
    answer_us: float = 0.0
    runs: int = 0
    cpu_s: float = 0.0
    usd_per_hour: float = 0.0
    code: str = ""
    refusal: str = ""

    @property
    def values(self) -> NDArray[np.float64]:
        """The capacities as an array, (samples,)."""
        return np.array(self.capacities_rps, np.float64)

    @property
    def mean_rps(self) -> float:
        """The mean capacity; 0 for a policy that could not be run."""
        return float(self.values.mean()) if self.capacities_rps else 0.0


@dataclass(frozen=True)
class Played:
    """A cell: its load and setup, settings of all runs, offered rates, and the bound on capacity of each sample."""

    load: str
    setup: str
    gpus: int
    settings: tuple[str, ...]
    source: str
    rates_rps: tuple[float, ...]
    bounds_rps: tuple[float, ...]
    bound_limit: str
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def bound_rps(self) -> float:
        """The mean bound over the samples."""
        return float(np.mean(self.bounds_rps))

    def with_entry(self, name: str, entry: Entry) -> Played:
        """The cell with one more entry, or another one of that name."""
        return Played(**{**vars(self), "entries": {**self.entries, name: entry}})


@dataclass(frozen=True)
class Results:
    """`made`: how (trials, replicates, attainment, further settings, version); `cells` by name."""

    made: Mapping[str, Any]
    cells: Mapping[str, Played]

    def with_cell(self, name: str, cell: Played) -> Results:
        """The results with one more cell, or another one of that name."""
        return Results(self.made, {**self.cells, name: cell})


def write(results: Results, path: Path) -> None:
    """Write the file; one line for each entry, so that differences can be read."""
    cells = []
    for name, cell in results.cells.items():
        own = _rounded({key: value for key, value in asdict(cell).items() if key != "entries"})
        entries = ",\n".join(
            f"   {json.dumps(policy)}: {json.dumps(_rounded(_given(asdict(entry))))}"
            for policy, entry in sorted(cell.entries.items())
        )
        cells.append(f'  {json.dumps(name)}: {json.dumps(own)[:-1]}, "entries": {{\n{entries}\n  }}}}')
    every = ",\n".join(cells)
    text = f'{{\n "made": {json.dumps(dict(results.made))},\n "cells": {{\n{every}\n }}\n}}\n'
    write_whole(path, text.encode())


def read(path: Path) -> Results:
    """The results in a file. Raises InputError for a file that has none."""
    try:
        content = parsed_json(path.read_bytes())
        cells = {name: _cell(cell) for name, cell in content["cells"].items()}
        return Results(dict(content["made"]), cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no results of a league ({' '.join(str(error).split())}); remove it") from error


def _cell(content: Mapping[str, Any]) -> Played:
    entries = {name: Entry(**_tuples(entry)) for name, entry in content["entries"].items()}
    return Played(**{**_tuples(content), "entries": entries})


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _tuple(value) for key, value in content.items()}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(one) for one in value) if isinstance(value, list) else value


def _given(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults."""
    return {key: value for key, value in entry.items() if value != getattr(Entry(), key)}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"a figure of the league is {shown(value)}, which no results can hold")
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
