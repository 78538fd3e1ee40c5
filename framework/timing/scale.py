"""Step times of a GPU that nobody measured, from those of a GPU that is like it.

Every part of a step is multiplied, knot by knot, by the ratio of the two GPUs' roofline times of that part: the GPU is
assumed to use its compute and its bandwidth as well as the measured one does. What does not depend on the size of the
work (launches, the latency of a message) stays as it was measured.

One thing is corrected, since it was measured on all of them: the share of the datasheet's tensor peak that large bf16
matrix products reach. The L40S reaches 0.64 (median of the vllm 0.24.0 kernel tables, m >= 2048, n and k >= 4096): its
power limit holds it back. The others, PyTorch, 8192 x 8192 (github.com/zzc0721/torch-performance-test-data, issues 107,
126 and 140): L20 114.1 of 119.5 TFLOP/s, A10G 66.6 of 70, V100 97.4 of 125 in fp16; A100 0.90 (vllm 0.14.0 tables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.model import Model
from framework.timing.curves import Curve, FloatArray, Surface
from framework.timing.profile import NODE_GPUS, StepParts

_ATTENTION_DTYPE = "bf16"  # what attention is computed in, whatever the cache holds


@dataclass(frozen=True)
class ScalingSource:
    """The GPU whose measurement is scaled to another one.

    `tensor_gain` is the share of its tensor peak that the other one reaches over the share that `gpu` reaches. `known`
    says why this source was chosen, and what it cannot show.
    """

    gpu: str
    tensor_gain: float
    known: str


SCALING_SOURCES: Mapping[str, ScalingSource] = {
    "l20": ScalingSource("l40s", 0.955 / 0.64, "the same AD102 chip and the same memory, fewer and slower units"),
    "a10g": ScalingSource(
        "l40s",
        0.951 / 0.64,
        "like compute capability 8.9, 8.6 has 48 warps and 100 KB of shared memory per multiprocessor (A100: 64 and"
        " 164; NVIDIA Ampere Tuning Guide, 1.4.1.1 and 1.4.2.3), GDDR6 and no NVLink; its L2 is 6 MB instead of 96 MB",
    ),
    "a100_pcie": ScalingSource("a100", 1.0, "the same chip with slower memory; its limit of 300 W is not shown"),
    "h800": ScalingSource("h100", 1.0, "the same chip and memory, with fewer NVLink lanes"),
    "v100": ScalingSource(
        "a100",
        0.779 / 0.90,
        "a generation older: tensor cores for fp16 only, and attention kernels of today do not run on it",
    ),
}


def scaled(parts: StepParts, model: Model, measured: Gpu, target: Gpu, tensor_gain: float = 1.0) -> StepParts:
    """The parts of a step of `model` on `target`, from those on `measured`, which `scaled_from` of the result names.

    `tensor_gain` is as in `ScalingSource`. Raises InputError where the target cannot compute in the weights' type.
    """
    ratios = _Ratios(parts, model, measured, target, tensor_gain)
    rows = {
        "gemm": parts["gemm"].mapped(linear=partial(_times, ratio_at=ratios.gemm)),
        "experts": parts["experts"].mapped(linear=partial(_times, ratio_at=ratios.experts)),
        "elementwise": parts["elementwise"].mapped(linear=partial(_times_above_floor, ratio=ratios.bandwidth)),
        "communication": parts["communication"].mapped(linear=partial(_times_above_floor, ratio=ratios.link)),
        "prefill_attention": parts["prefill_attention"].mapped(attention=partial(_times, ratio_at=ratios.prefill)),
        "decode_attention": parts["decode_attention"].mapped(
            decode=partial(_times_above_floor, ratio=ratios.decode), skew_s=lambda skew_s: skew_s * ratios.decode
        ),
        "logits": parts["logits"].mapped(logits=partial(_times, ratio_at=ratios.logits)),
    }
    return StepParts(parts.setup, dict(parts.rows) | rows, scaled_from=measured.name)


def same_speed(gpu: Gpu, other: Gpu) -> bool:
    """Whether two datasheets agree in all that step times depend on."""
    names = ("peak_flops", "bandwidth_bytes_s", "link_bytes_s")
    return all(getattr(gpu, name) == getattr(other, name) for name in names)


def _times(curve: Curve, ratio_at: Callable[[FloatArray], FloatArray]) -> Curve:
    """The curve multiplied by a ratio that depends on the knot; a curve that is 0 everywhere stays."""
    values = np.asarray(curve.values)
    return curve.with_values(values * ratio_at(np.asarray(curve.knots))) if values.any() else curve


def _times_above_floor(times: Curve | Surface, ratio: float) -> Curve | Surface:
    """The times with all but the smallest, which is what a launch or a message costs, multiplied."""
    values = np.asarray(times.values)
    floor = values.min()
    return times.with_values(floor + (values - floor) * ratio)


class _Ratios:
    """Ratios of roofline times, target to measured GPU: one for each knot, or one for all where only bytes count."""

    def __init__(self, parts: StepParts, model: Model, measured: Gpu, target: Gpu, tensor_gain: float) -> None:
        self._setup = parts.setup
        self._model = model
        self._gpus = ((measured, 1.0), (target, tensor_gain))
        self.bandwidth = measured.bandwidth_bytes_s / target.bandwidth_bytes_s
        # The network between nodes is the slower part of the way.
        link = "nic_bytes_s" if self._setup.parallelism.stage_gpus > NODE_GPUS else "link_bytes_s"
        self.link = getattr(measured, link) / getattr(target, link)
        self.decode = self._decode()

    def gemm(self, tokens: FloatArray) -> FloatArray:
        """Each weight is read once and multiplied once for each token that a GPU computes."""
        parallelism, dtype = self._setup.parallelism, self._setup.dtype
        rows = tokens / (parallelism.dp * parallelism.pp)
        return self._ratio(2 * rows, np.full_like(rows, DTYPE_BYTES[dtype]), dtype)

    def experts(self, tokens: FloatArray) -> FloatArray:
        """Per expert: it is read if any token comes, and multiplied once for each that comes."""
        experts = self._model.experts
        if experts is None:
            raise InputError(f"model {self._model.name} has no experts, but its profile has times for them")
        rows = tokens / self._setup.parallelism.pp
        share = experts.per_token / experts.count
        touched = 1 - (1 - share) ** rows
        dtype = self._setup.expert_dtype
        return self._ratio(2 * rows * share, touched * DTYPE_BYTES[dtype], dtype)

    def prefill(self, lengths: FloatArray) -> FloatArray:
        """Causal attention of a prompt: all pairs are computed; queries, keys, values and results are moved once."""
        flops = self._model.attention_flops_per_pair * lengths**2 / 2
        moved = 2 * self._model.layers * (self._model.heads + self._model.kv_heads) * self._model.head_dim * lengths
        return self._ratio(flops, moved * DTYPE_BYTES[_ATTENTION_DTYPE], _ATTENTION_DTYPE)

    def logits(self, sampled: FloatArray) -> FloatArray:
        """The projection to the vocabulary, which is not held in fewer bits than bf16, is read once."""
        weight_bytes = max(DTYPE_BYTES[self._setup.dtype], DTYPE_BYTES["bf16"])
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
