"""The available choices.

    servelab list policies      scheduling policies, each with its paper
    servelab list traces        recorded traces and distributions to draw from
    servelab list models        models, by name
    servelab list gpus          GPUs, by name
    servelab list predictors    predictors of output lengths
    servelab list options       groups of engine settings, such as engine.speculation=draft
    servelab list metrics       figures of summary.json that tables and plots can show

Names are those of `servelab policy=NAME trace=NAME model=NAME gpu=NAME predictor=NAME`.
"""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

from framework.cli.command import Arguments, command
from framework.cli.conf import CONF
from framework.errors import InputError

_GROUPS = {"policies": "policy", "traces": "trace", "models": "model", "gpus": "gpu", "predictors": "predictor"}
_WIDTH = 120
Row = tuple[str, str]


@command(__doc__, operands="[KIND]")
def main(arguments: Arguments) -> None:
    """Print one list, or the names of the lists. Raises InputError for an unknown list."""
    if not arguments.operands:
        print(main.help("servelab list"))
        return
    rows = list(_rows(arguments.operands[0]))
    width = max(len(name) for name, _ in rows)
    columns = max(min(shutil.get_terminal_size().columns, _WIDTH), width + 30)
    for name, text in rows:
        print(*textwrap.wrap(f"{name:{width}}  {text}", columns, subsequent_indent=" " * (width + 2)), sep="\n")


def _rows(kind: str) -> Iterator[Row]:
    if kind in _GROUPS:
        return _files(CONF / _GROUPS[kind], "")
    if kind == "options":
        folders = sorted(path for path in (CONF / "engine").iterdir() if path.is_dir())
        return (row for folder in folders for row in _files(folder, f"engine.{folder.name}="))
    if kind == "metrics":
        from framework.metrics.figures import METRICS

        return ((key, one.meaning) for key, one in METRICS.items())
    kinds = (*_GROUPS, "options", "metrics")
    near = difflib.get_close_matches(kind, kinds, 1)
    raise InputError(f"list {kind}: choose one of {', '.join(kinds)}" + (f"; did you mean {near[0]}?" if near else ""))


def _files(folder: Path, prefix: str) -> Iterator[Row]:
    """The files of a group by name, each with its first comment; `_x.yaml` is a part of others."""
    files = sorted(path for path in folder.glob("*.yaml") if not path.stem.startswith("_"))
    return ((f"{prefix}{file.stem}", _head(file)) for file in files)


def _head(file: Path) -> str:
    """The first paragraph of the comment at the head of a file, without Hydra's own directive."""
    lines: list[str] = []
    for line in file.read_text().splitlines():
        if not line.startswith("#") or (line.rstrip() == "#" and lines):
            break
        if not line.startswith("# @package"):
            lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
