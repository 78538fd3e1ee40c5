"""Jobs on all cores of this machine, whose processes may die."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from hydra.core.utils import JobReturn
from joblib import effective_n_jobs
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from framework.cli.terminal import progress_bar
from framework.errors import InputError
from framework.run.launchers.jobs import Overrides, Shared, perform, result_of
from framework.run.launchers.starting import how_to_start

log = logging.getLogger(__name__)

_AHEAD = 2  # jobs handed out per worker, so that none waits for its next one
_IDLE_S = 300.0  # seconds until an unused worker ends
_KILLED = "its worker was killed three times, the last time with no other job; most likely memory ran out"


def launch(shared: Shared, n_jobs: int, job_overrides: Sequence[Overrides], first: int) -> list[JobReturn]:
    """Run jobs `first`, `first` + 1, ... and return their results in order.

    A job that was under way when a worker was killed starts again, the third time alone. If it is killed then too, its
    result is an InputError. Workers outlive the call.
    """
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0:
        raise InputError(f"hydra.launcher.n_jobs must be a whole number other than 0, -1 for all cores, got {n_jobs!r}")
    directory = shared.begin()
    workers = effective_n_jobs(n_jobs)
    log.info(f"{len(job_overrides):,} runs, {workers} at a time, in {directory}")
    jobs = dict(enumerate(job_overrides, first))
    with progress_bar("runs") as report, warnings.catch_warnings():
        # Before loky ends a worker it asks the system for the worker's children, and not every system answers.
        warnings.filterwarnings("ignore", "Failed to kill subprocesses")
        pool = _Pool(shared.pack(), jobs, workers, report)
        for number in pool.run_all():
            pool.returned[number] = shared.failed(number, jobs[number], _KILLED)
    return [pool.returned[number] for number in jobs]


@dataclass
class _Pool:
    packed: bytes
    jobs: Mapping[int, Overrides]
    workers: int
    report: Callable[[int, int], None] | None
    returned: dict[int, JobReturn] = field(default_factory=dict)

    def run_all(self) -> list[int]:
        """Fill `returned`; jobs that were killed twice run alone the third time."""
        self._tell()
        lost = self._run_in_company(self._run_in_company(self.jobs))
        return [number for number in lost if self._attempt([number], workers=1)]

    def _run_in_company(self, numbers: Iterable[int]) -> list[int]:
        """Run each once; returns the jobs under way when a worker was killed, any of which may be the cause."""
        waiting, lost = list(numbers), set[int]()
        while waiting:
            lost |= self._attempt(waiting, self.workers)
            waiting = [number for number in waiting if number not in self.returned and number not in lost]
        return sorted(lost)

    def _attempt(self, numbers: Iterable[int], workers: int) -> set[int]:
        """Run jobs until all have ended or a worker is killed; returns those that were handed out and lost."""
        executor = get_reusable_executor(workers, timeout=_IDLE_S, **how_to_start())
        waiting, given, begun = iter(numbers), dict[Future[JobReturn | Exception], int](), set[int]()
        try:
            while True:
                while len(given) < _AHEAD * workers and (number := next(waiting, None)) is not None:
                    begun.add(number)
                    given[executor.submit(perform, self.packed, number, self.jobs[number])] = number
                if not given:
                    return set()
                for future in wait(given, return_when=FIRST_COMPLETED).done:
                    self._keep(given[future], future.result())
                    del given[future]
        except TerminatedWorkerError:
            for future, number in given.items():
                if future.done() and future.exception() is None:
                    self._keep(number, future.result())
            lost = begun - self.returned.keys()
            log.warning(f"a worker was killed; {len(lost)} runs that were under way or next start again")
            return lost
        except BaseException:
            executor.shutdown(kill_workers=True)
            raise

    def _keep(self, number: int, performed: JobReturn | Exception) -> None:
        self.returned[number] = result_of(performed)
        self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            self.report(len(self.returned), len(self.jobs))
