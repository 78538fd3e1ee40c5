"""What happens around a run: a refused one is cleared away, and a sweep ends in one table."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.launch import USER_ERROR, explain, report_error


class Runs(Callback):
    """Hydra's hooks; one instance sees a whole run or sweep.

    A run refused for a mistake of its user leaves one line on stderr, no directory, and exit code 2. In a sweep the
    others go on, and a line that several runs share is printed once. A bug ends everything with its traceback.
    """

    def __init__(self) -> None:
        self._mistakes: set[str] = set()
        self._directory: FreshDirectory | None = None
        self._in_sweep = False
        self._started_ns = 0

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._watch(config, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._in_sweep = True
        self._started_ns = time.time_ns()
        self._watch(config, "hydra.sweep.dir")

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status != JobStatus.FAILED:
            return
        line = explain(job_return._return_value)  # the public property would print and raise
        if line is None:
            if self._directory is not None:
                atexit.unregister(self._directory.discard)  # the configuration that met a bug is kept
            return
        if line not in self._mistakes:
            overrides = " ".join(job_return.overrides or ())
            report_error(f"{line} [{overrides}]" if self._in_sweep and overrides else line)
        self._mistakes.add(line)
        if self._in_sweep:
            output = Path(config.hydra.runtime.output_dir)
            FreshDirectory(output, frozenset(), (output,)).discard()
        job_return.return_value = float("nan")
        job_return.status = JobStatus.COMPLETED

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._exit_if_refused()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            print_comparison(Path(config.hydra.sweep.dir), self._started_ns)
        finally:  # Hydra makes a warning of what breaks here
            self._exit_if_refused()

    def _watch(self, config: DictConfig, key: str) -> None:
        try:
            directory = OmegaConf.select(config, key)
        except OmegaConfBaseException:  # built from what is known within a job only
            return
        self._directory = FreshDirectory.watch(Path(directory))
        atexit.register(self._directory.discard)  # also after an interrupt, or when Hydra itself refuses the sweep

    def _exit_if_refused(self) -> None:
        if self._mistakes:
            sys.exit(USER_ERROR)


@dataclass(frozen=True)
class FreshDirectory:
    """A directory for results as it was before a run: what it held, and the folders to be made, deepest first."""

    path: Path
    held: frozenset[str]
    missing: tuple[Path, ...]

    @classmethod
    def watch(cls, path: Path) -> FreshDirectory:
        path = path.absolute()
        held = frozenset(os.listdir(path)) if path.is_dir() else frozenset[str]()
        return cls(path, held, tuple(folder for folder in (path, *path.parents) if not folder.exists()))

    def discard(self) -> None:
        """Remove what Hydra put here if nothing else came, then the folders that were made for it."""
        if not self.path.is_dir():
            return
        new = [entry for entry in self.path.iterdir() if entry.name not in self.held]
        if any(not _is_hydras(entry) for entry in new):
            return
        for entry in new:
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        for folder in self.missing:
            try:
                folder.rmdir()
            except OSError:  # another run lives there
                return


def _is_hydras(entry: Path) -> bool:
    """Whether Hydra made it: its records, its log, and the folders of a sweep's runs while they hold no more."""
    if entry.is_dir():
        return entry.name == ".hydra" or all(_is_hydras(inner) for inner in entry.iterdir())
    return entry.name == "multirun.yaml" or entry.suffix == ".log"


def print_comparison(sweep: Path, since_ns: int = 0) -> None:
    """Print one table of the runs below directory `sweep`, as far as they were written since `since_ns` (Unix time)."""
    from framework.report.table import comparison_table  # a run that is refused should not wait for these
    from framework.terminal import results_console

    runs = read_runs(sweep, since_ns)
    if runs:
        labels, summaries = zip(*runs, strict=True)
        results_console().print(comparison_table(summaries, labels))


def read_runs(sweep: Path, since_ns: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """(label, summary) of each run below `sweep`, in the order of the jobs. Labels name the overrides that differ."""
    found = []
    for file in sweep.rglob("summary.json"):
        if file.stat().st_mtime_ns >= since_ns:
            job = OmegaConf.select(OmegaConf.load(file.parent / ".hydra" / "hydra.yaml"), "hydra.job.num")
            overrides = [str(entry) for entry in OmegaConf.load(file.parent / ".hydra" / "overrides.yaml")]
            found.append((job, overrides, json.loads(file.read_text())))
    found.sort(key=lambda run: (run[0], run[1]))
    shared = set.intersection(*(set(overrides) for _, overrides, _ in found)) if len(found) > 1 else set()
    traces = {(summary["trace"], summary["trace_source"]) for _, _, summary in found}
    runs = []
    for _, overrides, summary in found:
        own = [entry for entry in overrides if entry not in shared]
        if len(traces) > 1 and summary["trace_source"] == "twin":
            own.append("(twin)")
        runs.append((" ".join(own) or summary["policy"], summary))
    return runs
