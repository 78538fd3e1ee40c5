"""How fast is `simulate`? Rows side by side with Dynamo's mocker and a bare compiled loop: `make bench`.

    python -m experiments.bench [--rows NAME,...] [--repeats N] [--markdown FILE] [--json FILE] [--peer PYTHON]

Each row runs in a process of its own, ours and its rivals in turn, so that a ratio compares runs of the same minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from experiments.bench import peer as bench_peer
from experiments.bench.measure import Measured
from experiments.bench.rows import ROWS, TIMING, TOKEN_BUDGET, Row
from framework.cli.launch import report_error
from framework.cli.terminal import results_console
from framework.errors import InputError

_ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
_TABLE_COLUMNS = 150  # narrower terminals fold the table
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


# --- measuring ------------------------------------------------------------------------------------------------------


def measure_row(row: Row, repeats: int, peer_python: Path, first_runs: dict[str, float], status: Status) -> Entry:
    """Measure one row in fresh processes; `first_runs` remembers what compiling for a policy takes."""

    def show(doing: str) -> None:
        status.update(f"{row.title}: {doing}")

    try:
        show("compiling, if need be")  # it takes memory, which is not the row's
        _ask(["first", row.name])
        figures = _ask(["row", row.name, str(repeats), str(peer_python)], show)
        policy = type(row.policy()).__name__
        if policy not in first_runs:
            show("first-run compilation")
            first_runs[policy] = _compile_s(row)
        return Entry(row, Measured(**figures), first_runs[policy])
    except subprocess.CalledProcessError as error:
        return Entry(row, None, None, _last_line(error.stderr))


def _compile_s(row: Row) -> float:
    """CPU seconds by which a first run is slower with nothing compiled than with everything in the cache."""
    with tempfile.TemporaryDirectory() as cache:
        cold_s, warm_s = (float(_ask(["first", row.name], cache=cache)) for _ in range(2))
    return cold_s - warm_s


def _ask(arguments: list[str], show: Callable[[str], object] = str, cache: str | None = None) -> Any:
    """What a fresh process of experiments.bench.measure finds. Raises CalledProcessError with its stderr."""
    environment = dict(os.environ) if cache is None else {**os.environ, "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-m", "experiments.bench.measure", *arguments]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        done = None
        for line in process.stdout:
            message = json.loads(line)
            show(message.get("doing", ""))
            done = message.get("done", done)
        if process.wait() != 0:
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())
    return done


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the process ended without a word"


# --- the table --------------------------------------------------------------------------------------------------------


def cells(entry: Entry) -> list[str]:
    """One line of the table: medians of the repetitions, and the median of the ratios within each of them."""
    measured = entry.measured
    title = entry.row.title + (" (twin)" if measured is not None and measured.trace_source == "twin" else "")
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
    """What a reader must know beside the table."""
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
    for entry in entries:
        for note in _notes_of(entry, peer_version is not None):
            yield f"{entry.row.title}: {note}."


def _notes_of(entry: Entry, has_peer: bool) -> Iterator[str]:
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


def _machine() -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{os.cpu_count()} × {name}, Python {platform.python_version()}"


def as_table(entries: Sequence[Entry]) -> Table:
    """The table for a terminal."""
    table = Table(title="simulate() beside its rivals", title_justify="left")
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


# --- the command line -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        rows = _chosen(options.rows)
        if options.repeats < 1:
            raise InputError(f"--repeats is {options.repeats}, must be at least 1")
        for file in filter(None, (options.markdown, options.json)):
            if not file.parent.is_dir():
                raise InputError(f"{file}: its folder does not exist")
    except InputError as error:
        report_error(str(error))
        return 2
    peer_version = bench_peer.version(options.peer)
    first_runs: dict[str, float] = {}
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        entries = []
        for row in rows:
            entries.append(measure_row(row, options.repeats, options.peer, first_runs, status))
            progress.print(f"{row.title}: {escape(entries[-1].failure) or 'done'}", style="dim", highlight=False)
    remarks = list(notes(entries, peer_version))
    console = results_console()
    console.print(as_table(entries), width=max(console.width, _TABLE_COLUMNS) if not console.is_terminal else None)
    for remark in remarks:
        console.print(f"- {escape(remark)}", highlight=False)
    if options.markdown is not None:
        _write(options.markdown, as_markdown(entries, remarks))
    if options.json is not None:
        _write(options.json, as_json(entries, peer_version))
    return 1 if any(entry.failure for entry in entries) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help=f"some of {', '.join(ROWS)}, separated by commas")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions of each row (default 7)")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    default = _ROOT / ".venv" / "peer" / "bin" / "python"
    parser.add_argument("--peer", type=Path, default=default, help="a Python that has Dynamo's mocker")
    return parser


def _chosen(names: str) -> list[Row]:
    chosen = [name.strip() for name in names.split(",") if name.strip()] or list(ROWS)
    unknown = [name for name in chosen if name not in ROWS]
    if unknown:
        raise InputError(f"--rows: there is no {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    return [ROWS[name] for name in chosen]


def _write(file: Path, text: str) -> None:
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    unfinished.write_text(text)
    os.replace(unfinished, file)
