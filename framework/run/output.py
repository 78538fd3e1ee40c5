"""The files of a run, each written completely or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from framework.cli.files import remove_abandoned, write_whole
from framework.errors import InputError
from framework.metrics.phases import phase_table
from framework.metrics.series import time_series
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation
from framework.metrics.token_gaps import gap_shares
from framework.report.timeline.perfetto import ALWAYS_S, write_timeline
from framework.result import Result

_ROOM_BYTES = 1 << 16  # bytes below which a disk counts as full


def write(
    directory: Path,
    result: Result,
    evaluation: Evaluation,
    *,
    steps: bool = False,
    timeline: bool = False,
    further: Mapping[str, Callable[[], pl.DataFrame | str]] | None = None,
    window_s: tuple[float, float] = ALWAYS_S,
    slo: Slo | None = None,
) -> list[Path]:
    """Write summary.json and requests.parquet, with `steps` steps.parquet, with `timeline` timeline.json.gz.

    `further`: tables and texts, by the name of the file; `tables_of` makes some. `window_s` bounds the timeline, whose
    requests `slo` judges.
    Returns the files. Raises InputError if a file cannot be written, or needs a step log that the run did not keep.
    Then no new file is left behind, and those of an earlier run in `directory` stay as they were.
    """
    if (steps or timeline) and result.engine.log == "reduced":
        asked = "output.steps" if steps else "output.timeline"
        raise InputError(f"{asked} needs the step log, which this run reduced as it was made: set engine.log=full")
    writers: dict[str, Callable[[IO[bytes]], object]] = {
        "requests.parquet": lambda file: evaluation.requests.write_parquet(file),
        "summary.json": lambda file: file.write(_json(evaluation.summary)),
    }
    if steps:
        writers["steps.parquet"] = lambda file: step_table(result).write_parquet(file)
    if timeline:
        writers["timeline.json.gz"] = lambda file: write_timeline(result, file, window_s, slo)
    for name, made in (further or {}).items():
        writers[name] = _writer(made)
    return _write_all(directory, writers)


def tables_of(
    result: Result, evaluation: Evaluation, series_s: float | None, *, phases: bool, gaps: bool = False
) -> dict[str, Callable[[], pl.DataFrame | str]]:
    """The requested tables: the run in windows of `series_s` seconds, each request's time by phase, the distribution of
    gaps between tokens.
    """
    tables: dict[str, Callable[[], pl.DataFrame | str]] = {}
    if series_s is not None:
        good = evaluation.requests["good"].to_numpy()
        tables["series.parquet"] = lambda: time_series(result, good, series_s)
    if phases:
        tables["phases.parquet"] = lambda: phase_table(result)
    if gaps:
        tables["gaps.parquet"] = lambda: gap_table(result)
    return tables


def gap_table(result: Result) -> pl.DataFrame:
    """The distribution of the gaps between tokens (TBT) over the whole run: `gap_s`, rising, and the `share` up to it.

    A row stands for a bin that is 0.4 % wide, by its upper edge.
    """
    output_tokens = result.workload.output_tokens
    gap_s, share = gap_shares(result.step_log, result.token_log, output_tokens, len(result.instances))
    return pl.DataFrame({"gap_s": gap_s, "share": share})


def _writer(made: Callable[[], pl.DataFrame | str]) -> Callable[[IO[bytes]], object]:
    def write_to(file: IO[bytes]) -> None:
        content = made()
        if isinstance(content, str):
            file.write(content.encode())
        else:
            content.write_parquet(file)

    return write_to


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    """Write summary.json alone, for a run whose other files are elsewhere."""
    write_whole(directory / "summary.json", _json(summary))


def step_table(result: Result) -> pl.DataFrame:
    """The leaps, one row each in the order of their ends, with the columns of the engine's STEP_LOG record.

    Step j of a row (0 <= j < steps) lasts first_s + j * increment_s and reads `context` + j * batch tokens of KV. With
    speculation, `depth` tokens were drafted for each of its decodes. If GPUs were shared, `stream` is 1 for a prefill
    step concurrent with the decodes.
    """
    leaps = result.step_log
    order = ("instance", "steps", "batch", "prefill_tokens", "start_s", "first_s", "increment_s", "step0", "context")
    names = order if result.engine.speculation.most == 0 else (*order, "depth")
    if leaps["stream"].any():
        names = (*names, "stream")
    return pl.DataFrame({name: np.ascontiguousarray(leaps[name]) for name in names})


def _json(summary: dict[str, Any]) -> bytes:
    return (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()


def _write_all(directory: Path, writers: dict[str, Callable[[IO[bytes]], object]]) -> list[Path]:
    """Write each file under a temporary name; rename them once all are complete."""
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    temporary = {directory / name: directory / f".{name}.{os.getpid()}.tmp" for name in writers}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(directory)
        for target, unfinished in temporary.items():
            with open(unfinished, "wb") as file:
                writers[target.name](file)
        for target, unfinished in temporary.items():
            os.replace(unfinished, target)
    except BaseException as error:
        is_full = _is_full(directory)
        _remove(list(temporary.values()), made)
        if isinstance(error, (OSError, pl.exceptions.PolarsError)):  # polars wraps the system's error, or hides it
            own = error.strerror if isinstance(error, OSError) else os.strerror(errno.ENOSPC) if is_full else None
            reason = own or str(error)
            raise InputError(f"{directory}: results cannot be written ({reason}); choose another directory") from error
        raise
    return list(temporary)


def _is_full(directory: Path) -> bool:
    """Whether the disk has no room left for a file."""
    try:
        return shutil.disk_usage(directory).free < _ROOM_BYTES
    except OSError:
        return False


def _remove(files: list[Path], folders: list[Path]) -> None:
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError:  # its directory is no directory, or cannot be written: nothing was made
            return
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
