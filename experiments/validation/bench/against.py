"""A comparison with another checkout's speed: `python -m experiments.validation.bench against=COMMIT` runs both in
turn.

Each checkout has its own process, with the checkout as its working directory (`one_run.py`), and a new one after five
pairs, since the place of memory in a process is random. The two runs of a pair follow each other, so a ratio compares
runs of the same minute, and change places from pair to pair.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE

from rich.markup import escape
from rich.table import Table

from experiments.validation.bench.one_run import OneRun
from experiments.validation.bench.paired import Ratio, ratio
from experiments.validation.bench.rows import Row
from framework.cli.files import user_cache
from framework.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = Path(__file__).with_name("one_run.py")
HEADINGS = ("row", "pairs", "ms", "ms before", "ratio", "interval", "verdict")
BROKEN = "broken"
_PAIRS_OF_A_PROCESS = 5


@dataclass(frozen=True)
class Comparison:
    """A row in both checkouts, in pairs, or the line that says why it could not be compared."""

    row: Row
    ours: Sequence[OneRun] = ()
    theirs: Sequence[OneRun] = ()
    failure: str = ""

    @property
    def ours_s(self) -> list[float]:
        return [run.cpu_s for run in self.ours]

    @property
    def theirs_s(self) -> list[float]:
        return [run.cpu_s for run in self.theirs]

    @property
    def ratio(self) -> Ratio:
        """This checkout's CPU time divided by the other's."""
        return ratio(self.ours_s, self.theirs_s)

    @property
    def is_same_work(self) -> bool:
        """Whether both gave the same results, every time."""
        return len({(run.requests, run.steps, run.digest) for run in (*self.ours, *self.theirs)}) == 1

    def verdict(self, bar: float) -> str:
        """`broken` if the whole interval lies above `bar`; else on which side of 1 it lies, if on one."""
        if self.failure:
            return ""
        found = self.ratio
        if found.low > bar:
            return BROKEN
        return "slower" if found.low > 1 else "faster" if found.high < 1 else "no difference"


# --- the other checkout -----------------------------------------------------------------------------------------------


def checkout(against: str, root: Path = ROOT) -> Path:
    """A folder with the code to compare with: `against` names a folder, or a commit.

    The files of a commit are kept in the user's cache, since the place of compiled code is part of its key. Raises
    InputError if `against` names neither.
    """
    if Path(against).is_dir():
        return Path(against).resolve()
    named = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{against}^{{commit}}")
    if named is None:
        raise InputError(f"against={against}: neither a folder nor a commit of {root}")
    folder = user_cache() / "checkouts" / named.decode().strip()
    if not folder.exists():
        content = _git(root, "archive", "--format=tar", folder.name)
        assert content is not None, "a commit has files"
        _unpack(content, folder)
    return folder


def _git(root: Path, *arguments: str) -> bytes | None:
    finished = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    return finished.stdout if finished.returncode == 0 else None


def _unpack(content: bytes, folder: Path) -> None:
    """Unpack all files at once, or none: another process may do the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(unfinished, filter="data")
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


# --- measuring --------------------------------------------------------------------------------------------------------


def compare(row: Row, theirs: Path, pairs: int, show: Callable[[str], object]) -> Comparison:
    """Run the row in both checkouts, `pairs` times each."""
    sides: list[tuple[Path, list[OneRun]]] = [(ROOT, []), (theirs, [])]
    try:
        for place, _ in sides:
            show(f"{row.title}: compiling, if need be")
            _compile(place, row.name)
        for first in range(0, pairs, _PAIRS_OF_A_PROCESS):
            with _measuring(ROOT, row.name) as here, _measuring(theirs, row.name) as there:
                for pair in range(first, min(pairs, first + _PAIRS_OF_A_PROCESS)):
                    show(f"{row.title}: pair {pair + 1} of {pairs}")
                    asked = (here, sides[0][1]), (there, sides[1][1])
                    for measure, runs in asked if pair % 2 == 0 else asked[::-1]:
                        runs.append(measure())
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        return Comparison(row, failure=lines[-1] if lines else "the process ended without a word")
    return Comparison(row, sides[0][1], sides[1][1])


