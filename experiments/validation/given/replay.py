"""Predictions of runs with default settings for measured rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.validation.fidelity.online import GROUPS, Figures, Stage, replayed
from experiments.validation.given.offline_file import TOKENS, Offline
from framework.calibration.replay import Deployment, Sent, replay
from framework.cli.arguments import configured
from framework.load import Open
from framework.timing.calibration_terms import Calibration
from framework.timing.fit_domain import Place
from framework.timing.measured import Measured, placed
from framework.workload import Workload


@dataclass(frozen=True)
class Judged:
    """One figure of one row, predicted and measured, in the same unit.

    A stage is replayed with several draws of its arrivals: `predicted` is the median of their figures, which lie from
    `least` to `most`. An offline row has one.
    """

    row: str
    figure: str
    predicted: float
    measured: float
    least: float
    most: float

    @property
    def error(self) -> float:
        """The error in percent of the measured value."""
        return 100 * (self.predicted / self.measured - 1)


_TAIL = "server.jitter=1"  # a real server answers some requests late
_FIGURES = ("ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p99", "tpot_ms_mean")


def judge_stage(stage: Stage, overrides: Sequence[str], draws: int) -> list[Judged]:
    """The figures of a stage over `draws` draws, some of whose requests are late (`server.jitter`).

    Raises InputError if it cannot be simulated.
    """
    replays = [replayed(stage, None, (_TAIL, *overrides), draw=draw) for draw in range(draws)]
    measured = Figures.measured(stage)
    judged = []
    for name in _FIGURES:
        drawn = [getattr(one, name) for one in replays]
        figures = float(np.median(drawn)), getattr(measured, name), min(drawn), max(drawn)
        judged.append(Judged(str(stage), name, *figures))
    return judged


def judge_offline(row: Offline, overrides: Sequence[str]) -> Judged:
    """The figure of an offline row. Raises InputError if it cannot be simulated."""
    parts = configured([*row.overrides, "cluster=mixed", "cluster.instances=1", *overrides], GROUPS)
    sent = Workload(
        arrival_s=np.zeros(row.requests),
        input_tokens=np.full(row.requests, row.input_tokens),
        output_tokens=np.full(row.requests, row.output_tokens),
        name=str(row),
    )
    timing = parts["timing"]
    if isinstance(timing, Measured):
        timing = placed(timing, Place.of(sent, Open(), 1, prefix_cache=False))
    server = Deployment(
        parts["model"], parts["cluster"], parts["engine"], lambda _: timing, partial(parts.__getitem__, "policy")
    )
    served = replay(Sent(sent, Open(), "recorded"), server, Calibration())
    predicted = float(served.e2e_s.mean())
    if row.figure == TOKENS:
        gpus = sum(pool.instances * pool.parallelism.gpus for pool in parts["cluster"].pools)
        predicted = row.requests * row.output_tokens / float(served.e2e_s.max()) / gpus
    return Judged(str(row), row.figure, predicted, row.measured, predicted, predicted)
