"""What a step's parts cost for one model, GPU, backend, parallelism and data types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.hardware import Parallelism

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Parts:
    """Seconds of a step's parts, over all layers, at knots between which they are affine.

    A step of t tokens (prefill tokens and decodes), chunks (p_i, s_i) of s_i tokens after p_i, b decodes with summed
    context c and n sequences that emit a token costs, with T = attention_s and l_i = p_i + s_i,

        base_s + (gemm_s + experts_s + elementwise_s + communication_s)(t)
        + [attention_floor_s + sum over chunks T(l_i) (1 - p_i^2 / l_i^2)  if there is a chunk]
        + decode_s(b, c) + logits_s(n) + skew_s (b * longest context - c)

    Shapes: `tokens` and the four curves over it (T,); `lengths`, `attention_s` (L,); `batches` (B,), `contexts` (C,),
    summed over the batch, `decode_s` (B, C); `sampled`, `logits_s` (S,). All knots are increasing and begin at 1 or
    below; the last segment of each curve goes on. Limits say where measurement ends: tokens of a step, length of a
    prompt, sequences that emit, and for each batch knot the summed context. `expert_dtype` is `dtype` without experts.
    `scaled_from`: the GPU whose measurement was scaled to this one, "" if it is this GPU's own.
    """

    parallelism: Parallelism
    dtype: str
    expert_dtype: str
    kv_dtype: str
    tokens: FloatArray
    gemm_s: FloatArray
    experts_s: FloatArray
    elementwise_s: FloatArray
    communication_s: FloatArray
    lengths: FloatArray
    attention_s: FloatArray
    attention_floor_s: float
    batches: FloatArray
    contexts: FloatArray
    decode_s: FloatArray
    sampled: FloatArray
    logits_s: FloatArray
    base_s: float
    tokens_limit: float
    length_limit: float
    sampled_limit: float
    context_limits: FloatArray
    skew_s: float = 0.0
    scaled_from: str = ""
