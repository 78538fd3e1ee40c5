"""True output lengths: the upper bound of prediction."""

from __future__ import annotations

import numpy as np

from framework.policy.predictor import Floats, Integers, Predictor
from framework.workload import Workload


class Oracle(Predictor):
    """Knows exactly how many tokens each request still has to emit; spread 0."""

    stride = 1

    def prepare(self, workload: Workload, seed: int) -> None:
        self._output_tokens = workload.output_tokens

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        remaining = self._output_tokens[requests] - generated
        return remaining.astype(np.float64), np.zeros(len(requests))
