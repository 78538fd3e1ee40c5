"""Readers of the trace formats in use, one function each, and the table that names them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from framework.cli.files import read_once, write_whole
from framework.cli.reading import parquet_of, parsed_json, require_regular
from framework.cli.terminal import warn_once
from framework.errors import InputError, shown
from traces.client_logs import read_aiperf, read_openai, read_vllm, recognised
from traces.columns import advice, column_names, without
from traces.doubts import doubted_chain, doubted_clock
from traces.frame import OPTIONAL, REQUIRED, Trace, from_rows, list_column, seconds
from traces.rows import MAX_TOKENS, Check, Table, length, number, read_bytes, read_csv, read_jsonl
from traces.settings import MOST_REQUESTS, check_whole

METADATA_KEY = "trace"  # of the project's Parquet: name, source, hash_block_tokens and notes as JSON
PARQUET_MAGIC = b"PAR1"
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_S = 1e10  # three centuries: clocks count from 1970
_YEARS = (1970, 2200)
VIDUR_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read_mooncake(path: Path, block_tokens: int = 512) -> Trace:
    """Mooncake JSONL (Qin et al., FAST'25): timestamp in ms, input_length, output_length and optional hash_ids."""
    rows, left = _hashed_jsonl(path, block_tokens, ticks_per_s=1000.0, least_ids=_ceil_blocks)
    doubts = (*doubted_clock(rows["arrival_s"]), *doubted_chain(rows))
    return _told(path, without(from_rows(rows, path.stem, "real", block_tokens), left), doubts)


def read_bailian(path: Path, block_tokens: int = 16) -> Trace:
    """Qwen-Bailian JSONL (Wang et al., ATC'25): as Mooncake, timestamp in s; chat turns replay at their times.

    Its ids name a block's content alone; here they are chained, so that an id stands for the prefix that it ends.
    """
    rows, left = _hashed_jsonl(path, block_tokens, ticks_per_s=1.0, least_ids=_floor_blocks)
    if "hash_ids" in rows.columns:
        rows = rows.with_columns(_chained(rows["hash_ids"]))
    return without(from_rows(rows, path.stem, "real", block_tokens), left)


def read_azure(path: Path, block_tokens: int = 0) -> Trace:
    """Azure LLM inference CSV (Patel et al., ISCA'24): UTC time of day to 100 ns, context and generated tokens."""
    stamp, inputs, outputs = AZURE_COLUMNS
    table = read_csv(path, numbers=(inputs, outputs), texts=(stamp,))
    text = pl.col(stamp).str.replace(r"(Z|[+]00:00)$", "").str.replace("T", " ", literal=True)
    time = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    in_reach = time.dt.year().is_between(*_YEARS)  # nanoseconds in 64 bits reach from 1677 to 2262
    exact = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    timed = table.frame.with_columns(arrival_ns=pl.when(in_reach).then(exact.dt.timestamp("ns")))
    wanted = f"must be YYYY-MM-DD hh:mm:ss.f in UTC, of the years {_YEARS[0]} to {_YEARS[1]}"
    bad_time: Check = (pl.col("arrival_ns").is_null(), f"{stamp} is {{{stamp}}}, {wanted}")
    replace(table, frame=timed).refuse([bad_time, *length(inputs), *length(outputs)])
    arrival_ns = timed["arrival_ns"] - timed["arrival_ns"].min()
    rows = timed.select(seconds(arrival_ns, 1e9), *_tokens(inputs, outputs))
    return without(from_rows(rows, path.stem, "real"), table.left)


def read_burstgpt(path: Path, block_tokens: int = 0) -> Trace:
    """BurstGPT CSV (Wang et al., KDD'25): Timestamp in s, request and response tokens; open loop."""
    return _plain_csv(path, BURSTGPT_COLUMNS)


def read_vidur(path: Path, block_tokens: int = 0) -> Trace:
    """Vidur CSV (Agrawal et al., MLSys'24): arrived_at in s, prefill and decode tokens."""
    return _plain_csv(path, VIDUR_COLUMNS)


def read_parquet(path: Path, block_tokens: int | None = None) -> Trace:
    """This project's own Parquet: the columns of `traces.frame`, and what goes with them in the file's metadata."""
    data = read_bytes(path)
    try:
        frame = parquet_of(data, MOST_REQUESTS)
        about = _about(parsed_json(pl.read_parquet_metadata(data).get(METADATA_KEY, "{}")))
        columns = {column: dtype for column, dtype in {**REQUIRED, **OPTIONAL}.items() if column in frame.columns}
        if lost := [column for column in REQUIRED if column not in columns]:
            raise InputError(f"{path}: no column {', '.join(lost)}; the columns are {', '.join(frame.columns)}")
        if frame.is_empty():
            raise InputError(f"{path}: the trace file has no rows")
        block = block_tokens or about["hash_block_tokens"]
        checks = [*number("arrival_s", 0, MOST_S), *length("input_tokens"), *length("output_tokens")]
        if "hash_ids" in columns:
            checks += _hash_checks(path, ("hash_ids", "input_tokens"), block, _floor_blocks)
        floats = frame.with_columns(pl.col(column).cast(pl.Float64) for column in REQUIRED)
        Table(path, floats, lambda row: row + 1, unit="row").refuse(checks)
        rows = frame.select(pl.col(column).cast(dtype) for column, dtype in columns.items())
    except (PolarsError, OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a usable Parquet file ({reason})") from None
    left = [column for column in frame.columns if column not in columns]
    trace = without(from_rows(rows, about["name"] or path.stem, about["source"], block), left)
    return replace(trace, notes=(*about["notes"], *trace.notes))


def _about(value: Any) -> dict[str, Any]:
    """What goes with the columns, checked. Raises ValueError for anything else."""
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


def read_servegen(path: Path, block_tokens: int = 0) -> Trace:
    """A folder of ServeGen clients (Xiang et al., 2025): requests drawn from a busy period of theirs."""
    from traces.servegen import busy_requests

    return busy_requests(path)


def write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace as this project's Parquet, to a temporary name first. Raises InputError if that cannot be done."""
    about = {
        "name": trace.name,
        "source": trace.source,
        "hash_block_tokens": trace.hash_block_tokens,
        "notes": trace.notes,
    }
    content = io.BytesIO()
    trace.frame.write_parquet(content, metadata={METADATA_KEY: json.dumps(about)})
    write_whole(path, content.getvalue())


@dataclass(frozen=True)
class Format:
    """A file format: its reader (path, tokens per hash block), and the default of the latter."""

    read: Callable[[Path, int], Trace]
    block_tokens: int = 0  # 0: none, or told by the file


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "mooncake": Format(read_mooncake, 512),
        "azure": Format(read_azure),
        "burstgpt": Format(read_burstgpt),
        "bailian": Format(read_bailian, 16),
        "vidur": Format(read_vidur),
        "servegen": Format(read_servegen),
        "parquet": Format(read_parquet),
        "vllm": Format(read_vllm),
        "openai": Format(read_openai),
        "aiperf": Format(read_aiperf),
    }
)


