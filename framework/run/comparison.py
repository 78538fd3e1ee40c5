"""The table that ends a sweep: its runs, read from what each has left."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from framework.report.sweep_groups import Ended, in_groups, rows_of

_MOST = 40  # the most runs that it shows completely
_BEST = 20  # rows shown if there are more


def print_comparison(sweep: Path, since_ns: int, objective: DictConfig) -> None:
    """Print one table of the runs below directory `sweep` that were written since `since_ns` (Unix time).

    Runs that differ only in their seed are one row, their mean. Of many rows it shows the best by `objective`, or by
    the default one if several were swept over.
    """
    from framework.cli.terminal import results_console
    from framework.report.comparison_table import comparison_table
    from framework.run.arms import arms_line

    ended = ended_runs(sweep, since_ns)
    if not ended:
        return
    rows, rest = rows_of(labelled(ended)), ""
    if len(rows) > _MOST:
        key = get_class(objective._target_).key  # type: ignore[attr-defined]
        best = sorted(rows, key=lambda row: row.summary.get(key) or 0.0, reverse=True)[:_BEST]
        rest = f"the best {_BEST} of {len(rows):,} rows by {key}; all are in {sweep}"
        rows = in_groups(best)
    console = results_console()
    labels, groups = [row.label for row in rows], [row.group for row in rows]
    console.print(comparison_table([row.summary for row in rows], labels, groups))
    if (seeds := max(row.seeds for row in rows)) > 1:
        most = "" if seeds == min(row.seeds for row in rows) else "up to "
        console.print(f"each row is the mean over {most}{seeds} seeds", highlight=False)
    if (line := arms_line(ended)) is not None:
        console.print(line, markup=False, highlight=False)
    if rest:
        console.print(f"{rest}; python -m experiments.table makes tables of them", markup=False, highlight=False)


def written_since(sweep: Path, since_ns: int) -> list[Path]:
    """The summaries of runs below a directory that were written since then, in the order of the jobs."""
    files = sorted(sweep.rglob("summary.json"), key=lambda file: _natural(file.parent))
    return [file for file in files if file.stat().st_mtime_ns >= since_ns]


def ended_runs(sweep: Path, since_ns: int = 0) -> list[Ended]:
    """The runs below `sweep` that have ended since then, in the order of the jobs."""
    found = []
    for file in written_since(sweep, since_ns):
        entries = yaml.safe_load((file.parent / ".hydra" / "overrides.yaml").read_text())
        found.append(Ended(file.parent, tuple(str(entry) for entry in entries), json.loads(file.read_bytes())))
    return found


def labelled(ended: Sequence[Ended]) -> list[tuple[str, Mapping[str, Any]]]:
    """The (label, summary) of each. Labels name the overrides that differ."""
    shared = set.intersection(*(set(run.arguments) for run in ended)) if len(ended) > 1 else _of_all(ended[0])
    traces = {(run.summary["trace"], run.summary["trace_source"]) for run in ended}
    runs = []
    for run in ended:
        own = [word for word in run.arguments if word not in shared]
        if len(traces) > 1 and run.summary["trace_source"] == "twin":
            own.append("(fitted)")
        name = " ".join(own).replace("\\:", ":")  # Hydra escapes the colon of FILE.py:CLASS
        runs.append((name or str(run.summary["policy"]), run.summary))
    return runs


def _of_all(only: Ended) -> set[str]:
    """The arguments that a sweep has for all its runs, of which only one has ended."""
    file = only.directory.parent / "multirun.yaml"
    found = OmegaConf.select(OmegaConf.load(file), "hydra.overrides.task", default=[]) if file.is_file() else []
    return {str(word) for word in found}


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key: numbers within names compare by size, since Hydra numbers the jobs of a sweep."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
