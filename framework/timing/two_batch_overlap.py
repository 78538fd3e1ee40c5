"""Two micro-batches that overlap: while one computes, the other communicates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.timing.calibration_terms import Calibration
from framework.timing.curves import Curve, FloatArray
from framework.timing.profile import StepParts


def in_two_batches(parts: StepParts, calibration: Calibration) -> StepParts:
    """The parts of a step run as two micro-batches of half the tokens, one communicating while the other computes.

    Of t > 1 tokens that takes 2 max(C(t / 2), X(t / 2)) seconds, where C are matrices, experts and elementwise kernels
    and X is communication, as the calibration has them (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.1).
    Weights are read twice. Attention, which depends on more than tokens, hides nothing here.
    """
    knots = np.asarray(parts.over_tokens["gemm"].knots)
    tokens = np.unique(np.concatenate([knots, [2.0], 2.0 * knots]))
    halves_s = {part: _in_halves(tokens, curve) for part, curve in parts.over_tokens.items()}
    sent_s = halves_s["communication"]
    computed_s = halves_s["gemm"] + halves_s["experts"] + halves_s["elementwise"]
    hidden_s = calibration.kernel / calibration.communication * computed_s
    seen_s = np.where(tokens > 1, np.maximum(sent_s - hidden_s, 0.0), sent_s)
    seen_s[-1] = max(seen_s[-1], seen_s[-2])  # the last segment goes on, and must not lead below 0
    curves = halves_s | {"communication": seen_s}
    rows = {part: replace(parts[part], linear=Curve.of(tokens, values)) for part, values in curves.items()}
    return replace(parts, rows=dict(parts.rows) | rows)


def _in_halves(tokens: FloatArray, curve: Curve) -> FloatArray:
    """Twice the curve at half of so many tokens, but of one token once."""
    return np.where(tokens > 1, 2.0, 1.0) * curve.at(np.where(tokens > 1, 0.5 * tokens, tokens))