def read(path: Path, format_name: str | None = None, block_tokens: int | None = None) -> Trace:
    """Read a trace file in a named format, or in the one that its content shows; with the file's sha256.

    A process reads a file again only if it has changed. Raises InputError if there is no such file or format, or for
    the first bad row.
    """
    if str(path) in ("", "."):
        raise InputError("trace.path is empty; name a file")
    if not path.is_dir():
        require_regular(path, "trace file")
    if format_name is not None and format_name not in FORMATS:
        raise InputError(f"trace.format: {format_name!r} is not known; the formats are {', '.join(FORMATS)}")
    if block_tokens is not None:
        check_whole("trace.block_tokens", block_tokens)
    trace = _read(path, format_name, block_tokens)
    return trace.with_frame(trace.frame.clone())  # a frame can be altered in place, its columns cannot


@read_once(keep=8)
def _read(path: Path, format_name: str | None, block_tokens: int | None) -> Trace:
    name = sniff(path) if format_name is None else format_name
    if path.is_dir() != (name == "servegen"):
        raise InputError(f"{path}: {'a folder' if path.is_dir() else 'no folder'} is no trace in format {name}")
    known = FORMATS[name]
    try:
        trace = known.read(path, known.block_tokens if block_tokens is None else block_tokens)
    except InputError as error:
        other = None if format_name is None else guess(path)
        if other in (None, format_name):
            raise
        raise InputError(f"{error}; the file looks like trace.format={other}") from error
    if trace.sha256:
        return trace
    with path.open("rb") as content:
        return replace(trace, sha256=hashlib.file_digest(content, "sha256").hexdigest())


def sniff(path: Path) -> str:
    """The format of a file, as `guess` finds it. Raises InputError where it is in none that is known."""
    found = guess(path)
    if found is None:
        known = f"{path}: in no known format; set trace.format to one of {', '.join(FORMATS)}"
        raise InputError(known + advice(column_names(read_bytes(path))))
    return found


def guess(path: Path) -> str | None:
    """The format of a file by how it begins: Parquet's magic, the keys of a JSON object, or a CSV header."""
    if path.is_dir():
        return "servegen"
    data = read_bytes(path)
    if found := recognised(data):
        return found
    names = set(column_names(data))
    if data.startswith(PARQUET_MAGIC):
        return None if names and names.isdisjoint(REQUIRED) else "parquet"
    if names.issuperset(("timestamp", "input_length", "output_length")):
        return "bailian" if "chat_id" in names else "mooncake"
    headers = {"azure": AZURE_COLUMNS, "burstgpt": BURSTGPT_COLUMNS, "vidur": VIDUR_COLUMNS}
    return next((name for name, columns in headers.items() if names.issuperset(columns)), None)


