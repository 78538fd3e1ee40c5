"""A predictor: each request is expected to reach the mean length of the finished requests.

python run.py policy=ares predictor=examples/running_mean.py:RunningMean
"""

import numpy as np

import servelab


class RunningMean(servelab.Predictor):
    """`prior_tokens`: the mean before anything has finished; it counts for one request ever after."""

    stride = 16

    def __init__(self, prior_tokens: float = 250.0) -> None:
        self.count, self.tokens = 1, prior_tokens

    def observe(self, request, output_tokens):
        self.count += 1
        self.tokens += output_tokens

    def predict(self, requests, generated):
        remaining = np.maximum(self.tokens / self.count - generated, 1.0)
        return remaining, remaining
