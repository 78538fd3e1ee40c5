"""Ended runs, read back from their directories."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from framework.cli.reading import parquet_of, parsed_json, parsed_yaml, read_file, read_text
from framework.errors import InputError
from framework.report.page.compared import MOST, Run
from framework.report.page.sweep_curves import CURVES, Point
from framework.report.page.words import PARTS, setup
from framework.run.arms import decided, ran_settings

_MOST_ROWS = 100_000_000
_NEEDED = ("arrival_s", "input_tokens", "output_tokens", "state", "ttft_s", "tpot_s", "e2e_s", "good")
_WORDS = Path(".hydra") / "overrides.yaml"  # overrides of each run
_SAID = 2  # the most settings in a label
_OF_A_SUMMARY = ("policy", "trace", "gpus", "duration", *CURVES)  # keys that pages need


def finished_runs(directories: Sequence[Path], beside: Path = Path()) -> list[Run]:
    """The runs whose files lie in these directories, each labelled by a letter and by its distinguishing settings.
    Links are for a page in the directory `beside`.

    Raises InputError for a directory without a run, for fewer than two runs, and for more than a page can show.
    """
    if missing := [directory for directory in directories if not directory.is_dir()]:
        raise InputError(f"{missing[0]}: no such directory; those of runs and sweeps are in outputs and multirun")
    if not 2 <= len(directories) <= MOST:
        raise InputError(
            f"report takes the directories of 2 to {MOST} runs: servelab report outputs/one outputs/other; "
            "a single run writes its page itself: servelab policy=NAME report=true"
        )
    runs = [(ran_settings(directory), summary_of(directory / "summary.json")) for directory in directories]
    settings, summaries = [decided(own, summary) for own, summary in runs], [summary for _, summary in runs]
    labels = _labels([str(summary["policy"]) for summary in summaries], settings)
    return [
        Run(
            label,
            str(directory),
            summary,
            table_of(directory / "requests.parquet", _NEEDED),
            own,
            _link(directory, beside),
        )
        for label, directory, summary, own in zip(labels, directories, summaries, settings, strict=True)
    ]


def is_sweep(directory: Path) -> bool:
    """Whether the directory is that of a sweep, with its runs in directories below it."""
    return not (directory / "summary.json").is_file() and any(directory.glob(f"*/{_WORDS}"))


def sweep_points(directory: Path, beside: Path = Path()) -> tuple[list[Point], int]:
    """The runs of a sweep in the order of their numbers, and how many left no summary. Links are for a page in the
    directory `beside`.

    Raises InputError for a summary, or overrides of a run, that cannot be read.
    """
    ended = runs_of_sweep(directory)
    points = [
        Point(_words(own / _WORDS), summary_of(own / "summary.json"), _link(own, beside), own.name) for own in ended
    ]
    return points, len(list(directory.glob(f"*/{_WORDS}"))) - len(ended)


def _link(directory: Path, beside: Path) -> str:
    """The address of the page of a run, or of its summary, from a page in the directory `beside`."""
    name = "report.html" if (directory / "report.html").is_file() else "summary.json"
    return quote(Path(os.path.relpath(directory / name, beside)).as_posix())


def setup_of_sweep(directory: Path, points: Sequence[Point]) -> str:
    """Model, GPUs and server of a sweep, also those that it varies; "" if its runs do not say."""
    try:
        settings = ran_settings(runs_of_sweep(directory)[0])
    except InputError:
        return ""
    swept = {name.split(".")[0] for one in points for name in one.settings}
    kept = {name: value for name, value in settings.items() if name.split(".")[0] not in swept}
    varied = [{f"{part}.name": one.settings[part] for part in PARTS if part in one.settings} for one in points]
    return setup([kept | own for own in varied], [int(one.summary["gpus"]) for one in points])


def runs_of_sweep(directory: Path) -> list[Path]:
    """Directories of a sweep's runs that left a summary, by number. Raises InputError if none did."""
    files = directory.glob(f"*/{_WORDS}")
    own = sorted((file.parents[1] for file in files), key=lambda run: (len(run.name), run.name))
    ended = [run for run in own if (run / "summary.json").is_file()]
    if not ended:
        raise InputError(f"{directory}: no run of this sweep has left a summary")
    return ended


def _words(file: Path) -> dict[str, str]:
    """The settings that a run of a sweep was given, by name."""
    try:
        found = parsed_yaml(read_text(file))
    except ValueError as error:
        raise InputError(f"{file}: cannot be read ({error})") from error
    words = found if isinstance(found, list) else []
    pairs = (str(word).partition("=") for word in words)
    return {name.lstrip("+"): value.replace("\\:", ":") for name, _, value in pairs}  # Hydra escapes FILE.py:CLASS


def summary_of(path: Path) -> dict[str, Any]:
    """The content of a summary.json. Raises InputError for a file without one."""
    try:
        found = parsed_json(read_file(path))
    except ValueError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict) or any(key not in found for key in _OF_A_SUMMARY):
        raise InputError(f"{path}: this is no summary of a run")
    return found


def table_of(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """A table that a run left. Raises InputError if it is no table, or lacks one of these columns."""
    try:
        found = parquet_of(read_file(path), _MOST_ROWS)
    except (ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if lacking := [name for name in columns if name not in found.columns]:
        raise InputError(f"{path}: has no column {lacking[0]}; this is no {path.stem} table of a run")
    return found


def _labels(policies: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A letter and the policy, with the first settings in which runs of like policies differ."""
    labels = []
    for number, (policy, own) in enumerate(zip(policies, settings, strict=True)):
        rivals = [other for name, other in zip(policies, settings, strict=True) if name == policy]
        parts = [
            f"{name.split('.')[-1]}={value}"
            for name, value in own.items()
            if not name.endswith("_target_") and len({str(other.get(name)) for other in rivals}) > 1
        ]
        labels.append(" ".join([string.ascii_uppercase[number], policy, *parts[:_SAID]]))
    return labels
