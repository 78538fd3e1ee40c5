"""Two micro-batches that overlap: while one computes, the other communicates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from framework.timing.curves import Curve, FloatArray
from framework.timing.step_row import StepRow


def in_two_batches(rows: Mapping[str, StepRow]) -> Mapping[str, StepRow]:
    """The parts of a step run as two micro-batches of half the tokens; one communicates while the other computes.

    For t > 1 tokens that takes 2 max(C(t / 2), X(t / 2)) seconds, with C for matrices, experts and elementwise kernels
    and X for communication (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.1). Weights are read twice.
    Attention, which depends on more than tokens, hides nothing here.
    """
    over_tokens = {part: row.linear for part, row in rows.items() if row.linear is not None}
    knots = np.unique(np.concatenate([curve.knots for curve in over_tokens.values()]))
    tokens = np.unique(np.concatenate([knots, [2.0], 2.0 * knots]))
    halves_s = {part: _in_halves(tokens, curve) for part, curve in over_tokens.items()}
    sent_s = halves_s["communication"]
    hidden_s = halves_s["gemm"] + halves_s["experts"] + halves_s["elementwise"]
    seen_s = np.where(tokens > 1, np.maximum(sent_s - hidden_s, 0.0), sent_s)
    seen_s[-1] = max(seen_s[-1], seen_s[-2])  # the last segment continues, and must not lead below 0
    curves = halves_s | {"communication": seen_s}
    return {**rows, **{part: replace(rows[part], linear=Curve.of(tokens, values)) for part, values in curves.items()}}


def _in_halves(tokens: FloatArray, curve: Curve) -> FloatArray:
    """Twice the curve at half of `tokens`; for one token, the curve once."""
    return np.where(tokens > 1, 2.0, 1.0) * curve.at(np.where(tokens > 1, 0.5 * tokens, tokens))
