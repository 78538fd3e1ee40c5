"""A token's time against the batch: of a served 7B, by an affine fit, by the textbook's formula, of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.textbook.machine import Machine

BATCH_POINTS = ((1, 0.030), (8, 0.035), (32, 0.045), (64, 0.060))  # sequences, seconds a token of a served 7B
CONTEXT = 1024  # tokens, which the figures above do not state


@dataclass(frozen=True)
class Batch:
    """The point at `batch`, seconds a token.

    `said_s`: the textbook's figure; `predicted_s`: an affine fit to its other three; `formula_s`: weights and KV over
    the bandwidth; `kernels_s`: measured.
    """

    batch: int
    said_s: float
    predicted_s: float
    formula_s: float
    kernels_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what is said."""
        return self.predicted_s / self.said_s - 1.0


def batches(on: Machine) -> list[Batch]:
    """All points, on a machine that has the model's size."""
    return [_batch(on, batch, said_s) for batch, said_s in BATCH_POINTS]


def _batch(on: Machine, batch: int, said_s: float) -> Batch:
    others = np.array([point for point in BATCH_POINTS if point[0] != batch])
    slope_s, base_s = np.polyfit(others[:, 0], others[:, 1], 1)
    moved = on.model.weight_bytes + batch * CONTEXT * on.model.kv_bytes_per_token
    kernels_s = on.decode(batch, CONTEXT).step_ms / 1e3
    return Batch(batch, said_s, float(base_s + slope_s * batch), moved / on.gpu.bandwidth_bytes_s, kernels_s)
