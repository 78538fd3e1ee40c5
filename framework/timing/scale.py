"""Step times of a GPU that nobody measured, from those of a GPU that is like it.

Every part is multiplied, knot by knot, by the ratio of the two GPUs' roofline times of that part: the GPU is taken to
use its compute and its bandwidth as well as its neighbour does. What does not depend on the size of the work (launches,
the latency of a message) stays as it was measured.

One thing is corrected, since it was measured on all of them: the share of the datasheet's tensor peak that large bf16
matrix products reach. The L40S reaches 0.64 (median of the vllm 0.24.0 kernel tables, m >= 2048, n and k >= 4096): its
power limit holds it back. The others, PyTorch, 8192 x 8192 (github.com/zzc0721/torch-performance-test-data, issues 107,
126 and 140): L20 114.1 of 119.5 TFLOP/s, A10G 66.6 of 70, V100 97.4 of 125 in fp16; A100 0.90 (vllm 0.14.0 tables).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.model import Model
from framework.timing.profile import FloatArray, Parts
from framework.timing.two_batch_overlap import NODE_GPUS

_ATTENTION_DTYPE = "bf16"  # what attention is computed in, whatever the cache holds


@dataclass(frozen=True)
class Neighbour:
    """The GPU whose measurement is scaled, and how much more of its tensor peak the scaled GPU reaches.

    `known`: why this neighbour, and what it cannot show.
    """

    gpu: str
    tensor_gain: float
    known: str


NEIGHBOURS: Mapping[str, Neighbour] = {
    "l20": Neighbour("l40s", 0.955 / 0.64, "the same AD102 chip and the same memory, fewer and slower units"),
    "a10g": Neighbour(
        "l40s",
        0.951 / 0.64,
        "like compute capability 8.9, 8.6 has 48 warps and 100 KB of shared memory per multiprocessor (A100: 64 and"
        " 164; NVIDIA Ampere Tuning Guide, 1.4.1.1 and 1.4.2.3), GDDR6 and no NVLink; its L2 is 6 MB instead of 96 MB",
    ),
    "a100_pcie": Neighbour("a100", 1.0, "the same chip with slower memory; its limit of 300 W is not shown"),
    "h800": Neighbour("h100", 1.0, "the same chip and memory, with fewer NVLink lanes"),
    "v100": Neighbour(
        "a100",
        0.779 / 0.90,
        "a generation older: tensor cores for fp16 only, and attention kernels of today do not run on it",
    ),
}


def scaled(parts: Parts, model: Model, measured: Gpu, target: Gpu, tensor_gain: float = 1.0) -> Parts:
    """Parts of `model` on `target`, from those on `measured`; `scaled_from` names it.

    `tensor_gain`: how much more of its peak FLOP/s the target reaches. InputError where the target cannot compute in
    the weights' type.
    """
    scale = _Scale(parts, model, measured, target, tensor_gain)
    return replace(
        parts,
        gemm_s=parts.gemm_s * scale.gemm(parts.tokens),
        experts_s=parts.experts_s * scale.experts(parts.tokens) if parts.experts_s.any() else parts.experts_s,
        elementwise_s=_above_floor(parts.elementwise_s, scale.bandwidth),
        communication_s=_above_floor(parts.communication_s, scale.link),
        attention_s=parts.attention_s * scale.prefill(parts.lengths),
        decode_s=_above_floor(parts.decode_s, scale.decode),
        logits_s=parts.logits_s * scale.logits(parts.sampled),
        skew_s=parts.skew_s * scale.decode,
        scaled_from=measured.name,
    )


def same_speed(gpu: Gpu, other: Gpu) -> bool:
    """Whether two datasheets agree in all that step times depend on."""
    names = ("peak_flops", "bandwidth_bytes_s", "link_bytes_s")
    return all(getattr(gpu, name) == getattr(other, name) for name in names)


def _above_floor(times_s: FloatArray, ratio: float) -> FloatArray:
    """Times with all but the smallest, which is what a launch or a message costs, multiplied."""
    floor: float = times_s.min()
    return floor + (times_s - floor) * ratio


class _Scale:
    """Ratios of roofline times, target to measured GPU: one for each knot, or one for all where only bytes count."""

    def __init__(self, parts: Parts, model: Model, measured: Gpu, target: Gpu, tensor_gain: float) -> None:
        self._parts = parts
        self._model = model
        self._gpus = ((measured, 1.0), (target, tensor_gain))
        self.bandwidth = measured.bandwidth_bytes_s / target.bandwidth_bytes_s
        crosses = parts.parallelism.stage_gpus > NODE_GPUS  # the network between nodes is the slower part of the way
        link = "nic_bytes_s" if crosses else "link_bytes_s"
        self.link = getattr(measured, link) / getattr(target, link)
        self.decode = self._decode()

    def gemm(self, tokens: FloatArray) -> FloatArray:
        """Each weight is read once and multiplied once for each token that a GPU computes."""
        parallelism = self._parts.parallelism
        rows = tokens / (parallelism.dp * parallelism.pp)
        return self._ratio(2 * rows, np.full_like(rows, DTYPE_BYTES[self._parts.dtype]), self._parts.dtype)

    def experts(self, tokens: FloatArray) -> FloatArray:
        """Per expert: read if any token comes, multiplied once for each that comes."""
        experts = self._model.experts
        if experts is None:
            raise InputError(f"model {self._model.name} has no experts, but its profile has times for them")
        rows = tokens / self._parts.parallelism.pp
        share = experts.per_token / experts.count
        touched = 1 - (1 - share) ** rows
        dtype = self._parts.expert_dtype
        return self._ratio(2 * rows * share, touched * DTYPE_BYTES[dtype], dtype)

    def prefill(self, lengths: FloatArray) -> FloatArray:
        """Causal attention of a prompt: all pairs are computed, queries, keys, values and results moved once."""
        flops = self._model.attention_flops_per_pair * lengths**2 / 2
        moved = 2 * self._model.layers * (self._model.heads + self._model.kv_heads) * self._model.head_dim * lengths
        return self._ratio(flops, moved * DTYPE_BYTES[_ATTENTION_DTYPE], _ATTENTION_DTYPE)

    def logits(self, sampled: FloatArray) -> FloatArray:
        weight_bytes = max(DTYPE_BYTES[self._parts.dtype], DTYPE_BYTES["bf16"])
        return self._ratio(2 * sampled, np.full_like(sampled, weight_bytes), "bf16")

    def _decode(self) -> float:
        """Each cached token is read once and computed with once."""
        flops = np.array([self._model.attention_flops_per_pair])
        moved = np.array([max(self._model.kv_bytes_per_token, 1.0)])
        return float(self._ratio(flops, moved, _ATTENTION_DTYPE)[0])

    def _ratio(self, flops: FloatArray, moved_bytes: FloatArray, dtype: str) -> FloatArray:
        measured_s, target_s = (
            np.maximum(flops / (gpu.peak(dtype) * gain), moved_bytes / gpu.bandwidth_bytes_s)
            for gpu, gain in self._gpus
        )
        ratio: FloatArray = target_s / measured_s
        return ratio
