"""How fast is `simulate`? Rows side by side with Dynamo's mocker and a bare compiled loop: `make bench`.

    python -m experiments.bench [--rows NAME,...] [--repeats N] [--markdown FILE] [--json FILE] [--peer PYTHON]
    python -m experiments.bench --against COMMIT|DIR [--pairs N] [--bar X] [--rows NAME,...] [--json FILE]

Each row runs in a process of its own, ours and its rivals in turn, so that a ratio compares runs of the same minute.
With --against the rival is another checkout of this project, a commit or a folder (`experiments.bench.against`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from experiments.bench import against as other
from experiments.bench import peer as bench_peer
from experiments.bench.measure import Measured
from experiments.bench.report import Entry, as_json, as_markdown, as_table, notes
from experiments.bench.rows import ROWS, Row
from framework.cli.files import write_whole
from framework.cli.launch import report_error
from framework.cli.terminal import results_console
from framework.errors import InputError

_ROOT = Path(__file__).resolve().parents[2]
_TABLE_COLUMNS = 150  # narrower terminals fold the table
_PAIRS = 15
_BAR = 1.03


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


# --- the command line -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        rows = _chosen(options.rows)
        _check(options)
        theirs = other.checkout(options.against) if options.against else None
    except InputError as error:
        report_error(str(error))
        return 2
    return _beside_rivals(rows, options) if theirs is None else _against(rows, theirs, options)


def _check(options: argparse.Namespace) -> None:
    """Raise InputError for numbers and files that cannot be."""
    for name, least in (("repeats", 1), ("pairs", 1), ("bar", 1.0)):
        if not getattr(options, name) >= least:
            raise InputError(f"--{name} is {getattr(options, name)}, must be at least {least}")
    for file in filter(None, (options.markdown, options.json)):
        if not file.parent.is_dir():
            raise InputError(f"{file}: its folder does not exist")
    if options.against and options.markdown:
        raise InputError("--markdown: a comparison with --against is written with --json alone")


def _beside_rivals(rows: Sequence[Row], options: argparse.Namespace) -> int:
    peer_version = bench_peer.version(options.peer)
    first_runs: dict[str, float] = {}
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        entries = []
        for row in rows:
            entries.append(measure_row(row, options.repeats, options.peer, first_runs, status))
            progress.print(f"{row.title}: {escape(entries[-1].failure) or 'done'}", style="dim", highlight=False)
    remarks = list(notes(entries, peer_version))
    _show(as_table(entries), remarks)
    if options.markdown is not None:
        write_whole(options.markdown, as_markdown(entries, remarks).encode())
    if options.json is not None:
        write_whole(options.json, as_json(entries, peer_version).encode())
    return 1 if any(entry.failure for entry in entries) else 0


def _against(rows: Sequence[Row], theirs: Path, options: argparse.Namespace) -> int:
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        compared = []
        for row in rows:
            compared.append(other.compare(row, theirs, options.pairs, status.update))
            said = escape(compared[-1].failure) or compared[-1].verdict(options.bar)
            progress.print(f"{row.title}: {said}", style="dim", highlight=False)
    _show(other.as_table(compared, options.bar), list(other.notes(compared, options.against, options.bar)))
    if options.json is not None:
        write_whole(options.json, other.as_json(compared, options.against, options.bar).encode())
    return 1 if any(one.failure or one.verdict(options.bar) == other.BROKEN for one in compared) else 0


def _show(table: Table, remarks: Sequence[str]) -> None:
    console = results_console()
    console.print(table, width=max(console.width, _TABLE_COLUMNS) if not console.is_terminal else None)
    for remark in remarks:
        console.print(f"- {escape(remark)}", highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help=f"some of {', '.join(ROWS)}, separated by commas")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions of each row (default 7)")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--against", metavar="COMMIT|DIR", help="compare with another checkout instead")
    parser.add_argument("--pairs", type=int, default=_PAIRS, help=f"pairs of runs of a row (default {_PAIRS})")
    parser.add_argument("--bar", type=float, default=_BAR, help=f"ratio above which a row is broken (default {_BAR})")
    default = _ROOT / ".venv" / "peer" / "bin" / "python"
    parser.add_argument("--peer", type=Path, default=default, help="a Python that has Dynamo's mocker")
    return parser


def _chosen(names: str) -> list[Row]:
    chosen = [name.strip() for name in names.split(",") if name.strip()] or list(ROWS)
    unknown = [name for name in chosen if name not in ROWS]
    if unknown:
        raise InputError(f"--rows: there is no {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    return [ROWS[name] for name in chosen]
