"""Measured rows of a user's files, next to what a run with default settings predicts.

    python -m experiments.validation.given stages.json offline.csv
    python -m experiments.validation.given stages/ timing.calibrated=false

A JSON file has stages in open loop (`experiments/validation/given/stage_file.py` describes it), a CSV file runs whose
requests all come at once (`experiments/validation/given/offline_file.py`). In a directory all such files are read. A
server has the settings that a row states, and the defaults of run.py otherwise; settings on the command line come last.
TPOT is (E2E - TTFT) / (output tokens - 1). A stage is replayed several times, with gaps drawn anew and some requests
late (`server.jitter=1`); the table has the median of each figure, `out` also the least and the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.validation.fidelity.online import GROUPS, Stage
from experiments.validation.given.offline_file import Offline, read_offline_file
from experiments.validation.given.replay import Judged, judge_offline, judge_stage
from experiments.validation.given.report import csv_lines, offline_table, stage_table
from experiments.validation.given.stage_file import read_stage_file
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.terminal import progress_line, results_console
from framework.errors import InputError

_DRAWS = 5
_KEYS = {
    "draws": f"replays of a stage; {_DRAWS} by default",
    "models": "which model of conf/model a file means, as THEIRS:OURS, joined by commas, where names are not alike",
    "out": "a CSV that all figures are written to, too",
}


@command(__doc__, operands="FILE ...", keys=_KEYS, settings=(*GROUPS, "server"))
def main(arguments: Arguments) -> None:
    """Replay the rows of the files and print both figures. Raises InputError for wrong files and rows."""
    out = arguments.path("out")
    if out is not None:
        require_writable(out.absolute().parent)
    stages, rows = read(arguments.operands, _pairs(arguments.several("models")))
    judged = judge(stages, rows, arguments.settings, arguments.whole("draws", _DRAWS))
    if stages:
        results_console().print(stage_table(judged[: len(stages)]))
    if rows:
        results_console().print(offline_table([one for (one,) in judged[len(stages) :]]))
    if out is not None:
        write_whole(out, "".join(csv_lines([figure for one in judged for figure in one])).encode())


def read(operands: Sequence[str], models: Mapping[str, str]) -> tuple[list[Stage], list[Offline]]:
    """The rows of the files that the operands name, or that lie in the directories that they name."""
    stages: list[Stage] = []
    rows: list[Offline] = []
    for path in (path for word in operands for path in _files(Path(word).expanduser())):
        if path.suffix == ".json":
            stages += read_stage_file(path, models)
        elif path.suffix == ".csv":
            rows += read_offline_file(path)
        else:
            raise InputError(f"{path}: neither .json, for stages, nor .csv, for offline rows")
    if not stages and not rows:
        raise InputError(f"{', '.join(operands)}: no rows")
    return stages, rows


def judge(
    stages: Sequence[Stage], rows: Sequence[Offline], overrides: Sequence[str], draws: int = _DRAWS
) -> list[list[Judged]]:
    """The figures of each stage over `draws` draws, then of each offline row."""
    found: list[list[Judged]] = []
    with progress_line("replaying", "rows") as progress:
        for stage in stages:
            found.append(judge_stage(stage, overrides, draws))
            if progress is not None:
                progress(len(found), len(stages) + len(rows))
        for row in rows:
            found.append([judge_offline(row, overrides)])
            if progress is not None:
                progress(len(found), len(stages) + len(rows))
    return found


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.suffix in (".json", ".csv"))
    return [path]


def _pairs(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        if not all(word.partition(":")):
            raise InputError(f"models={word}: written THEIRS:OURS")
    return {word.partition(":")[0]: word.partition(":")[2] for word in words}
