"""How far a run's figures move if step times are wrong by as much as they were elsewhere: two more replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement, judged
from framework.timing.uncertainty.stretched import Stretched
from framework.timing.uncertainty.widths import Width

TTFTS = ("median_ttft_ms", "p99_ttft_ms")
FIGURES = (*TTFTS, "median_tpot_ms", "goodput_rps")


@dataclass(frozen=True)
class Sensitivity:
    """The results of the run with steps shorter and longer by `width`.

    `ranges` has the least and the largest value of each of FIGURES, None if the figure is undefined in a replay;
    `load_states` those of the replays with shorter and with longer steps.
    """

    width: Width
    ranges: Mapping[str, tuple[float, float] | None]
    load_states: tuple[str | None, str | None]

    def data(self) -> dict[str, Any]:
        """The content of its file."""
        return asdict(self)


def sensitivity(experiment: Experiment, measurement: Measurement, width: Width) -> Sensitivity:
    """Replay `experiment`, whose run is `measurement`, with shorter and with longer steps.

    The range of a TTFT reaches at least from the run's own value / `width.ttft` to the value * `width.ttft`.
    """
    summaries = []
    for factor in (1 - width.steps, 1 + width.steps):
        own = replace(experiment.on(experiment.workload), timing=Stretched(experiment.timing, factor))
        summaries.append(judged(own, own.run()).summary)
    found = [summaries[0], measurement.evaluation.summary, summaries[1]]
    ranges = {key: reach([one[key] for one in found], width.ttft if key in TTFTS else 1.0) for key in FIGURES}
    return Sensitivity(width, ranges, (summaries[0].get("load_state"), summaries[1].get("load_state")))


def reach(values: list[float | None], factor: float) -> tuple[float, float] | None:
    """The range from the least to the largest of three values, at least by `factor` away from the second."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    middle = known[1]
    return min(*known, middle / factor), max(*known, middle * factor)
