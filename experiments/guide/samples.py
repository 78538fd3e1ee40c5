"""Fresh samples of a load: the same ones for every candidate, so that differences are paired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.guide.runs import Runs, starting_at
from framework.run.store import Record

Floats = NDArray[np.float64]
_BLOCKS = "trace.resample_s=300"  # by which a recording has other samples


@dataclass(frozen=True)
class Samples:
    """`count` samples beside that of `seed`, none of which a search has seen."""

    seed: int
    count: int
    is_recorded: bool

    def searched(self, runs: Runs, job: Sequence[str], start_rps: float) -> Floats | None:
        """The highest rate on each sample, (count,), in one run; None where it is refused."""
        words = (starting_at(start_rps), f"objective.replicates={self.count}", f"seed={self.seed}")
        (outcome,) = runs.run([(*job, *words)])
        return None if outcome.record is None else np.array(outcome.record.summary["capacity_replicates"], np.float64)

    def played(self, runs: Runs, job: Sequence[str], worth: Callable[[Record], float]) -> Floats | None:
        """The worth of a run at the rate that is set on each sample, (count,); None where it is refused."""
        blocks = (_BLOCKS,) if self.is_recorded else ()
        seeds = range(self.seed + 1, self.seed + 1 + self.count)
        records = [one.record for one in runs.run([(*job, *blocks, f"seed={seed}") for seed in seeds])]
        if any(record is None for record in records):
            return None
        return np.array([worth(record) for record in records if record is not None])
