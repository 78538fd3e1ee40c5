"""The errors of one predictor on the second half of a workload, as a policy would see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from framework.policy.predictor import Floats, Integers, Predictions, Predictor
from framework.workload import Workload

PROGRESS = (0.0, 0.25, 0.5, 0.75)  # shares of a request's own output


@dataclass(frozen=True)
class Score:
    """Errors of estimates of the remaining tokens, when a given share of each output has been generated.

    `mae`, `bias`: means of |estimate - truth| and of estimate - truth, tokens. `rank`: Spearman's correlation of
    estimates and truths, nan if all estimates are equal. `bucket`: the share of requests whose whole output is expected
    in the right bucket. `within`: the share of truths within one spread of the estimate; 68 % for normal errors and a
    correct spread.
    """

    mae: float
    bias: float
    rank: float
    bucket: float
    within: float


class Constant(Predictor):
    """Expects the median output of the first half of the trace for every request."""

    stride = 1

    def prepare(self, workload: Workload, seed: int) -> None:
        self._median = float(np.median(workload.output_tokens[: len(workload) // 2]))

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        return np.maximum(self._median - generated, 1.0), np.full(len(requests), np.nan)


def scores(predictor: Predictor, workload: Workload, width: int, seed: int = 0) -> list[Score]:
    """The scores for each of PROGRESS, over the second half of the requests; the first half has finished.

    `width`: tokens of a bucket of output lengths.
    """
    half = len(workload) // 2
    ids = np.arange(half, len(workload))
    predictor.prepare(workload, seed)
    found = []
    for share in PROGRESS:
        generated = (share * workload.output_tokens[ids]).astype(np.int64)
        found.append(_score(_Asked(predictor, workload), ids, generated, width))
    return found


def mae_after(predictor: Predictor, workload: Workload, generated: int, seed: int = 0) -> float:
    """The mean absolute error over all requests, each after `generated` tokens."""
    predictor.prepare(workload, seed)
    ids, at = np.arange(len(workload)), np.full(len(workload), generated)
    estimate = predictor.predict(ids, at)[0]
    return float(np.mean(np.abs(estimate - (workload.output_tokens - at))))


class _Asked(Predictions):
    """Estimates of a run in which the first half of the requests has finished, in order."""

    def __init__(self, predictor: Predictor, workload: Workload) -> None:
        super().__init__(predictor, workload, lambda: np.arange(len(workload) // 2))
        self.output_tokens = workload.output_tokens


def _score(asked: _Asked, ids: Integers, generated: Integers, width: int) -> Score:
    truth = asked.output_tokens[ids] - generated
    estimate, spread = asked.remaining(ids, generated), asked.spread(ids, generated)
    error = estimate - truth
    is_flat = bool(np.all(estimate == estimate[0]))
    total = np.maximum(np.rint(estimate + generated), 1) - 1
    return Score(
        mae=float(np.mean(np.abs(error))),
        bias=float(np.mean(error)),
        rank=float("nan") if is_flat else float(spearmanr(estimate, truth).statistic),
        bucket=float(np.mean(total // width == (truth + generated - 1) // width)),
        within=float(np.mean(np.abs(error) <= spread)) if not np.isnan(spread).any() else float("nan"),
    )
