"""Measured parts of a step as other ways of running a mixture of experts make them: its load, two micro-batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.timing.calibration_terms import Calibration
from framework.timing.profile import FloatArray, Parts

NODE_GPUS = 8  # as in framework.timing.kernels.operations, which would load what reads kernel tables


def with_expert_load(parts: Parts, load: float) -> Parts:
    """Experts take `load` times as long, and so does the way to and from them where it crosses nodes.

    A layer ends with the GPU that has most tokens: `load` is that GPU's share over its share in the routing that was
    measured, which is uneven itself (`kernels.operations`), so that 1 changes nothing. Within a node every GPU
    gathers all tokens, whatever they choose.
    """
    crosses = parts.parallelism.dp > 1 and parts.parallelism.ep > NODE_GPUS
    exchange = load if crosses else 1.0
    return replace(parts, experts_s=load * parts.experts_s, communication_s=exchange * parts.communication_s)


def in_two_batches(parts: Parts, calibration: Calibration) -> Parts:
    """Steps run as two micro-batches of half the tokens each, the communication of one behind the compute of the other.

    Of t > 1 tokens that takes 2 max(C(t / 2), X(t / 2)), where C are matrices, experts and elementwise kernels and X is
    communication, as the calibration has them (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.1). Weights
    are read twice. Attention, which depends on more than tokens, hides nothing here.
    """
    tokens = np.unique(np.concatenate([parts.tokens, [2.0], 2.0 * parts.tokens]))
    gemm_s, experts_s, elementwise_s, exchange_s = (
        _in_halves(tokens, parts.tokens, curve)
        for curve in (parts.gemm_s, parts.experts_s, parts.elementwise_s, parts.communication_s)
    )
    hidden_s = calibration.kernel / calibration.communication * (gemm_s + experts_s + elementwise_s)
    seen_s = np.where(tokens > 1, np.maximum(exchange_s - hidden_s, 0.0), exchange_s)
    seen_s[-1] = max(seen_s[-1], seen_s[-2])  # the last segment goes on, and must not lead below 0
    return replace(
        parts,
        tokens=tokens,
        gemm_s=gemm_s,
        experts_s=experts_s,
        elementwise_s=elementwise_s,
        communication_s=seen_s,
    )


def _in_halves(tokens: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Twice a curve at half of so many tokens, but of one token once; the last segment goes on."""
    times, xs = np.where(tokens > 1, 2.0, 1.0), np.where(tokens > 1, 0.5 * tokens, tokens)
    slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    return np.asarray(times * (np.interp(xs, knots, values) + slope * np.maximum(xs - knots[-1], 0.0)))
