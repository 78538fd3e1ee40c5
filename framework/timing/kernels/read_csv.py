"""Kernel tables from a user's CSV, one file for all operations.

`python -m framework.timing.microbench` writes such a file. Its columns:

- `op`: an operation of framework.timing.kernels.table.OPERATIONS, such as gemm or decode_attention;
- the key columns of the operations in it, named as there (empty where an operation has no such key; `window` and
  `prefix` may be missing: 0);
- the time of one call, as exactly one of `latency_us`, `latency_ms` and `latency_s`;
- optional: `longest`, in rows of decode_attention with sequences of unequal length (`context` is then their mean): such
  rows go to the table uneven_decode;
- optional: `spread_us`, `spread_ms` or `spread_s`, the interquartile range of repeats in the unit of the time;
  `kernel`, the kernel's name, of which the fastest counts where several were measured;
- optional, the same in every row: `gpu`, `backend`, `version`, `licence`.

For example `op,dtype,m,n,k,latency_us` and `gemm,bf16,16,4096,4096,14.8`. Rows are numbered as in an editor: the header
is row 1. Give at least two values of m, tokens or batch, so that there is something to interpolate.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from framework.cli.reading import read_file
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.timing.kernels.checks import checked, require_consistent, require_even, require_plausible, require_range
from framework.timing.kernels.table import OPERATIONS, Kernels, Provenance, fastest

_UNITS_S = {"latency_us": 1e-6, "latency_ms": 1e-3, "latency_s": 1.0}
_MOST_COLUMNS = 1_000
_DEFAULTS = {"window": "0", "prefix": "0"}


def load_csv(path: Path, gpu: Gpu, backend: str | None = None) -> Kernels:
    """The kernel tables of a CSV as the module describes it.

    `gpu` determines what is possible: times that it cannot reach, or that are far too slow, are refused as mistakes.
    `backend` is what the file must state, if it states one; None accepts any. Raises InputError, naming file,
    operation, row and the mistake.
    """
    rows = read_text(path)
    where = str(path)
    if "op" not in rows.columns:
        raise InputError(f"{where}: no column op; needed are op, its key columns and one of {', '.join(_UNITS_S)}")
    rows = rows.with_columns(pl.col("op").str.strip_chars())
    unknown = rows.filter(~pl.col("op").is_in(list(OPERATIONS)).fill_null(False))
    if unknown.height:
        first = unknown.row(0, named=True)
        found = "op is empty" if first["op"] is None else f"op = {first['op']!r}"
        raise InputError(f"{where}, row {first['row']}: {found}; choose one of {', '.join(OPERATIONS)}")
    if "longest" in rows.columns:
        uneven = (pl.col("op") == "decode_attention") & (pl.col("longest") != pl.col("context"))
        rows = rows.with_columns(op=pl.when(uneven).then(pl.lit("uneven_decode")).otherwise("op"))
    named = {
        "gpu": _stated(rows, where, "gpu", gpu.name),
        "backend": _stated(rows, where, "backend", backend),
        "version": _stated(rows, where, "version"),
        "licence": _stated(rows, where, "licence"),
    }
    tables = {
        operation: _table(operation, rows.filter(pl.col("op") == operation), where, gpu)
        for operation in OPERATIONS
        if operation in set(rows["op"])
    }
    versions = dict.fromkeys(tables, named["version"])
    return Kernels(Provenance(**named, source=path.name, versions=versions), tables)


def _table(operation: str, rows: pl.DataFrame, where: str, gpu: Gpu) -> pl.DataFrame:
    rows = _with_defaults(operation, rows)
    units = [name for name in _UNITS_S if name in rows.columns]
    missing = [name for name in OPERATIONS[operation] if name not in rows.columns]
    if missing or len(units) != 1:
        wrong = f"no column {missing[0]}" if missing else f"{len(units) or 'no'} columns with a time"
        raise InputError(
            f"{where}, {operation}, row {rows['row'][0]}: {wrong}; it needs {', '.join(OPERATIONS[operation])} and"
            f" one of {', '.join(_UNITS_S)}"
        )
    (unit,) = units
    typed = checked(operation, rows, where, latency=unit, unit_s=_UNITS_S[unit])
    require_consistent(operation, typed, where)
    require_plausible(operation, typed, where, gpu)
    require_even(operation, typed, where, gpu)
    require_range(operation, typed, where)
    columns = [*OPERATIONS[operation], "kernel", "latency_s"]
    spread = unit.replace("latency", "spread")
    if spread in typed.columns:
        typed = typed.with_columns(spread_s=pl.col(spread).cast(pl.Float64, strict=False) * _UNITS_S[unit])
        columns.append("spread_s")
    return fastest(operation, typed.select(columns))


def _with_defaults(operation: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `kernel`, and with the optional keys."""
    given = [name for name in ("kernel", *_DEFAULTS) if name in rows.columns]
    absent = {name: pl.lit(None, pl.String) for name in ("kernel", *_DEFAULTS) if name not in given}
    return rows.with_columns(**absent).with_columns(
        pl.col("kernel").fill_null(""), *(pl.col(name).fill_null(value) for name, value in _DEFAULTS.items())
    )


def _stated(rows: pl.DataFrame, where: str, name: str, expected: str | None = None) -> str:
    """The value of the column in all rows, or else `expected`. Raises InputError if the column states another value."""
    values = rows[name].drop_nulls().unique(maintain_order=True).to_list() if name in rows.columns else []
    if expected is None and len(values) < 2:
        return str(values[0]) if values else "unstated"
    for value in values:
        if value != (values[0] if expected is None else expected):
            row = rows.filter(pl.col(name) == value)["row"][0]
            wanted = f"{expected} is asked for" if expected else f"the first row says {values[0]!r}"
            raise InputError(f"{where}, row {row}: {name} = {value!r}, but {wanted}; one file holds one {name}")
    return str(expected)


def read_text(path: Path) -> pl.DataFrame:
    """The rows of a CSV: all columns as strings without surrounding blanks, empty ones null, and `row`.

    `row` is the number of the row as in an editor: the header is row 1. A column `row` of the file is left out. Raises
    InputError for a file that cannot be read, is no CSV or has no rows.
    """
    data = read_file(path, "table of kernel times")
    try:
        rows = pl.read_csv(b"\xef\xbb\xbf" + data, infer_schema=False)  # the mark keeps polars from unpacking anything
        rows = rows.rename({name: name.strip() for name in rows.columns}).drop("row", strict=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0] if str(error) else "damaged"
        raise InputError(f"{path}: is no CSV with a header and rows ({reason})") from None
    if rows.width > _MOST_COLUMNS:
        raise InputError(f"{path}: has {rows.width:,} columns, a table of kernel times has at most {_MOST_COLUMNS}")
    if twice := [name for name in rows.columns if f"{name}_duplicated_0" in rows.schema]:
        raise InputError(f"{path}: column {twice[0]} stands twice in the header")
    stripped = pl.all().str.strip_chars()
    rows = rows.select(pl.when(stripped != "").then(stripped).name.keep()).with_row_index("row", offset=2)
    rows = rows.filter(~pl.all_horizontal(pl.exclude("row").is_null())).with_columns(pl.col("row").cast(pl.Int64))
    if rows.is_empty():
        raise InputError(f"{path}: has no rows")
    return rows
