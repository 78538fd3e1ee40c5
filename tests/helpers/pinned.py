"""Figures that are held to what they were: of what has no second definition, such as how tight a bound is.

A file of JSON has them. Where a change of them is meant, `RENEW_PINNED=1 python -m pytest FILE` writes it anew, and the
commit says why they changed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_FAR, _UNKNOWN = 1234.5, -7.0  # stand for infinity and NaN
_LEAST = 1e-9  # of a number that differs from 0 by much


def check(file: Path, found: Mapping[str, list[float]], rel: float = 1e-9) -> None:
    """Hold figures, by name, against those of a file; `rel` more where solvers decide the last digits."""
    if os.environ.get("RENEW_PINNED"):
        rows = (
            f"{json.dumps(name)}: {json.dumps([float(f'{one:.12g}') for one in own])}" for name, own in found.items()
        )
        file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    known = json.loads(file.read_text())
    assert list(found) == list(known)
    for name, own in found.items():
        assert own == pytest.approx(known[name], rel=rel, abs=1e-12), name


def total(value: Any) -> float:
    """One figure of all numbers in dataclasses, mappings, sequences and arrays.

    Of each number the logarithm counts, so that small ones do, with a weight of its own.
    """
    numbers = np.fromiter(_numbers(value), np.float64)
    sizes = np.sign(numbers) * np.log2(1.0 + np.abs(numbers) / _LEAST)
    sizes = np.nan_to_num(sizes, nan=_UNKNOWN, posinf=_FAR, neginf=-_FAR)
    return float(sizes @ (1.5 + np.cos(np.arange(1.0, len(numbers) + 1)))) + len(numbers)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, np.ndarray):
        yield from np.ravel(value).astype(np.float64).tolist()
    elif is_dataclass(value):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float | np.number):
        yield float(value)
    elif value is None:
        yield math.nan


def check_texts(file: Path, found: Mapping[str, str]) -> None:
    """The same of texts, which stand in the file one after the other, each below a line with its name."""
    content = "".join(f"=== {name}\n{text}" for name, text in found.items())
    if os.environ.get("RENEW_PINNED"):
        file.write_text(content)
    assert content == file.read_text()
