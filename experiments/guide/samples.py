"""Fresh samples of a load: the same ones for every candidate, so differences are paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.guide.runs import Runs, first_step, starting_at
from framework.run.store import Record

Floats = NDArray[np.float64]
_BLOCKS = "trace.resample_s=300"  # block of further samples of a recording
_NEAR = 1.1  # first step of a search from a rate that was found on another sample


@dataclass(frozen=True)
class Sampled:
    """Figures on each sample, (count,).

    `is_settled`: whether all underlying rates could be decided. `tpot_ms`: P90 of a run at the highest rate on the
    sample of the searches; NaN if there is none.
    """

    values: Floats
    is_settled: bool = True
    tpot_ms: float = float("nan")


@dataclass(frozen=True)
class Samples:
    """`count` samples in addition to that of `seed`, none of which a search has seen."""

    seed: int
    count: int
    is_recorded: bool

    def searched(self, runs: Runs, job: Sequence[str], start_rps: float) -> Sampled | None:
        """The highest rate on each sample, (count,), in one run; None if it is refused."""
        arguments = (
            starting_at(start_rps),
            first_step(_NEAR),
            f"objective.replicates={self.count}",
            f"seed={self.seed}",
        )
        (outcome,) = runs.run([(*job, *arguments)])
        if outcome.record is None:
            return None
        found = outcome.record.summary
        tpot_ms = found.get("p90_tpot_ms")
        values = np.array(found["capacity_replicates"], np.float64)
        return Sampled(values, found["capacity_settled"], float("nan") if tpot_ms is None else float(tpot_ms))

    def records(self, runs: Runs, job: Sequence[str]) -> list[Record] | None:
        """A run at the given rate on each sample; None if it is refused."""
        blocks = (_BLOCKS,) if self.is_recorded else ()
        seeds = range(self.seed + 1, self.seed + 1 + self.count)
        records = [one.record for one in runs.run([(*job, *blocks, f"seed={seed}") for seed in seeds])]
        found = [record for record in records if record is not None]
        return found if len(found) == len(records) else None
