"""This project's own Parquet of a trace."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from framework.cli.files import write_whole
from framework.cli.reading import parquet_of, parsed_json
from framework.errors import InputError, shown
from traces.formats.columns import without
from traces.formats.hashed import floor_blocks, hash_checks
from traces.frame import OPTIONAL, REQUIRED, Clock, Trace, from_rows, with_notes
from traces.parsing.how import How
from traces.parsing.left_out import Count
from traces.parsing.rows import Table, length, number, read_bytes
from traces.settings import MAX_TOKENS, MOST_REQUESTS

METADATA_KEY = "trace"  # key of the project's Parquet: name, source, hash_block_tokens and notes as JSON
MOST_S = 1e10  # three centuries: clocks count from 1970


def read_parquet(path: Path, how: How) -> Trace:
    """This project's own Parquet: the columns of `traces.frame`, and further data in the file's metadata."""
    data = read_bytes(path)
    how.without_unit("the format has arrival_s")
    count = Count(path)
    try:
        frame = parquet_of(data, MOST_REQUESTS)
        about = _about(parsed_json(pl.read_parquet_metadata(data).get(METADATA_KEY, "{}")))
        columns = {column: dtype for column, dtype in {**REQUIRED, **OPTIONAL}.items() if column in frame.columns}
        if lost := [column for column in REQUIRED if column not in columns]:
            raise InputError(f"{path}: no column {', '.join(lost)}; the columns are {', '.join(frame.columns)}")
        if frame.is_empty():
            raise InputError(f"{path}: the trace file has no rows")
        block = how.block_tokens or about["hash_block_tokens"]
        checks = [*number("arrival_s", 0, MOST_S), *length("input_tokens"), *length("output_tokens")]
        if "hash_ids" in columns:
            checks += hash_checks(path, ("hash_ids", "input_tokens"), block, floor_blocks, frame)
        floats = frame.with_columns(pl.col(column).cast(pl.Float64, strict=False) for column in REQUIRED)
        table = Table(path, floats, lambda row: f"row {row + 1}")
        rows = table.sifted(checks, ("input_tokens", "output_tokens"), count)
        rows = rows.select(pl.col(column).cast(dtype) for column, dtype in columns.items())
    except (PolarsError, OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a usable Parquet file ({reason})") from None
    left = [column for column in frame.columns if column not in columns]
    left_out = count.notes(how)
    trace = from_rows(rows, about["name"] or path.stem, about["source"], block, Clock("s"))
    trace = with_notes(without(trace, left), left_out)
    return replace(trace, notes=(*about["notes"], *trace.notes))


def _about(value: Any) -> dict[str, Any]:
    """The metadata, checked. Raises ValueError for anything else."""
    plain = {"name": "", "source": "real", "hash_block_tokens": 0, "notes": []}
    if not isinstance(value, dict):
        raise ValueError("its metadata is no object")
    about: dict[str, Any] = plain | {name: value[name] for name in plain if name in value}
    for name, one in about.items():
        if type(one) is not type(plain[name]):
            raise ValueError(f"its metadata has {name} = {shown(one)}")
    if not 0 <= about["hash_block_tokens"] <= MAX_TOKENS or not all(isinstance(note, str) for note in about["notes"]):
        raise ValueError("its metadata has no usable hash_block_tokens or notes")
    return about


def write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace as this project's Parquet, to a temporary name first. Raises InputError if that fails."""
    about = {
        "name": trace.name,
        "source": trace.source,
        "hash_block_tokens": trace.hash_block_tokens,
        "notes": trace.notes,
    }
    content = io.BytesIO()
    trace.frame.write_parquet(content, metadata={METADATA_KEY: json.dumps(about)})
    write_whole(path, content.getvalue())
