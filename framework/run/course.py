"""The runs of a sweep or study as they end: how many, how many of them failed, the best so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.utils import get_class
from omegaconf import DictConfig

from framework.cli.terminal import Progress
from framework.metrics.figure import Better
from framework.metrics.figures import metric
from framework.report.table_words import named
from framework.run.live import told
from framework.run.store import Record


class Course:
    """Reports the ends of `total` runs; `key`: the figure that ranks them, None if they have no common one."""

    def __init__(self, progress: Progress, total: int, key: str | None) -> None:
        self._progress, self._total, self._key = progress, total, key
        self._sign = -1 if key is not None and metric(key).better is Better.LOWER else 1
        self._done, self._failed = 0, 0
        self._best = -math.inf
        self._report()

    def ended(self, returned: JobReturn) -> None:
        """One more run has ended."""
        value = _value_of(returned)
        self._done += 1
        self._failed += value is None
        if value is not None:
            self._best = max(self._best, self._sign * value)
        self._report()

    def _report(self) -> None:
        best = "" if self._key is None or math.isinf(self._best) else named(self._key, self._sign * self._best)
        self._progress(self._done, self._total, self._failed, best)


@contextmanager
def course(config: DictConfig, what: str, jobs: Sequence[str], total: int) -> Iterator[Callable[[JobReturn], None]]:
    """Show the `total` runs of a Hydra config in one line, and as `what` in its store, until they have ended.

    Yields what takes the end of each. `jobs`: the words in which the runs differ; if they choose the objective, no run
    is the best.
    """
    varies = any(word.lstrip("+").startswith("objective") for word in jobs)
    key = None if varies else get_class(config.objective._target_).key  # type: ignore[attr-defined]
    with told(store_of(config), what, "sweep", "runs") as progress:
        yield Course(progress, total, key).ended


def store_of(config: DictConfig) -> Path:
    """The directory of the store of a Hydra config."""
    return Path(config.hydra.runtime.cwd) / str(config.store)


def _value_of(returned: JobReturn) -> float | None:
    """The figure of the objective; None for a run that has failed."""
    value = returned._return_value  # the public property would print and raise
    value = value.value if isinstance(value, Record) else value
    if returned.status != JobStatus.COMPLETED or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)
