"""Jobs on all cores of this machine, whose processes may die."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from hydra.core.utils import JobReturn
from joblib import effective_n_jobs
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from framework.errors import InputError
from framework.run.launchers.jobs import Overrides, Shared, perform, result_of
from framework.run.launchers.starting import how_to_start

log = logging.getLogger(__name__)

_AHEAD = 2  # jobs handed out per worker, so that none waits for its next one
_IDLE_S = 300.0  # seconds until an unused worker ends
_LOOK_S = 0.5  # an interrupt that reaches another thread is seen when this one wakes
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
    with warnings.catch_warnings():
        # Before loky ends a worker it asks the system for the worker's children, and not every system answers.
        warnings.filterwarnings("ignore", "Failed to kill subprocesses")
        pool = _Pool(shared, shared.pack(), jobs, workers)
        for number in pool.run_all():
            pool.keep(number, shared.failed(number, jobs[number], _KILLED))
    return [pool.returned[number] for number in jobs]


@dataclass
class _Pool:
    shared: Shared
    packed: bytes
    jobs: Mapping[int, Overrides]
    workers: int
    returned: dict[int, JobReturn] = field(default_factory=dict)

    def run_all(self) -> list[int]:
        """Fill `returned`; jobs that were killed twice run alone the third time."""
        lost = self._run_in_company(self._run_in_company(self.jobs))
        return [number for number in lost if self._attempt([number], workers=1)]

    def _run_in_company(self, numbers: Iterable[int]) -> list[int]:
        """Run each once; return the jobs under way when a worker was killed, any of which may be the cause."""
        waiting, lost = list(numbers), set[int]()
        while waiting:
            lost |= self._attempt(waiting, self.workers)
            waiting = [number for number in waiting if number not in self.returned and number not in lost]
        return sorted(lost)

    def _attempt(self, numbers: Iterable[int], workers: int) -> set[int]:
        """Run jobs until all have ended or a worker is killed; return those that were handed out and lost."""
        executor = get_reusable_executor(workers, timeout=_IDLE_S, **how_to_start())
        waiting, given, begun = iter(numbers), dict[Future[JobReturn | Exception], int](), set[int]()
        try:
            while True:
                while len(given) < _AHEAD * workers and (number := next(waiting, None)) is not None:
                    begun.add(number)
                    given[executor.submit(perform, self.packed, number, self.jobs[number])] = number
                if not given:
                    return set()
                for future in wait(given, _LOOK_S, FIRST_COMPLETED).done:
                    self.keep(given[future], result_of(future.result()))
                    del given[future]
        except TerminatedWorkerError:
            for future, number in given.items():
                if future.done() and future.exception() is None:
                    self.keep(number, result_of(future.result()))
            lost = begun - self.returned.keys()
            log.warning(f"a worker was killed; {len(lost)} runs that were under way or next start again")
            return lost
        except BaseException:
            executor.shutdown(kill_workers=True)
            raise

    def keep(self, number: int, returned: JobReturn) -> None:
        """Take the result of a job."""
        self.returned[number] = returned
        self.shared.ended(returned)
