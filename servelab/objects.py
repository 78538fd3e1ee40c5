"""Objects in place of names: what `run`, `sweep` and `capacity` accept for each part of an experiment."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from framework.cli.explain import is_file_name
from framework.cli.files import write_whole
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, shown
from framework.load import Load
from framework.metrics.slo import Slo
from framework.policy.base import Disaggregated, Policy
from framework.policy.predictor import Predictor
from framework.system.cluster import ClusterSpec
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.workload import Workload

FRAME = "DataFrame"
_SECONDS = ("arrival_s", "think_s")  # columns of a table, as traces.frame names them
_TRACES = "a name of conf/trace, a file (text with a / or an ending, or a Path), a DataFrame or a Workload"
# Parts made only of numbers and names: they go into the configuration, and other parts refer to them.
_PLAIN: Mapping[str, type] = {"model": Model, "gpu": Gpu}
_KINDS: Mapping[str, type] = {
    **_PLAIN,
    "cluster": ClusterSpec,
    "engine": EngineConfig,
    "load": Load,
    "policy": Policy,
    "predictor": Predictor,
    "slo": Slo,
    "timing": object,
}


@dataclass(frozen=True)
class Objects:
    """The given objects: `made` makes each, for one run; `settings` replace those that others refer to; `overrides`
    choose what they replace.
    """

    made: Mapping[str, Callable[[], Any]]
    settings: Mapping[str, Any]
    overrides: tuple[str, ...]


def objects_of(arguments: Mapping[str, Any]) -> Objects:
    """The objects among the arguments of a run. Raises InputError for one that cannot be that part."""
    made: dict[str, Callable[[], Any]] = {}
    settings: dict[str, Any] = {}
    overrides: list[str] = []
    for name, value in arguments.items():
        if name == "trace":
            overrides += _trace(value, made)
        elif name in _KINDS and not _is_word(value):
            if inspect.isclass(value):
                raise InputError(f"{name} is the class {value.__name__}; give an object of it: {value.__name__}()")
            if not isinstance(value, _KINDS[name]) or isinstance(value, int | float):
                raise InputError(f"{name} must be a name or a {_KINDS[name].__name__}, got {shown(value)}")
            if name in _PLAIN:
                settings[name] = _settings_of(value)
            else:
                made[name] = _maker(value)
                overrides += _in_place_of(value, arguments) if isinstance(value, Policy) else ()
    return Objects(made, settings, tuple(overrides))


def is_object(name: str, value: Any) -> bool:
    """Whether an argument is an object in place of a name."""
    return (name == "trace" and not isinstance(value, str | Path)) or (name in _KINDS and not _is_word(value))


def label_of(value: Any) -> Any:
    """A table's name for a value of a sweep; numbers and texts are their own."""
    if value is None or isinstance(value, int | float | str):
        return value
    if is_frame(value):
        return FRAME
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else str(value)


def is_frame(value: Any) -> bool:
    """Whether it is a table of any library: named columns that can be read one by one."""
    if isinstance(value, pl.LazyFrame):
        return True
    columns = getattr(value, "columns", None)
    return columns is not None and hasattr(value, "__getitem__") and not isinstance(value, type | Mapping | str)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, str | Mapping)


def _maker(value: Any) -> Callable[[], Any]:
    """A function that copies the object as it was given for each run: a policy or a predictor serves one run."""
    kept = copy.deepcopy(value)
    return lambda: copy.deepcopy(kept)


def _settings_of(value: Any) -> Any:
    """A dataclass as the settings that make it."""
    if not is_dataclass(value) or isinstance(value, type):
        return dict(value) if isinstance(value, Mapping) else value
    inner = {field.name: _settings_of(getattr(value, field.name)) for field in fields(value) if field.init}
    return {"_target_": f"{type(value).__module__}.{type(value).__qualname__}", "_convert_": "all", **inner}


