"""Actions around a run: a refused run is cleared away, and a sweep ends in one table."""

from __future__ import annotations

import atexit
import fcntl
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.explain import explain
from framework.cli.files import remove_abandoned, write_whole
from framework.cli.launch import BROKEN_PIPE, USER_ERROR, take_interrupts
from framework.cli.safe_text import masked
from framework.cli.streams import drop_output, reader_has_gone, report_error
from framework.errors import InputError, follows_interrupt, hook_noted
from framework.run.comparison import print_comparison, written_since
from framework.run.following import Follower

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def clear_after_killed(sweep: Path) -> None:
    """Remove temporary files of runs of earlier sweeps next to this one that were killed at least an hour ago.

    If the sweeps of a day share a directory, as by default, this includes those of other days.
    """
    day = sweep.parent
    with suppress(OSError):
        for place in day.parent.iterdir() if _DAY.fullmatch(day.name) else [day]:
            for kept in place.glob("*/*/.hydra"):
                remove_abandoned(kept.parent)


class Runs(Follower):
    """Hydra's hooks. One instance sees a whole run or sweep; copies of it see the jobs that run in other processes.

    A run refused for a user's mistake leaves one line on stderr, no directory, and exit code 2. In a sweep the other
    runs continue, and a line that several runs share is printed once. A run that meets a bug keeps its configuration
    and leaves a traceback next to it; the bug ends the command after the other runs have ended. An exception in a
    policy's hook is for its user to fix: one line, which names the file with the traceback.
    """

    def __init__(self) -> None:
        self._process = 0
        self._started_ns = 0
        self._refusals: Refusals | None = None
        self._reported: set[str] = set()
        self._held: int | None = None  # the locked directory of a run or sweep
        self._unfinished: tuple[Path, int] | None = None  # a sweep under way: its directory, and its number of runs
        self._shown = ExitStack()  # the line that says how far a sweep is
        self._ended: Callable[[JobReturn], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What the copies for other processes get, where nothing is shown."""
        return self.__dict__ | {"_shown": None, "_ended": None}

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._start(config, "run", "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        directory = self._start(config, "sweep", "hydra.sweep.dir")
        if directory is not None:
            self._refusals = Refusals(directory / "refused")
            self._refusals.clear()
            atexit.register(self._tell)  # It also runs when a bug ends the sweep.
            self._unfinished = directory, runs_of(config.hydra.overrides.task)
            clear_after_killed(directory)
            atexit.register(self._tell_what_is_kept)
            self._show(config, self._unfinished[1])

    def _show(self, config: DictConfig, runs: int) -> None:
        """Say how far the sweep is until it ends, in any way."""
        from framework.run.course import course

        words = list(config.hydra.overrides.task)
        swept = [word for word in words if runs_of([word]) > 1]
        try:
            self._ended = self._shown.enter_context(course(config, f"sweep {' '.join(words)}", swept, runs))
        except InputError as error:
            report_error(str(error))
            sys.exit(USER_ERROR)  # Hydra turns an error here into a warning
        atexit.register(self._shown.close)

    def follow(self, returned: JobReturn) -> None:
        """A run of a sweep has ended, here or in another process."""
        if self._ended is not None:
            self._ended(returned)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status != JobStatus.FAILED:
            return
        error = job_return._return_value  # the public property would print and raise
        if reader_has_gone(error):  # Hydra would report it
            drop_output()
            sys.exit(BROKEN_PIPE)
        if follows_interrupt(error):  # Hydra would report the error as well
            raise KeyboardInterrupt
        output = OmegaConf.select(config, "hydra.runtime.output_dir", throw_on_missing=False)
        line = explain(error)
        if output is not None and (line is None or hook_noted(error)):
            place = Path(output, "traceback.txt")
            with suppress(OSError):  # a full disk must not hide what went wrong
                place.write_text(masked("".join(format_exception(error))))
            line = line if line is None or self._refusals is not None else f"{line}; see {place}"
        if line is None:
            return
        if self._refusals is None:
            report_error(line)
            self._reported.add(line)
        else:
            try:
                self._refusals.add(config.hydra.job.num, line, " ".join(job_return.overrides or ()))
            except InputError:  # the disk is full: the failure itself ends the sweep, and is reported then
                return
            if output is not None:
                FreshDirectory(Path(output), frozenset(), (Path(output),)).discard()
            if os.getpid() == self._process:
                self._tell()
        job_return.return_value = float("nan")
        job_return.status = JobStatus.COMPLETED

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._let_go()
        self._exit_if_refused()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._unfinished = None
        self._shown.close()
        self._let_go()
        try:
            self._tell()
            print_comparison(Path(config.hydra.sweep.dir), self._started_ns, config.objective)
        finally:  # Hydra turns a failure here into a warning
            self._exit_if_refused()

    def _start(self, config: DictConfig, what: str, key: str) -> Path | None:
        """The directory of a run or sweep, locked until this process ends; exits if another process has locked it."""
        self._process, self._started_ns = os.getpid(), time.time_ns()
        take_interrupts()
        try:
            directory = Path(OmegaConf.select(config, key))
        except OmegaConfBaseException:  # built from facts known only within a job
            return None
        fresh = FreshDirectory.watch(directory)
        if not self._hold(fresh.path):
            report_error(f"{fresh.path}: another {what} writes there now; choose another with {key}=DIR")
            sys.exit(USER_ERROR)  # Hydra turns an error here into a warning
        atexit.register(fresh.discard)  # It also runs after an interrupt, or when Hydra itself refuses the sweep.
        return fresh.path

    def _hold(self, directory: Path) -> bool:
        """Lock a directory until this process ends; whether no other process had locked it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._held = os.open(directory, os.O_RDONLY)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # Hydra reports what is wrong with it; not every file system has locks
            return True
        return True

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _tell(self) -> None:
        """Print the lines that have not been printed; those of other processes are in files."""
        for line, overrides in self._refusals.read() if self._refusals is not None else ():
            if line not in self._reported:
                report_error(f"{line} [{overrides}]" if overrides else line)
            self._reported.add(line)

    def _tell_what_is_kept(self) -> None:
        """Say how much of a sweep that ended early is kept."""
        if self._unfinished is None or os.getpid() != self._process:
            return
        directory, runs = self._unfinished
        if kept := len(written_since(directory, self._started_ns)):
            line = f"the sweep was interrupted: {kept:,} of {runs:,} runs are kept"
            print(f"{line}; the same command goes on with the others", file=sys.stderr)

    def _exit_if_refused(self) -> None:
        if self._reported:
            sys.exit(USER_ERROR)


@dataclass(frozen=True)
class Refusals:
    """Why runs of a sweep were refused, one file each, which a process on any machine can write."""

    directory: Path

    def clear(self) -> None:
        """Remove those of an earlier sweep."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def add(self, job: int, line: str, overrides: str) -> None:
        write_whole(self.directory / f"{job}.log", f"{line}\n{overrides}\n".encode())

    def read(self) -> list[tuple[str, str]]:
        """The (line, overrides) of each, in the order of the jobs."""
        files = sorted(self.directory.glob("[!.]*.log"), key=lambda file: int(file.stem))
        texts = (file.read_text().splitlines() for file in files)
        return [(line, overrides) for line, overrides in texts]


@dataclass(frozen=True)
class FreshDirectory:
    """A directory for results as it was before a run: its entries, and the folders to be made, deepest first."""

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
            except OSError:  # Another run uses it.
                return


def _is_hydras(entry: Path) -> bool:
    """Whether Hydra made it: its records, its log, and the folders of a sweep's runs while they hold nothing else."""
    if entry.is_dir():
        return entry.name == ".hydra" or all(_is_hydras(inner) for inner in entry.iterdir())
    return entry.name == "multirun.yaml" or entry.suffix == ".log"


def runs_of(overrides: Sequence[str]) -> int:
    """The number of runs of a sweep over these overrides: the product of the numbers of choices."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return math.prod(sum(1 for _ in one.sweep_iterator()) for one in parsed if one.is_sweep_override())
