"""Step times of an unmeasured GPU, from those of a similar GPU.

Every part of a step is multiplied, knot by knot, by the ratio of the two GPUs' roofline times of that part: the GPU is
assumed to use its compute and its bandwidth as well as the measured one. Costs that do not depend on the size of the
work (launches, the latency of a message) stay as measured.

conf/gpu names that GPU (`neighbour`). One thing is corrected if it was measured on both (`tensor_gain` there): the
share of the datasheet's tensor peak that large bf16 matrix products reach. The L40S reaches 0.64 (median of the vllm
0.24.0 kernel tables, m >= 2048, n and k >= 4096), because of its power limit. With PyTorch and matrices of 8192 x 8192
(github.com/zzc0721/torch-performance-test-data, issues 107, 126 and 140) the L20 reaches 114.1 of 119.5 TFLOP/s, the
A10G 66.6 of 70, and the V100 97.4 of 125 in fp16. The A100 reaches 0.90 (vllm 0.14.0 tables).

The share of the bandwidth (`bandwidth_gain`) is also corrected for a card whose memory has no ECC, scaled from one that
has it: the L40S reads the weights of Llama-3.1-8B for one token at 0.824 of its bandwidth (same tables), and an RTX
4090 copies at 0.914 to 0.916 of its own (921 GB/s: clpeak, issue 106; 922 to 924: tinygrad/open-gpu-kernel-modules,
issue 6). Copies of the L40S reach 0.75, so kernels other than matrix products gain more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, FloatArray, Surface
from framework.timing.profile import StepParts

_ATTENTION_DTYPE = "bf16"  # the type of attention's computation, for any cache format


@dataclass(frozen=True)
class Gains:
    """The shares of its tensor peak and of its bandwidth that a GPU reaches, divided by those of the measured one."""

    tensor: float = 1.0
    bandwidth: float = 1.0


def scaled(parts: StepParts, model: Model, measured: Gpu, target: Gpu, gains: Gains | None = None) -> StepParts:
    """The parts of a step of `model` on `target`, from those on `measured`, which `scaled_from` of the result names.

    The target has no `gains` by default. Raises InputError if the target cannot compute in the weights' type.
    """
    ratios = _Ratios(parts, model, measured, target, gains or Gains())
    rows = {
        "gemm": parts["gemm"].mapped(linear=partial(_times, ratio_at=ratios.gemm)),
        "experts": parts["experts"].mapped(linear=partial(_times, ratio_at=ratios.experts)),
        "elementwise": parts["elementwise"].mapped(linear=partial(_times_above_floor, ratio=ratios.bandwidth)),
        "communication": parts["communication"].mapped(linear=partial(_times_above_floor, ratio=ratios.link)),
        "prefill_attention": parts["prefill_attention"].mapped(
            attention=partial(_times, ratio_at=ratios.prefill),
            bounded=lambda curve: _times(curve, ratios.prefill).rising(),
            tile_row_s=lambda time_s: time_s * ratios.multiprocessors,
            tile_pair_s=ratios.tile_pair_s,
        ),
        "decode_attention": parts["decode_attention"].mapped(
            decode=partial(_times_above_floor, ratio=ratios.decode), skew_s=lambda skew_s: skew_s * ratios.decode
        ),
        "logits": parts["logits"].mapped(logits=partial(_times, ratio_at=ratios.logits)),
    }
    return replace(parts, rows=dict(parts.rows) | rows, scaled_from=measured.name)


def same_speed(gpu: Gpu, other: Gpu) -> bool:
    """Whether two datasheets agree in everything that step times depend on."""
    types = set(gpu.peak_flops) & set(other.peak_flops)
    peaks = all(gpu.peak_flops[name] == other.peak_flops[name] for name in types)
    return peaks and all(getattr(gpu, name) == getattr(other, name) for name in ("bandwidth_bytes_s", "link_bytes_s"))


def _times(curve: Curve, ratio_at: Callable[[FloatArray], FloatArray]) -> Curve:
    """The curve multiplied by a ratio that depends on the knot; a curve that is 0 everywhere stays.

    If the target gains most from large work, its last segment is flat instead of falling.
    """
    values = np.asarray(curve.values)
    if not values.any():
        return curve
    values = values * ratio_at(np.asarray(curve.knots))
    values[-1] = max(values[-1], values[-2])
    return curve.with_values(values)


def _times_above_floor(times: Curve | Surface, ratio: float) -> Curve | Surface:
    """The times with everything above the smallest multiplied; the smallest is the cost of a launch or a message."""
    values = np.asarray(times.values)
    floor = values.min()
    return times.with_values(floor + (values - floor) * ratio)


def _link_bytes_s(gpu: Gpu, parallelism: Parallelism) -> float:
    """The bandwidth of the slowest part of the way between the GPUs of a stage, in bytes/s of each GPU."""
    if parallelism.stage_gpus > gpu.linked_gpus:
        return gpu.nic_bytes_s
    return gpu.link_bytes_s * gpu.link_efficiency


class _Ratios:
    """Ratios of roofline times, target to measured GPU: one for each knot, or one for all if only bytes count."""

    def __init__(self, parts: StepParts, model: Model, measured: Gpu, target: Gpu, gains: Gains) -> None:
        self._setup = parts.setup
        self._model = model
        self._gpus = ((measured, Gains()), (target, gains))
        self.bandwidth = measured.bandwidth_bytes_s / (target.bandwidth_bytes_s * gains.bandwidth)
        measured_link, target_link = (_link_bytes_s(gpu, parts.setup.parallelism) for gpu in (measured, target))
        self.link = measured_link / target_link
        self.decode = self._decode()
        # Latencies at the ends of a tile are hidden by more multiprocessors, not by faster ones.
        self.multiprocessors = (measured.multiprocessors or 1) / (target.multiprocessors or 1)
        if measured.multiprocessors is None or target.multiprocessors is None:
            self.multiprocessors = self._products

    def gemm(self, tokens: FloatArray) -> FloatArray:
        """The ratio for matrices: each weight is read once and multiplied once for each token that a GPU computes."""
        parallelism, dtype = self._setup.parallelism, self._setup.dtype
        rows = tokens / (parallelism.dp * parallelism.pp)
        return self._ratio(2 * rows, np.full_like(rows, DTYPE_BYTES[dtype]), dtype)

    def experts(self, tokens: FloatArray) -> FloatArray:
        """The ratio for experts: each is read if any token comes, and multiplied once for each that comes."""
        experts = self._model.experts
        if experts is None:
            raise InputError(f"model {self._model.name} has no experts, but its profile has times for them")
        rows = tokens / self._setup.parallelism.pp
        share = experts.per_token / experts.count
        touched = 1 - (1 - share) ** rows
        dtype = self._setup.expert_dtype
        return self._ratio(2 * rows * share, touched * DTYPE_BYTES[dtype], dtype)

    def prefill(self, lengths: FloatArray) -> FloatArray:
        """The ratio for causal attention of a prompt: all pairs are computed; queries, keys, values and results are
        moved once.
        """
        flops = self._model.attention_flops_per_pair * lengths**2 / 2
        moved = 2 * self._model.layers * (self._model.heads + self._model.kv_heads) * self._model.head_dim * lengths
        return self._ratio(flops, moved * DTYPE_BYTES[_ATTENTION_DTYPE], _ATTENTION_DTYPE)

    def tile_pair_s(self, time_s: float) -> float:
        """The time of a row of a tile for each key: products, plus the work outside tensor cores.

        The warps of a tile do one after the other. If the measured GPU reaches less of its tensor peak, its clock is
        lower, so all of it is slower.
        """
        (measured, _), (target, gains) = self._gpus
        if measured.multiprocessors is None or target.multiprocessors is None:
            return time_s * self._products
        parallelism = self._setup.parallelism
        flops = self._model.attention_flops_per_pair / parallelism.gpus
        products_s = flops * gains.tensor / measured.peak(_ATTENTION_DTYPE)
        others_s = max(time_s - products_s, 0.0) * self.multiprocessors / gains.tensor
        return min(products_s, time_s) * self._products + others_s

    @property
    def _products(self) -> float:
        """The ratio of attention's time if only its products counted."""
        return float(self._ratio(np.ones(1), np.zeros(1), _ATTENTION_DTYPE)[0])

    def logits(self, sampled: FloatArray) -> FloatArray:
        """The ratio for the projection to the vocabulary, which has at least bf16 and is read once."""
        weight_bytes = max(DTYPE_BYTES[self._setup.dtype], DTYPE_BYTES["bf16"])
        return self._ratio(2 * sampled, np.full_like(sampled, weight_bytes), "bf16")

    def _decode(self) -> float:
        """The ratio for decodes: each cached token is read once and computed with once."""
        flops = np.array([self._model.attention_flops_per_pair])
        moved = np.array([max(self._model.kv_bytes_per_token, 1.0)])
        return float(self._ratio(flops, moved, _ATTENTION_DTYPE)[0])

    def _ratio(self, flops: FloatArray, moved_bytes: FloatArray, dtype: str) -> FloatArray:
        measured_s, target_s = (
            np.maximum(
                flops / (gpu.peak(dtype) * gains.tensor), moved_bytes / (gpu.bandwidth_bytes_s * gains.bandwidth)
            )
            for gpu, gains in self._gpus
        )
        ratio: FloatArray = target_s / measured_s
        return ratio