def _compile(place: Path, row: str) -> None:
    """Run a little of the row in a checkout. Raises CalledProcessError with its stderr."""
    subprocess.run(_command(row, "warm"), cwd=place, env=_environment(), capture_output=True, text=True, check=True)


@contextmanager
def _measuring(place: Path, row: str) -> Iterator[Callable[[], OneRun]]:
    """A process of a checkout, and the function that lets it measure once."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            _command(row), cwd=place, env=_environment(), stdin=PIPE, stdout=PIPE, stderr=errors, text=True
        ) as process,
    ):

        def measure() -> OneRun:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                print(file=process.stdin, flush=True)
            answer = process.stdout.readline()
            if not answer:
                errors.seek(0)
                raise subprocess.CalledProcessError(process.wait(), row, stderr=errors.read())
            return OneRun(**json.loads(answer))

        yield measure


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", str(_SCRIPT), *arguments]


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


# --- output
# -------------------------------------------------------------------------------------------------------------


def cells(one: Comparison, bar: float) -> list[str]:
    """One line of the table."""
    if one.failure:
        return [one.row.title, *[""] * (len(HEADINGS) - 1)]
    found = one.ratio
    return [
        one.row.title,
        str(len(one.ours)),
        f"{1e3 * statistics.median(one.ours_s):,.1f}",
        f"{1e3 * statistics.median(one.theirs_s):,.1f}",
        f"{found.median:.3f}",
        f"{found.low:.3f} to {found.high:.3f}",
        one.verdict(bar),
    ]


def as_table(compared: Sequence[Comparison], bar: float) -> Table:
    """The table for a terminal."""
    table = Table(title="simulate() here and before", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("row", "verdict") else "right")
    for one in compared:
        line = map(escape, cells(one, bar))
        table.add_row(*line, style="bold" if one.verdict(bar) == BROKEN else None)
    return table


def notes(compared: Sequence[Comparison], against: str, bar: float) -> Iterator[str]:
    """What a reader must know next to the table."""
    measured = [one for one in compared if not one.failure]
    coverages = sorted({f"{100 * one.ratio.coverage:.3g} %" for one in measured})
    yield (
        f"CPU time of simulate, here over {against}: the median of the ratios of pairs and its "
        f"{' or '.join(coverages) or '95 %'} interval (order statistics). {BROKEN}: all of it is above {bar:g}."
    )
    by_name = {one.row.name: one for one in measured}
    for one in compared:
        if one.failure:
            yield f"{one.row.title}: could not be compared ({one.failure})."
        elif not one.is_same_work:
            yield f"{one.row.title}: the results differ, so that the ratio compares different work."
        if one.row.name in by_name and one.row.compared_with in by_name:
            fewer = by_name[one.row.compared_with]
            here, before = (ratio(more, less) for more, less in _sides(one, fewer))
            yield (
                f"{one.row.title}: {here.median:.1f} times the CPU time of {fewer.row.instances[0]} instances here, "
                f"{before.median:.1f} times before; at most {one.row.most_times:g} is wanted."
            )


def _sides(more: Comparison, fewer: Comparison) -> Iterator[tuple[list[float], list[float]]]:
    yield more.ours_s, fewer.ours_s
    yield more.theirs_s, fewer.theirs_s


def as_json(compared: Sequence[Comparison], against: str, bar: float) -> str:
    """Every figure of every pair."""
    rows = [
        {
            "row": one.row.name,
            "failure": one.failure or None,
            "ours_s": one.ours_s,
            "theirs_s": one.theirs_s,
            **({} if one.failure else {**asdict(one.ratio), "same_work": one.is_same_work}),
            "verdict": one.verdict(bar) or None,
        }
        for one in compared
    ]
    return json.dumps({"against": against, "bar": bar, "rows": rows}, indent=2) + "\n"
