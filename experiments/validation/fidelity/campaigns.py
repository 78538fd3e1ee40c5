"""Two campaigns against each other: closed loops of full-size prompts, and stages in open loop of cached prompts.

Each is predicted by a fit to the other alone. A fit to stages moves the terms of all models together, from their
present values, by one step in each term (`Step`): a campaign of one GPU and backend cannot say more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from experiments.validation.fidelity.fit import (
    CENTRE,
    WIDTH,
    Floats,
    best_terms,
    calibration,
    design,
    errors_at,
    surface,
)
from experiments.validation.fidelity.online import Figures, Stage, replayed
from framework.timing.calibration_terms import Calibration

KINDS = ("dense", "moe")
_REQUESTS = 1200  # requests of a stage that terms are fitted to; its other requests are like these
_NOISE = np.array([0.05, 0.03])  # of the median TTFT and the mean TPOT of a stage
METRICS = ("ttft_ms_p50", "ttft_ms_mean", "tpot_ms_mean")
_KERNELS_ALONE = ("timing.calibrated=false", "server=none")
_NARROWER = 0.5  # widths of the prior, if other measurements have determined the terms


@dataclass(frozen=True)
class StageSurfaces:
    """Log errors of (TTFT, TPOT) of each stage as functions of the terms around those of its kind, `centre`."""

    centre: Mapping[str, Floats]
    coefficients: Mapping[Stage, Floats]

    @classmethod
    def laid(cls, stages: Sequence[Stage], centre: Mapping[str, Floats]) -> StageSurfaces:
        """Replay each stage at the points of the design around the terms of its kind."""
        coefficients = {}
        for stage in stages:
            points = design(centre[stage.kind])
            errors = [_log_errors(stage, replayed(stage, calibration(point), most=_REQUESTS)) for point in points]
            coefficients[stage] = surface((points - centre[stage.kind]) / WIDTH, np.array(errors))
        return cls(centre, coefficients)

    def fitted(self, stages: Sequence[Stage], narrower: float = _NARROWER) -> Mapping[str, Floats]:
        """The terms of each kind, moved together to the best fit of these stages."""
        coefficients = np.stack([self.coefficients[stage] for stage in stages], axis=2)
        moved = best_terms(
            lambda terms: errors_at(coefficients, (terms - CENTRE) / WIDTH), _NOISE, CENTRE, narrower * WIDTH
        )
        return {kind: np.maximum(terms + moved - CENTRE, _least()) for kind, terms in self.centre.items()}


def compared(stages: Sequence[Stage], closed: Mapping[str, Floats]) -> tuple[pl.DataFrame, Mapping[str, Floats]]:
    """Stages by fits that saw more and more of them, and the terms by kind that were fitted to everything.

    `closed`: the terms of each kind that were fitted to closed loops. The frame has a line for each stage and fit:
    stage, fit, and for each of METRICS measured_<metric> and predicted_<metric>, in milliseconds.
    """
    surfaces = StageSurfaces.laid(stages, closed)
    lines = []
    for stage in stages:
        others = surfaces.fitted([other for other in stages if other.model != stage.model])
        lines += [
            _line(stage, "kernels alone", replayed(stage, None, _KERNELS_ALONE)),
            _line(stage, "nothing fitted", replayed(stage, None, ("timing.calibrated=false",))),
            _line(stage, "closed loops", replayed(stage, calibration(closed[stage.kind]))),
            _line(stage, "closed loops and other models", replayed(stage, calibration(others[stage.kind]))),
        ]
    return pl.DataFrame(lines), surfaces.fitted(stages)


def shipped(stages: Sequence[Stage]) -> pl.DataFrame:
    """The same lines for stages with the shipped calibration."""
    return pl.DataFrame([_line(stage, "as shipped", replayed(stage, None)) for stage in stages])


def from_stages(stages: Sequence[Stage]) -> Mapping[str, Calibration]:
    """The terms from the stages alone, by kind."""
    found = StageSurfaces.laid(stages, dict.fromkeys(KINDS, CENTRE)).fitted(stages, narrower=1.0)
    return {kind: calibration(terms) for kind, terms in found.items()}


def _line(stage: Stage, fit: str, predicted: Figures) -> dict[str, object]:
    line: dict[str, object] = {"stage": str(stage), "fit": fit}
    for metric in METRICS:
        line[f"measured_{metric}"] = getattr(Figures.measured(stage), metric)
        line[f"predicted_{metric}"] = getattr(predicted, metric)
    return line


def _least() -> Floats:
    """Seconds have a least value of 0; logarithms have none."""
    return np.where(CENTRE == 0.0, -np.inf, 0.0)


def _log_errors(stage: Stage, figures: Figures) -> Floats:
    measured = Figures.measured(stage)
    ttft = figures.ttft_ms_p50 / measured.ttft_ms_p50
    return np.log([ttft, figures.tpot_ms_mean / measured.tpot_ms_mean])
