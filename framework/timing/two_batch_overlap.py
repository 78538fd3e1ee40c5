"""Other ways of running a mixture of experts: another load of its GPUs, and two micro-batches that overlap.

Both turn the parts of a step as they were measured into those of the other way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.timing.calibration_terms import Calibration
from framework.timing.curves import Curve, FloatArray
from framework.timing.profile import NODE_GPUS, StepParts


def with_expert_load(parts: StepParts, load: float) -> StepParts:
    """The parts of a step where the GPU that has most tokens of a layer has `load` times as many as was measured.

    A layer ends with that GPU: its experts take `load` times as long, and so do dispatch and combine where they cross
    nodes. The routing that was measured is uneven itself (framework.timing.kernels.operations), so that 1 changes
    nothing. Within a node every GPU gathers all tokens, whatever experts they choose.
    """
    parallelism = parts.setup.parallelism
    crosses = parallelism.dp > 1 and parallelism.ep > NODE_GPUS
    rows = {
        "experts": parts["experts"].times(load),
        "communication": parts["communication"].times(load if crosses else 1.0),
    }
    return replace(parts, rows=dict(parts.rows) | rows)


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
