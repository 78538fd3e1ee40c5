"""Seconds of whole steps in the full tables of kernels, against which those between the knots of a profile are held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framework.timing.curves import FloatArray
from framework.timing.kernels.step_cost import StepCost


def exact_step_s(cost: StepCost, chunks: Sequence[tuple[int, int]], decodes: int, context: int, sampled: int) -> float:
    """Seconds of a step of chunks (prefix, tokens) and `decodes` sequences of `context` tokens in all.

    Chunks of equal length are evaluated as one batch; one after a prefix costs (1 - p^2 / (p + s)^2) of a whole
    prompt of p + s tokens, and the difference between prompts of p + s and p tokens in bounded layers.
    """
    tokens = sum(tokens for _, tokens in chunks) + decodes
    time_s = cost.base_s + float(cost.linear_s(_of(tokens)))
    if sampled:
        time_s += float(cost.logits_s(_of(sampled)))
    if chunks:
        time_s += cost.copies_s
    lengths, counts = np.unique([prefix + tokens for prefix, tokens in chunks], return_counts=True)
    for length, count in zip(lengths, counts, strict=True):
        prefixes = [prefix for prefix, tokens in chunks if prefix + tokens == length]
        whole_s, bounded_s = _prompts_s(cost, count, length)
        time_s += (whole_s - bounded_s) * float(np.mean([1.0 - (prefix / length) ** 2 for prefix in prefixes]))
        time_s += bounded_s - sum(_prompts_s(cost, 1, prefix)[1] for prefix in prefixes if prefix)
    if decodes:
        time_s += float(cost.decode_s(_of(decodes), _of(context)))
    return time_s


def _prompts_s(cost: StepCost, count: int, length: int) -> tuple[float, float]:
    """Seconds of attention of whole prompts, and of these those in bounded layers."""
    whole_s = float(cost.prefill_s(_of(count), _of(length)))
    return whole_s, whole_s * float(cost.attention.bounded_share(_of(length)))


def _of(size: int) -> FloatArray:
    return np.asarray(float(size))
