"""Traces that clouds and papers published: Mooncake, Qwen-Bailian, Azure, BurstGPT, and Vidur's form of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from framework.cli.terminal import warn_once
from traces.formats.agents import has_sessions, read_mooncake_sessions
from traces.formats.columns import without
from traces.formats.hashed import ceil_blocks, chained, floor_blocks, hash_checks
from traces.formats.json_rows import read_jsonl
from traces.frame import Clock, Trace, from_rows, seconds, with_notes
from traces.parsing.csv_rows import csv_parts, read_csv
from traces.parsing.dates import EXAMPLE, since_1970_ns
from traces.parsing.doubts import doubted_chain
from traces.parsing.how import DATE, How
from traces.parsing.json_records import first_records
from traces.parsing.left_out import Count
from traces.parsing.rows import Check, length, read_bytes, ticks

BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VIDUR_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read_mooncake(path: Path, how: How) -> Trace:
    """Mooncake JSONL (Qin et al., FAST'25): timestamp in ms, input_length, output_length and optional hash_ids.

    `agents.read_mooncake_sessions` reads rows with a session_id or wait_for, those of AIPerf and Dynamo.
    """
    if any(has_sessions(record) for record in first_records(read_bytes(path))):
        return read_mooncake_sessions(path, how)
    trace, rows = _hashed_jsonl(path, how, "ms", ceil_blocks)
    doubts = doubted_chain(rows)
    for doubt in doubts:
        warn_once(f"WARNING: {path}: {doubt}")
    return replace(trace, notes=(*trace.notes, *doubts))


def read_bailian(path: Path, how: How) -> Trace:
    """Qwen-Bailian JSONL (Wang et al., ATC'25): as Mooncake, timestamp in s; chat turns replay at their times.

    Its ids name a block's content alone; here they are chained, so that an id stands for the prefix that it ends.
    """
    trace, _ = _hashed_jsonl(path, how, "s", floor_blocks, chained)
    return trace


def _hashed_jsonl(
    path: Path,
    how: How,
    unit: str,
    least_ids: Callable[[str, int], pl.Expr],
    named: Callable[[pl.Series], pl.Series] = lambda ids: ids,
) -> tuple[Trace, pl.DataFrame]:
    """The trace, and its rows as they stand in the file; `named` makes names of prefixes from the ids."""
    time, inputs, outputs, hashes = "timestamp", "input_length", "output_length", "hash_ids"
    unit, ticks_per_s = how.clock(unit)
    block_tokens = how.block_tokens or 0
    numbers = {column: pl.Float64() for column in (time, inputs, outputs)}
    table = read_jsonl(path, {**numbers, hashes: pl.List(pl.Int64())}, tuple(numbers), {time: ticks_per_s})
    if time in table.dates:
        how.without_unit("the file has dates and times")
        unit = DATE
    checks = [*ticks(table.frame[time], (unit, ticks_per_s)), *length(inputs), *length(outputs)]
    columns = _tokens(inputs, outputs)
    if hashes in table.frame.columns and table.frame[hashes].list.len().sum():
        checks += hash_checks(path, (hashes, inputs), block_tokens, least_ids, table.frame)
        columns.append(pl.col(hashes))
    count = Count(path)
    frame = table.sifted(checks, (inputs, outputs), count)
    notes = count.notes(how)
    rows = frame.select(seconds(frame[time], ticks_per_s), *columns)
    if hashes in rows.columns:
        rows = rows.with_columns(named(rows[hashes]))
    trace = from_rows(rows, path.stem, "real", block_tokens, Clock(unit))
    return with_notes(without(trace, table.left), notes), rows


def read_azure(path: Path, how: How) -> Trace:
    """Azure LLM inference CSV (Patel et al., ISCA'24): date and time to 100 ns in UTC, context and generated tokens.

    The files of 2024 (Stojkovic et al., HPCA'25), a week long, have the same columns. A file is read part by part. If
    its rows are in order of time, only the part for `how.window_s` is read.
    """
    how.without_unit("the format has dates and times")
    count = Count(path)
    stamp, inputs, outputs = AZURE_COLUMNS
    kept: list[pl.DataFrame] = []
    left: tuple[str, ...] = ()
    start_ns = None
    for part in csv_parts(path):
        table = read_csv(path, numbers=(inputs, outputs), texts=(stamp,), part=part)
        left = table.left
        timed = table.frame.with_columns(since_1970_ns(table.frame[stamp]).alias("arrival_ns"))
        bad_time: Check = (
            pl.col("arrival_ns").is_null(),
            f"{stamp} is {{{stamp}}}, must be a date and time as {EXAMPLE}",
        )
        checks = [bad_time, *length(inputs), *length(outputs)]
        frame = replace(table, frame=timed).sifted(checks, (inputs, outputs), count)
        frame = frame.select("arrival_ns", *_tokens(inputs, outputs))
        if not frame.height:
            continue
        first_ns = int(frame["arrival_ns"].min())  # type: ignore[arg-type]
        start_ns = first_ns if start_ns is None else start_ns
        if how.window_s is None or first_ns < start_ns:  # The rows are not in order, so all of them are needed.
            how = replace(how, window_s=None)
        elif first_ns >= start_ns + 1e9 * how.window_s[1]:
            break
        elif kept and int(frame["arrival_ns"].max()) < start_ns + 1e9 * how.window_s[0]:  # type: ignore[arg-type]
            continue  # `kept` has the first part, which has the start
        kept.append(frame)
    notes = count.notes(how)
    rows = pl.concat(kept)
    start_ns = int(rows["arrival_ns"].min())  # type: ignore[arg-type]
    rows = rows.select(seconds(rows["arrival_ns"] - start_ns, 1e9), "input_tokens", "output_tokens")
    trace = from_rows(rows, path.stem, "real", clock=Clock(DATE, start_ns / 1e9))
    return with_notes(without(trace, left), notes)


def read_burstgpt(path: Path, how: How) -> Trace:
    """BurstGPT CSV (Wang et al., KDD'25), both releases: Timestamp in s, request and response tokens; open loop.

    A failed request has 0 response tokens. Session ID and Elapsed time of the second release are left out.
    """
    return _plain_csv(path, BURSTGPT_COLUMNS, how)


def read_vidur(path: Path, how: How) -> Trace:
    """Vidur CSV (Agrawal et al., MLSys'24): arrived_at in s, prefill and decode tokens."""
    return _plain_csv(path, VIDUR_COLUMNS, how)


def _plain_csv(path: Path, columns: tuple[str, str, str], how: How) -> Trace:
    time, inputs, outputs = columns
    unit, ticks_per_s = how.clock("s")
    table = read_csv(path, numbers=columns)
    count = Count(path)
    checks = [*ticks(table.frame[time], (unit, ticks_per_s)), *length(inputs), *length(outputs)]
    frame = table.sifted(checks, (inputs, outputs), count)
    notes = count.notes(how)
    rows = frame.select(seconds(frame[time], ticks_per_s), *_tokens(inputs, outputs))
    return with_notes(without(from_rows(rows, path.stem, "real", clock=Clock(unit)), table.left), notes)


def _tokens(inputs: str, outputs: str) -> list[pl.Expr]:
    names = ((inputs, "input_tokens"), (outputs, "output_tokens"))
    return [pl.col(column).cast(pl.Int64).alias(name) for column, name in names]
