"""The median output of earlier requests with similar prompt lengths."""

from __future__ import annotations

import numpy as np

from framework.checks import Count, Share, checked
from framework.policy.predictor import Floats, Integers, Predictor
from framework.workload import Workload

_FEW = 20  # longer outputs in a bin, below which all training requests are used
_LOW, _HIGH = 0.1587, 0.8413  # a standard deviation below and above the median of a normal distribution


class ByPrompt(Predictor):
    """Learned from the first `share` of the trace's requests: no hidden states, only the request's own data.

    Prompts are divided into `bins` with equally many training requests. After g generated tokens a request expects the
    median of n - g over the training requests of its bin with n > g. Spread: half the distance between the 16th and the
    84th percentile of the same. The training requests' own lengths are part of its data, so judge it on the others.
    """

    @checked("predictor.")
    def __init__(self, bins: Count = 8, share: Share = 0.5, stride: Count = 20) -> None:
        self.bins = bins
        self.share = share
        self.stride = stride

    def prepare(self, workload: Workload, seed: int) -> None:
        count = max(1, round(self.share * len(workload)))
        prompts, outputs = workload.input_tokens[:count], workload.output_tokens[:count]
        edges = np.quantile(prompts, np.arange(1, self.bins) / self.bins)
        self._bin = np.searchsorted(edges, workload.input_tokens)
        self._all = np.sort(outputs)
        own = self._bin[:count]
        self._lengths = [np.sort(outputs[own == one]) for one in range(self.bins)]

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        remaining, spread = np.empty(len(requests)), np.empty(len(requests))
        bins = self._bin[requests]
        for one in np.unique(bins):
            at = np.flatnonzero(bins == one)
            remaining[at], spread[at] = self._of(self._lengths[one], generated[at])
        return remaining, spread

    def _of(self, lengths: Integers, generated: Integers) -> tuple[Floats, Floats]:
        left = len(lengths) - np.searchsorted(lengths, generated, side="right")
        own, every = _residual(lengths, generated), _residual(self._all, generated)
        median, spread = (np.where(left < _FEW, b, a) for a, b in zip(own, every, strict=True))
        return median, spread


def _residual(lengths: Integers, generated: Integers) -> tuple[Floats, Floats]:
    """Median and spread of n - g over the sorted `lengths` n > g; 1 and 0 beyond the longest."""
    first = np.searchsorted(lengths, generated, side="right")
    left = len(lengths) - first
    if len(lengths) == 0:
        return np.ones(len(generated)), np.zeros(len(generated))
    low, median, high = (
        lengths[np.minimum(first + (share * left).astype(np.int64), len(lengths) - 1)] for share in (_LOW, 0.5, _HIGH)
    )
    there = left > 0
    return np.where(there, median - generated, 1.0), np.where(there, (high - low) / 2, 0.0)
