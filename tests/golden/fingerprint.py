"""What a run left in its directory, as one short text for each column and each figure."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

_TABLES = ("requests", "steps")
_NOT_RESULTS = ("versions", "git_revision", "prefix_cache")  # software, and a setting
_DIGITS = 9


def columns(directory: Path) -> dict[str, str]:
    """A hash of each column of the tables there, and of the timeline: {"requests.ttft_s": "0123456789abcdef", ...}."""
    found = {}
    for table in _TABLES:
        if (path := directory / f"{table}.parquet").exists():
            for column in pl.read_parquet(path):
                found[f"{table}.{column.name}"] = _hash(*_content(column))
    if (path := directory / "timeline.json.gz").exists():
        found["timeline"] = _hash(gzip.decompress(path.read_bytes()))
    return found


def figures(directory: Path) -> dict[str, Any]:
    """Each figure of summary.json and of probes.csv: {"summary.mfu": 0.2, ...}; versions of software are none."""
    summary = json.loads((directory / "summary.json").read_text())
    parts: dict[str, Any] = {"summary": {key: value for key, value in summary.items() if key not in _NOT_RESULTS}}
    if (path := directory / "probes.csv").exists():
        parts["probes"] = pl.read_csv(path).to_dicts()
    return dict(_leaves("", parts))


def exact(directory: Path) -> dict[str, str]:
    """All columns and all figures, to the last bit."""
    return columns(directory) | {name: repr(value) for name, value in figures(directory).items()}


def portable(directory: Path) -> dict[str, str]:
    """The columns, and one hash of all figures to nine digits.

    Sums of many terms and linear programs may differ in their last bits between processors: the order of additions is a
    library's choice.
    """
    rounded = {
        name: f"{value:.{_DIGITS}g}" if isinstance(value, float) else value
        for name, value in figures(directory).items()
    }
    return columns(directory) | {"summary": _hash(json.dumps(rounded, sort_keys=True).encode())}


def moved(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """What is not the same in both; a name that one of them lacks is marked by - (gone) or + (new)."""
    signs = {name: "-" if name not in new else "+" if name not in old else "" for name in old | new}
    return [signs[name] + name for name in signs if old.get(name) != new.get(name)]


def _content(column: pl.Series) -> Iterator[bytes]:
    yield f"{column.name} {column.dtype} {len(column)}".encode()
    yield column.is_null().to_numpy().tobytes()
    if column.dtype == pl.String:
        yield json.dumps(column.to_list()).encode()
    else:
        yield column.fill_null(False if column.dtype == pl.Boolean else 0).to_numpy().tobytes()


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value
