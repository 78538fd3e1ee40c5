"""The benchmark's table, for the terminal, Markdown and programs, and its notes."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from experiments.validation.bench.measure import Measured
from experiments.validation.bench.rows import TIMING, TOKEN_BUDGET, Row

_MIB = 1 << 20
HEADINGS = (
    *("row", "requests", "req / CPU-s", "steps / CPU-s", "Dynamo req / CPU-s", "× Dynamo"),
    *("bare loop req / CPU-s", "× bare", "parse s", "metrics s", "output s", "first run s", "MiB", "Dynamo MiB"),
)


@dataclass(frozen=True)
class Entry:
    """A row with its figures, or with the line that says why there are none."""

    row: Row
    measured: Measured | None
    compile_s: float | None
    failure: str = ""


def cells(entry: Entry) -> list[str]:
    """One line of the table: medians of the repetitions, and the median of the ratios within each of them."""
    measured = entry.measured
    title = entry.row.title + (" (fitted)" if measured is not None and measured.trace_source == "twin" else "")
    if measured is None:
        return [title, *[""] * (len(HEADINGS) - 1)]
    own_s = statistics.median(measured.simulate_s)
    return [
        title,
        f"{measured.requests:,}",
        _figure(measured.requests / own_s),
        _figure(measured.steps / own_s),
        *_rival(measured, measured.peer_s),
        *_rival(measured, measured.bare_s),
        f"{measured.parse_s:.2f}",
        f"{measured.metrics_s:.2f}",
        f"{measured.output_s:.2f}",
        "" if entry.compile_s is None else f"{entry.compile_s:.1f}",
        f"{measured.peak_bytes / _MIB:,.0f}",
        f"{measured.peer_peak_bytes / _MIB:,.0f}" if measured.peer_peak_bytes else "",
    ]


def _rival(measured: Measured, rival_s: Sequence[float]) -> tuple[str, str]:
    if not rival_s:
        return "", ""
    ratio = statistics.median(theirs / ours for theirs, ours in zip(rival_s, measured.simulate_s, strict=True))
    return _figure(measured.requests / statistics.median(rival_s)), f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def _figure(value: float) -> str:
    """Three significant digits: the fourth is noise."""
    return f"{float(f'{value:.3g}'):,.0f}"


def notes(entries: Sequence[Entry], peer_version: str | None) -> Iterator[str]:
    """What a reader must know next to the table."""
    coefficients = ", ".join(f"{name}={value:g}" for name, value in asdict(TIMING).items() if name != "source")
    yield (
        f"llama3_8b on H100, TP1, token budget {TOKEN_BUDGET:,}; timing=affine, {coefficients}, where nothing else is "
        "said. CPU seconds are user + system of a warm simulate(); medians, × the median ratio within a repetition. "
        f"{_machine()}."
    )
    yield (
        "Parse, metrics (with the check of all invariants) and output are CPU seconds of one run in a fresh process, "
        "MiB that process's peak resident memory; first run s is what compiling adds to the first run of all."
    )
    if peer_version is None:
        yield "Dynamo's mocker is not installed, so its columns are empty; make bench installs it if it can."
    else:
        yield (
            f"Dynamo: mocker {peer_version}, offline replay, round robin, same requests, batched tokens, sequences, KV "
            "blocks and block size; its own step times; reading the trace not counted."
        )
    yield (
        "The bare loop steps every iteration of the same schedule over plain arrays, without hooks, log, preemption or "
        "prefix cache, and ends every request when the engine does."
    )
    by_name = {entry.row.name: entry for entry in entries}
    for entry in entries:
        for note in (
            *_notes_of(entry, has_peer=peer_version is not None),
            *_growth(entry, by_name.get(entry.row.compared_with)),
        ):
            yield f"{entry.row.title}: {note}."


def _notes_of(entry: Entry, *, has_peer: bool) -> Iterator[str]:
    row, measured = entry.row, entry.measured
    if measured is None:
        yield f"could not be measured ({entry.failure})"
        return
    if measured.timing_source != TIMING.source:
        yield f"timing={measured.timing_source}, whose tables are read before the warm runs"
    if has_peer and row.no_peer:
        yield f"Dynamo is left out: {row.no_peer}"
    if row.no_bare:
        yield f"the bare loop is left out: {row.no_bare}"
    for note in measured.notes:
        if has_peer or not note.startswith("Dynamo"):
            yield note
    if measured.finished < measured.requests:
        yield f"{measured.finished:,} of {measured.requests:,} requests finished"
    rate = measured.requests / statistics.median(measured.simulate_s)
    if row.target_rps is not None and rate < row.target_rps:
        yield f"short of its target of {_figure(row.target_rps)} requests per CPU-s"


def _growth(entry: Entry, fewer: Entry | None) -> Iterator[str]:
    """How much more CPU time a row takes than the row that it is compared with."""
    if entry.measured is None or fewer is None or fewer.measured is None:
        return
    times = statistics.median(entry.measured.simulate_s) / statistics.median(fewer.measured.simulate_s)
    yield (
        f"{times:.1f} times the CPU time of {fewer.row.instances[0]} instances; "
        f"at most {entry.row.most_times:g} is wanted"
    )


def _machine() -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{os.cpu_count()} × {name}, Python {platform.python_version()}"


def as_table(entries: Sequence[Entry]) -> Table:
    """The table for a terminal."""
    table = Table(title="simulate() compared with its rivals", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "row" else "right", vertical="bottom")
    for entry in entries:
        table.add_row(*map(escape, cells(entry)))
    return table


def as_markdown(entries: Sequence[Entry], remarks: Sequence[str]) -> str:
    """The table and its notes for a README."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * (len(HEADINGS) - 1)]
    lines += ["| " + " | ".join(cells(entry)) + " |" for entry in entries]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in remarks), ""])


def as_json(entries: Sequence[Entry], peer_version: str | None) -> str:
    """Every figure of every repetition."""
    rows = [
        {
            "row": entry.row.name,
            "title": entry.row.title,
            "first_run_compilation_s": entry.compile_s,
            "failure": entry.failure or None,
            **(asdict(entry.measured) if entry.measured is not None else {}),
        }
        for entry in entries
    ]
    top: Mapping[str, Any] = {
        "machine": _machine(),
        "timing": asdict(TIMING),
        "peer_version": peer_version,
        "rows": rows,
    }
    return json.dumps(top, indent=2) + "\n"
