"""The speed of `simulate`: rows side by side with Dynamo's mocker and a bare compiled loop (`make bench`).

    python -m experiments.validation.bench rows=azure-1 repeats=3 markdown=table.md
    python -m experiments.validation.bench against=HEAD~1 pairs=15 json=figures.json

Each row runs in its own process, ours and its rivals in turn, so a ratio compares runs of the same minute. With
against= the rival is another checkout of this project, a commit or a folder (`against.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from experiments.validation.bench import against as other
from experiments.validation.bench import peer as bench_peer
from experiments.validation.bench.measure import Measured
from experiments.validation.bench.report import Entry, as_json, as_markdown, as_table, notes
from experiments.validation.bench.rows import ROWS, Row
from framework.checks import require_at_least
from framework.cli.command import Arguments, command
from framework.cli.files import write_whole
from framework.cli.terminal import results_console
from framework.errors import InputError

_ROOT = Path(__file__).resolve().parents[3]
_TABLE_COLUMNS = 150  # narrower terminals fold the table


# --- measuring ------------------------------------------------------------------------------------------------------


def measure_row(row: Row, repeats: int, peer_python: Path, first_runs: dict[str, float], status: Status) -> Entry:
    """Measure one row in new processes; `first_runs` remembers the compile time of each policy."""

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
    """CPU seconds by which a first run is slower with an empty cache than with a full one."""
    with tempfile.TemporaryDirectory() as cache:
        cold_s, warm_s = (float(_ask(["first", row.name], cache=cache)) for _ in range(2))
    return cold_s - warm_s


def _ask(arguments: list[str], show: Callable[[str], object] = str, cache: str | None = None) -> Any:
    """The result of a new process of experiments.validation.bench.measure. Raises CalledProcessError with its
    stderr.
    """
    environment = dict(os.environ) if cache is None else {**os.environ, "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-m", "experiments.validation.bench.measure", *arguments]
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


_KEYS = {
    "rows": f"some of {', '.join(ROWS)}, joined by commas; all by default",
    "repeats": "repetitions of each row, 7 by default",
    "markdown": "a file that the table is written to, too",
    "json": "a file that all figures are written to, too",
    "against": "a commit or the folder of another checkout, to compare with instead",
    "pairs": "pairs of runs of a row, with against=; 15 by default",
    "bar": "ratio above which a row is broken, with against=; 1.03 by default",
    "peer": "a Python that has Dynamo's mocker, the one of `make bench` by default",
}


@dataclass(frozen=True)
class Options:
    """What to measure, and which files to write."""

    rows: list[Row]
    repeats: int
    markdown: Path | None
    json: Path | None
    against: str
    pairs: int
    bar: float
    peer: Path


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> int:
    """Run the benchmark; 1 if a row fails, or is broken."""
    options = read_options(arguments)
    if options.against:
        return _against(other.checkout(options.against), options)
    return _with_rivals(options)


def read_options(arguments: Arguments) -> Options:
    """The options of `arguments`. Raises InputError for invalid numbers and files."""
    options = Options(
        rows=_chosen(arguments.several("rows")),
        repeats=arguments.whole("repeats", 7),
        markdown=arguments.path("markdown"),
        json=arguments.path("json"),
        against=arguments.own.get("against", ""),
        pairs=arguments.whole("pairs", 15),
        bar=arguments.number("bar", 1.03),
        peer=arguments.path("peer") or _ROOT / ".venv" / "peer" / "bin" / "python",
    )
    require_at_least("bar", options.bar, 1)
    for file in filter(None, (options.markdown, options.json)):
        if not file.parent.is_dir():
            raise InputError(f"{file}: its folder does not exist")
    if options.against and options.markdown:
        raise InputError("markdown=: a comparison with against= is written with json= alone")
    return options


def _with_rivals(options: Options) -> int:
    peer_version = bench_peer.version(options.peer)
    first_runs: dict[str, float] = {}
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        entries = []
        for row in options.rows:
            entries.append(measure_row(row, options.repeats, options.peer, first_runs, status))
            progress.print(f"{row.title}: {escape(entries[-1].failure) or 'done'}", style="dim", highlight=False)
    remarks = list(notes(entries, peer_version))
    _show(as_table(entries), remarks)
    if options.markdown is not None:
        write_whole(options.markdown, as_markdown(entries, remarks).encode())
    if options.json is not None:
        write_whole(options.json, as_json(entries, peer_version).encode())
    return 1 if any(entry.failure for entry in entries) else 0


def _against(theirs: Path, options: Options) -> int:
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        compared = []
        for row in options.rows:
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


def _chosen(names: Sequence[str]) -> list[Row]:
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise InputError(f"rows=: there is no {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    return [ROWS[name] for name in names or ROWS]
