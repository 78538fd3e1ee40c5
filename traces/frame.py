"""A trace: a polars frame of requests with a name and a provenance, and its conversion into a Workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.cli.safe_text import printable
from framework.cli.terminal import warn_once
from framework.errors import InputError
from framework.workload import Workload
from traces.block_ids import flat_ids
from traces.calls import links_of, require_known

REQUIRED: Mapping[str, pl.DataType] = MappingProxyType(
    {"arrival_s": pl.Float64(), "input_tokens": pl.Int64(), "output_tokens": pl.Int64()}
)
OPTIONAL: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "hash_ids": pl.List(pl.Int64()),  # one id per block of hash_block_tokens prompt tokens, the last may be partial
        "session_id": pl.Int64(),  # null: a request of its own
        "turn": pl.Int64(),  # place within the session, growing with the rows
        "wait_for": pl.List(pl.Int64()),  # turns of the session that it waits for; null: the turn before it
        "think_s": pl.Float64(),  # seconds from the end of the last of these to its arrival
        "trigger": pl.String(),  # what these seconds are, one of framework.workload.programs.TRIGGERS
        "slo_class": pl.String(),
        "priority": pl.Int64(),
        "tenant": pl.String(),  # its sender
    }
)
SMALL_IDS = pl.List(pl.Int32())  # also allowed for hash_ids if all fit: half the memory
DRAWN = "drawn"  # the unit of arrivals drawn from a distribution
SOURCES = ("real", "twin", "synthetic")


@dataclass(frozen=True)
class Clock:
    """The form of arrivals in a file: `unit` is s, ms, us or ns, `date` for dates and times, or `drawn` if a
    distribution gave them because the file has none. `starts_at_s` is the first of them, in seconds on the file's own
    clock.
    """

    unit: str = ""  # "": not from a file
    starts_at_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival, one row each, with the columns of REQUIRED and any of OPTIONAL.

    `arrival_s` starts at 0 and does not decrease. `source` says whether the rows were recorded (`real`), sampled from a
    description fitted to a recording (`twin`), or drawn from distributions (`synthetic`); `sha256` is that of their
    file. `notes` are for readers of results, and `caveat` must appear next to results. `clock` says how the file gave
    times.
    """

    frame: pl.DataFrame
    name: str
    source: str
    sha256: str = ""
    hash_block_tokens: int = 0
    notes: tuple[str, ...] = ()
    caveat: str = ""
    clock: Clock = Clock()

    def __post_init__(self) -> None:
        """Refuse a frame that lacks a column, has one of another type, or an unknown source."""
        object.__setattr__(self, "name", printable(self.name))  # The name may come from a file.
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))
        if self.source not in SOURCES:
            raise InputError(f"trace {self.name}: source is {self.source!r}, must be one of {', '.join(SOURCES)}")
        schema = self.frame.schema
        for column, dtype in {**REQUIRED, **OPTIONAL}.items():
            if column in REQUIRED and column not in schema:
                raise InputError(f"trace {self.name}: no column {column}")
            if column in schema and schema[column] not in (dtype, SMALL_IDS if column == "hash_ids" else dtype):
                raise InputError(f"trace {self.name}: column {column} is {schema[column]}, must be {dtype}")
        if "hash_ids" in schema and self.hash_block_tokens < 1:
            raise InputError(f"trace {self.name}: hash_ids need hash_block_tokens, the tokens in one block")

    def __len__(self) -> int:
        return self.frame.height

    @property
    def arrival_s(self) -> NDArray[np.float64]:
        """Arrival times in seconds, shape (N,)."""
        return self.frame["arrival_s"].to_numpy()

    @property
    def has(self) -> frozenset[str]:
        """The optional columns that are present."""
        return frozenset(self.frame.columns) & OPTIONAL.keys()

    def with_frame(self, frame: pl.DataFrame, note: str | None = None) -> Trace:
        """The trace with other rows, and a note of the change."""
        return replace(self, frame=frame, notes=self.notes if note is None else (*self.notes, note))


def seconds(ticks: pl.Series, ticks_per_s: float) -> pl.Series:
    """Clock ticks as seconds, rounded once: polars divides by a number by multiplying by its rounded inverse."""
    return pl.Series("arrival_s", ticks.to_numpy() / ticks_per_s)


def from_rows(rows: pl.DataFrame, name: str, source: str, hash_block_tokens: int = 0, clock: Clock = Clock()) -> Trace:
    """A trace of valid rows in any order: sorted stably by arrival (with a note if that moved any), the first at 0 s.

    `clock.starts_at_s` is when 0 s of the rows was.
    """
    notes: tuple[str, ...] = ()
    late = int((rows["arrival_s"].diff() < 0).sum())
    if late:
        rows = rows.sort("arrival_s", maintain_order=True)
        notes = (
            f"{late} of {rows.height} rows came before an earlier one; rows were sorted by arrival, ties in file order",
        )
    first_s = float(rows["arrival_s"][0]) if rows.height else 0.0
    clock = replace(clock, starts_at_s=clock.starts_at_s + first_s)
    rows = rows.with_columns(pl.col("arrival_s") - first_s)
    columns = [column for column in (*REQUIRED, *OPTIONAL) if column in rows.columns]
    blocks = hash_block_tokens if "hash_ids" in columns else 0
    require_known(rows, name)
    return Trace(rows.select(columns), name, source, hash_block_tokens=blocks, notes=notes, clock=clock)


def with_notes(trace: Trace, notes: Sequence[str]) -> Trace:
    """The trace with further notes, also on stderr."""
    for note in notes:
        warn_once(f"note: trace {trace.name}: {note}")
    return replace(trace, notes=(*trace.notes, *notes))


def to_workload(trace: Trace) -> Workload:
    """The trace as contiguous arrays. A later turn points at the row of the previous turn.

    Hash ids are renamed to 0, 1, 2, ... if they are negative or spread far wider than their number. If no other object
    holds the trace, its lists of ids are freed as they are copied.
    """
    frame = trace.frame
    if frame.is_empty():
        raise InputError(f"trace {trace.name}: no request is left; widen trace.window_s or the length filters")
    lists = frame["hash_ids"].get_chunks() if "hash_ids" in trace.has else None
    frame = pl.DataFrame([column for column in frame.iter_columns() if column.name != "hash_ids"])
    trace = trace.with_frame(frame)
    links = links_of(frame, trace.name)
    hash_ids, hash_spans = (np.zeros(0, np.int32), None) if lists is None else flat_ids(lists, links.previous)
    return Workload(
        arrival_s=frame["arrival_s"].to_numpy(),
        input_tokens=frame["input_tokens"].to_numpy(),
        output_tokens=frame["output_tokens"].to_numpy(),
        name=trace.name,
        source=trace.source,
        sha256=trace.sha256,
        hash_ids=hash_ids,
        hash_spans=hash_spans,
        hash_block_tokens=trace.hash_block_tokens,
        previous=links.previous,
        joins=links.joins,
        think_s=frame["think_s"].fill_null(0.0).to_numpy() if links.previous is not None else None,
        session_id=links.session_id,
        turn=frame["turn"].fill_null(0).to_numpy() if "turn" in frame.columns else None,
        trigger=links.trigger,
        slo_class=_texts(frame, "slo_class"),
        priority=frame["priority"].fill_null(0).to_numpy() if "priority" in frame.columns else None,
        tenant=_texts(frame, "tenant"),
        notes=trace.notes,
        caveat=trace.caveat,
    )


def _texts(frame: pl.DataFrame, column: str) -> tuple[str, ...] | None:
    return tuple(frame[column].fill_null("default")) if column in frame.columns else None