def _in_place_of(policy: Policy, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The choice of a policy whose cluster this one can use, and which it replaces."""
    is_apart = isinstance(policy, Disaggregated)
    cluster = () if "cluster" in arguments else (f"cluster={'disaggregated' if is_apart else 'mixed'}",)
    return (f"policy={'distserve' if is_apart else 'continuous'}", *cluster)


# --- requests ---------------------------------------------------------------------------------------------------------


def _trace(value: Any, made: dict[str, Callable[[], Any]]) -> list[str]:
    """The overrides that choose the requests."""
    if isinstance(value, Workload):
        made["trace"] = lambda: value
        return ["trace=synthetic", "trace.limit=1"]  # The workload replaces this trace.
    if is_frame(value):
        return _of_a_file(_written(value))
    if not isinstance(value, str | Path):
        raise InputError(f"trace must be {_TRACES}; got {shown(value)}")
    text = str(value)
    is_file = isinstance(value, Path) or is_file_name(text)
    return _of_a_file(Path(text).expanduser().absolute()) if is_file else [f"trace={text}"]


def _of_a_file(path: Path) -> list[str]:
    return ["trace=mooncake", f"trace.path={quoted(str(path))}"]


def quoted(text: str) -> str:
    """Any text in the grammar of overrides."""
    ends = len(text) - len(text.rstrip("\\"))
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "\\" * ends + "'"


def _written(frame: Any) -> Path:
    """A file with the table, named by its content, for the readers of traces. Raises InputError if that fails."""
    table = _in_seconds(_as_polars(frame))
    if table.is_empty():
        raise InputError(f"trace: the {FRAME} has no rows")
    content = io.BytesIO()
    table.write_parquet(content)
    file = Path(_folder().name, hashlib.sha256(content.getvalue()).hexdigest()[:24], f"{FRAME}.parquet")
    if not file.exists():
        write_whole(file, content.getvalue())
    return file


@functools.cache
def _folder() -> TemporaryDirectory[str]:
    """The folder of tables while this process lives."""
    return TemporaryDirectory(prefix="servelab-")


def without_folder(line: str) -> str:
    """A line about such a file, whose name users do not know, as a line about the table."""
    return re.sub(rf"\S*/{FRAME}\.parquet", f"the {FRAME}", line)


def _as_polars(frame: Any) -> pl.DataFrame:
    """The table of any library that has `columns` and gives each by its name, as pandas does."""
    if isinstance(frame, pl.LazyFrame | pl.DataFrame):
        return frame.lazy().collect()
    names = list(frame.columns)
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"trace: the {type(frame).__name__} has more than one column {twice[0]}")
    try:
        return pl.DataFrame([_series(str(name), frame[name]) for name in names])
    except (TypeError, ValueError, KeyError, AttributeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"trace: the {type(frame).__name__} cannot be read as a table ({error})") from error


def _series(name: str, column: Any) -> pl.Series:
    """A column, null for missing values; values other than numbers, times or lists become text."""
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    if hasattr(column, "isna"):  # A pandas column has NaN, NA and NaT.
        values = [None if gone else one for one, gone in zip(values, column.isna().tolist(), strict=True)]
    else:
        values = [None if isinstance(one, float) and math.isnan(one) else one for one in values]
    try:
        series = pl.Series(name, values, strict=False)
        if series.dtype not in (pl.Object, pl.Struct([])):  # Files cannot hold these types.
            return series.arr.to_list() if isinstance(series.dtype, pl.Array) else series
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    return pl.Series(name, [None if one is None else str(one) for one in values], pl.String)


def _in_seconds(table: pl.DataFrame) -> pl.DataFrame:
    """Times and durations as columns of seconds; times count from the first."""
    for name in _SECONDS:
        kind = table.schema.get(name)
        if isinstance(kind, pl.Datetime):
            table = table.with_columns(pl.col(name) - pl.col(name).min())
        if isinstance(kind, pl.Datetime | pl.Duration):
            table = table.with_columns(pl.col(name).dt.total_nanoseconds() / 1e9)
    return table
