"""An entry of a profile as JSON: one object of columns for the parts of one setup.

Columns whose names end in `_us` hold microseconds, rounded to four significant digits; the others hold sizes and limits
in tokens or sequences, where null stands for no limit. Whole numbers are written without a decimal point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, FloatArray, Surface
from framework.timing.profile import Setup, StepParts, limits_of_decodes
from framework.timing.step_row import StepRow

_DIGITS = 4
_US = 1e-6
_DTYPES = ("dtype", "expert_dtype", "kv_dtype")
_OF_TILES = ("row", "pair")  # written if decodes have tiles in the kernel of chunks
_NO_TILES = {f"tile_{of}_us": 0.0 for of in _OF_TILES}


@dataclass(frozen=True)
class _Column:
    """The column `name` holds `field` of `part`: a number, or values over the columns `axes`."""

    name: str
    part: str
    field: str
    axes: tuple[str, ...] = ()


# In the order of the file; an axis stands before the first column over it.
_COLUMNS = (
    *(_Column(f"{part}_us", part, "linear", ("tokens",)) for part in ("gemm", "experts", "elementwise")),
    _Column("communication_us", "communication", "linear", ("tokens",)),
    _Column("attention_us", "prefill_attention", "attention", ("lengths",)),
    _Column("bounded_us", "prefill_attention", "bounded", ("lengths",)),
    _Column("attention_floor_us", "prefill_attention", "prefill_step_s"),
    _Column("decode_us", "decode_attention", "decode", ("batches", "contexts")),
    _Column("logits_us", "logits", "logits", ("sampled",)),
    _Column("base_us", "overhead", "base_s"),
    _Column("tokens_limit", "gemm", "tokens_limit"),
    _Column("length_limit", "prefill_attention", "length_limit"),
    _Column("sampled_limit", "logits", "sampled_limit"),
    _Column("context_limits", "decode_attention", "decode_limits", ("batches",)),
    _Column("skew_us", "decode_attention", "skew_s"),
    *(_Column(f"tile_{of}_us", "prefill_attention", f"tile_{of}_s") for of in _OF_TILES),
)
_DEFAULTS: Mapping[str, Any] = {"skew_us": 0.0, "bounded_us": None, "scaled_from": "", "estimated": []} | _NO_TILES
_NAMES = {name for column in _COLUMNS for name in (column.name, *column.axes)}
_KNOWN = {"parallelism", *_DTYPES, *_NAMES, "scaled_from", "estimated"}


def encoded(parts: StepParts) -> dict[str, Any]:
    """The columns of an entry, by name. Raises ValueError if columns over one axis have different knots."""
    setup = parts.setup
    entry: dict[str, Any] = {"parallelism": asdict(setup.parallelism)}
    entry |= {name: getattr(setup, name) for name in _DTYPES}
    for column in _COLUMNS:
        if column.field == "bounded" and parts[column.part].bounded is None:
            continue
        axes, values = _taken_apart(column, parts)
        for name, axis in zip(column.axes, axes, strict=True):
            knots = _shortened(list(axis))
            if entry.setdefault(name, knots) != knots:
                raise ValueError(f"{column.name} has other {name} than the columns before it")
        if column.name.endswith("_us"):
            entry[column.name] = _shortened((np.asarray(values) / _US).tolist(), _DIGITS)
        else:
            entry[column.name] = _shortened(np.asarray(values, np.float64).tolist())
    if not any(entry[name] for name in _NO_TILES):
        entry = {name: value for name, value in entry.items() if name not in _NO_TILES}
    entry["scaled_from"] = parts.scaled_from
    return entry | ({"estimated": list(parts.estimated)} if parts.estimated else {})


def decoded(entry: Mapping[str, Any]) -> StepParts:
    """The parts of an entry. Raises ValueError, KeyError or TypeError for columns that are not those of an entry."""
    entry = {**_DEFAULTS, **entry}
    if set(entry) != _KNOWN:
        raise ValueError(f"an entry lacks, or has too many: {', '.join(sorted(_KNOWN ^ set(entry)))}")
    rows: dict[str, dict[str, Any]] = {}
    for column in _COLUMNS:
        axes = [_numbers(name, entry[name]) for name in column.axes]
        try:
            rows.setdefault(column.part, {})[column.field] = _put_together(column, axes, entry[column.name])
        except ValueError as error:
            raise ValueError(f"{column.name}: {error}") from error
    setup = Setup(Parallelism(**entry["parallelism"]), *(str(entry[name]) for name in _DTYPES))
    made = {part: StepRow(**row) for part, row in rows.items()}
    return StepParts(setup, made, str(entry["scaled_from"]), tuple(map(str, entry["estimated"]))).without_bumps


def _taken_apart(column: _Column, parts: StepParts) -> tuple[Sequence[Sequence[float]], Any]:
    """The axes of a column, and its values over them."""
    row = parts[column.part]
    value = getattr(row, column.field)
    if column.field == "decode_limits":
        assert row.decode is not None
        batches = row.decode.batches
        return [batches], [math.inf] * len(batches) if value is None else value.values[: len(batches)]
    if isinstance(value, Surface):
        return [value.batches, value.contexts], value.values
    return ([value.knots], value.values) if isinstance(value, Curve) else ([], value)


def _put_together(column: _Column, axes: Sequence[FloatArray], value: Any) -> Curve | Surface | float | None:
    if column.field == "bounded" and value is None:
        return None
    values = _numbers(column.name, value)
    if column.field == "decode_limits":
        return limits_of_decodes(axes[0], values)
    if len(axes) == 2:
        return Surface.of(axes[0], axes[1], values)
    return Curve.of(axes[0], values) if axes else float(values)


def _numbers(name: str, value: Any) -> FloatArray:
    """A column as an array of seconds, sizes or limits, in the shape of its nested lists."""
    if name.endswith("_us"):
        return np.array(value, np.float64) * _US
    limits = [math.inf if item is None else item for item in value] if isinstance(value, list) else value
    return np.array(math.inf if limits is None else limits, np.float64)


def _shortened(value: Any, digits: int | None = None) -> Any:
    """Nested lists of numbers, shortened to `digits` significant digits: whole ones as integers, infinity as null."""
    if isinstance(value, list):
        return [_shortened(item, digits) for item in value]
    if math.isinf(value):
        return None
    number = value if digits is None else float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() else number