def _hashed_jsonl(
    path: Path, block_tokens: int, ticks_per_s: float, least_ids: Callable[[str, int], pl.Expr]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The rows, and the keys that they are read without."""
    time, inputs, outputs, hashes = "timestamp", "input_length", "output_length", "hash_ids"
    numbers = {column: pl.Float64() for column in (time, inputs, outputs)}
    table = read_jsonl(path, {**numbers, hashes: pl.List(pl.Int64())}, required=tuple(numbers))
    checks = [*number(time, 0, MOST_S * ticks_per_s), *length(inputs), *length(outputs)]
    columns = _tokens(inputs, outputs)
    if hashes in table.frame.columns:
        checks += _hash_checks(path, (hashes, inputs), block_tokens, least_ids)
        columns.append(pl.col(hashes))
    table.refuse(checks)
    return table.frame.select(seconds(table.frame[time], ticks_per_s), *columns), table.left


def _plain_csv(path: Path, columns: tuple[str, str, str]) -> Trace:
    time, inputs, outputs = columns
    table = read_csv(path, numbers=columns)
    table.refuse([*number(time, 0, MOST_S), *length(inputs), *length(outputs)])
    rows = table.frame.select(pl.col(time).alias("arrival_s"), *_tokens(inputs, outputs))
    return without(from_rows(rows, path.stem, "real"), table.left)


def _told(path: Path, trace: Trace, doubts: Sequence[str]) -> Trace:
    """The trace with what is doubtful about it as notes, said on stderr too."""
    for doubt in doubts:
        warn_once(f"WARNING: {path}: {doubt}")
    return replace(trace, notes=(*trace.notes, *doubts))


def _tokens(inputs: str, outputs: str) -> list[pl.Expr]:
    names = ((inputs, "input_tokens"), (outputs, "output_tokens"))
    return [pl.col(column).cast(pl.Int64).alias(name) for column, name in names]


def _ceil_blocks(inputs: str, block_tokens: int) -> pl.Expr:
    return (pl.col(inputs) / block_tokens).ceil()


def _floor_blocks(inputs: str, block_tokens: int) -> pl.Expr:
    return (pl.col(inputs) / block_tokens).floor()


def _hash_checks(
    path: Path, columns: tuple[str, str], block_tokens: int, least_ids: Callable[[str, int], pl.Expr]
) -> list[Check]:
    """One id per block of the prompt; whether a partial last block has one too is for `least_ids` to say."""
    hashes, inputs = columns
    if block_tokens < 1:
        raise InputError(f"{path}: {hashes} without the tokens in a block; set trace.block_tokens")
    held = pl.col(hashes).list.len().cast(pl.Int64)
    reason = (
        f"hash_ids do not fit the length: {{{inputs}:g}} tokens in blocks of {block_tokens} need"
        f" ceil({{{inputs}:g}} / {block_tokens}) ids (another block size? set trace.block_tokens)"
    )
    return [
        (pl.col(hashes).is_null(), f"{hashes} is missing, though other rows have it"),
        (pl.col(hashes).list.eval(pl.element().is_null()).list.any(), f"{hashes} holds a null"),
        ((held < least_ids(inputs, block_tokens)) | (held > _ceil_blocks(inputs, block_tokens)), reason),
    ]


def _chained(lists: pl.Series) -> pl.Series:
    """Ids of block contents as ids of prefixes: each is hashed with the one before it, then numbered from 0.

    The hash has 64 bits (mixing function of Steele et al., OOPSLA 2014): n prefixes collide with odds of n^2 / 2^65.
    """
    lengths = lists.list.len().to_numpy().astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    flat = lists.explode(empty_as_null=False, keep_nulls=False).to_numpy().astype(np.uint64)
    rows = np.argsort(-lengths, kind="stable")  # longest first: those that have a block j lead
    chain = np.zeros(len(rows), np.uint64)
    for block in range(int(lengths.max(initial=0))):
        alive = int(np.searchsorted(-lengths[rows], -block, side="left"))
        at = offsets[rows[:alive]] + block
        mixed = (chain[:alive] ^ flat[at]) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        chain[:alive] = flat[at] = mixed ^ (mixed >> np.uint64(31))
    names = np.unique(flat, return_inverse=True)[1].reshape(-1).astype(np.int64)
    column = list_column(names, offsets)
    return column.alias(lists.name)
