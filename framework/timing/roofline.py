"""Step times from peak FLOP/s and bandwidth alone: no measurement, within some tens of percent of one.

The closed forms below are the roofline model (Williams, Waterman, Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009) for a transformer decoder. `mfu` and `mbu` are the
fractions of peak FLOP/s and of peak bandwidth that kernels reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from framework.hardware import Gpu, Model
from framework.timing.step import Curve, StepRow
from framework.validate import require_at_least, require_share

_REDUCTIONS_PER_LAYER = 2  # after attention and after the MLP


def ridge_flops_per_byte(peak_flops: float, bandwidth_bytes_s: float) -> float:
    """Arithmetic intensity (FLOP/byte) above which a kernel is limited by compute instead of bandwidth."""
    return peak_flops / bandwidth_bytes_s


def attainable_flops(intensity: float, peak_flops: float, bandwidth_bytes_s: float) -> float:
    """FLOP/s of a kernel of that arithmetic intensity (FLOP/byte)."""
    return min(peak_flops, bandwidth_bytes_s * intensity)


def prefill_s(parameters: float, tokens: int, peak_flops: float, mfu: float) -> float:
    """Seconds to prefill `tokens`: 2 FLOP per weight and token, attention not counted."""
    return 2 * parameters * tokens / (peak_flops * mfu)


def tpot_s(
    weight_bytes: float, bandwidth_bytes_s: float, batch: int = 1, kv_bytes_per_request: float = 0.0, mbu: float = 1.0
) -> float:
    """Seconds of a decode step limited by bandwidth: weights are read once for the batch, KV once for each request."""
    return (weight_bytes + batch * kv_bytes_per_request) / (bandwidth_bytes_s * mbu)


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int, dtype_bytes: int) -> int:
    """Bytes of the keys and values of `tokens` tokens: 2 L n_kv d_h s b."""
    return 2 * layers * kv_heads * head_dim * tokens * dtype_bytes


def attention_flops(model: Model, prefix: int, chunk: int) -> float:
    """FLOPs of causal attention of `chunk` tokens after `prefix`: scores and weighted sum, 2 FLOP each per pair."""
    pairs = ((prefix + chunk) ** 2 - prefix**2) / 2
    return 4.0 * model.layers * model.heads * model.head_dim * pairs


def prefill_mfu(model: Model, tokens: int, time_s: float, peak_flops: float) -> float:
    """Fraction of the peak that prefilling one prompt in `time_s` reached: attention counts, embeddings do not."""
    flops = 2.0 * model.non_embedding_parameters * tokens + attention_flops(model, 0, tokens)
    return flops / (time_s * peak_flops)


def all_reduce_s(message_bytes: float, tp: int, link_bytes_s: float) -> float:
    """Seconds of a ring all-reduce over `tp` GPUs, latency apart: each sends 2 (tp - 1) / tp of the message."""
    return 2 * (tp - 1) / tp * message_bytes / link_bytes_s


@dataclass(frozen=True)
class Roofline:
    """Linear layers and output projection take the longer of compute and weight traffic, prefill attention is compute,
    decode attention is KV traffic, all divided over `tp` GPUs; two ring all-reduces a layer join the GPUs.

    `mfu` and `mbu`: fractions of peak FLOP/s and bandwidth; `overhead_s`: of every step (launches, sampling,
    scheduling); `all_reduce_latency_s`: of every all-reduce. Where a chunk is short and its prefix long, prefill
    attention is limited by KV traffic, which is not counted. Raises InputError for values out of range.
    """

    mfu: float = 0.65
    mbu: float = 0.8
    overhead_s: float = 0.0005
    all_reduce_latency_s: float = 15e-6
    source: str = "roofline"

    def __post_init__(self) -> None:
        require_share("timing.mfu", self.mfu)
        require_share("timing.mbu", self.mbu)
        require_at_least("timing.overhead_s", self.overhead_s, 0)
        require_at_least("timing.all_reduce_latency_s", self.all_reduce_latency_s, 0)

    def row(self, model: Model, gpu: Gpu, tp: int) -> StepRow:
        """Step times of `model` on `tp` GPUs; InputError where the GPU states no peak for the model's data type."""
        flops = gpu.peak(model.dtype_bytes) * self.mfu * tp
        bandwidth = gpu.bandwidth_bytes_s * self.mbu * tp
        reductions = _REDUCTIONS_PER_LAYER * model.layers if tp > 1 else 0
        hidden_bytes = model.hidden * model.dtype_bytes
        return StepRow(
            base_s=self.overhead_s + reductions * self.all_reduce_latency_s,
            prefill_quadratic_s=attention_flops(model, 0, 1) / flops,
            per_context_token_s=model.kv_bytes_per_token / bandwidth,
            linear=_matrix(
                model.non_embedding_parameters,
                model.dtype_bytes,
                flops,
                bandwidth,
                reductions * all_reduce_s(hidden_bytes, tp, gpu.link_bytes_s),
            ),
            logits=_matrix(model.output_parameters, model.dtype_bytes, flops, bandwidth, 0.0),
        )


def _matrix(parameters: int, dtype_bytes: int, flops: float, bandwidth: float, extra_s: float) -> Curve:
    """Seconds over rows that meet `parameters` weights: the longer of reading and computing, plus extra_s a row."""
    read_s = parameters * dtype_bytes / bandwidth
    row_s = 2 * parameters / flops
    ridge = max(read_s / row_s, 2.0)
    knots = (1.0, ridge, 2 * ridge)
    return Curve(knots, tuple(max(read_s, row_s * rows) + extra_s * rows for rows in knots))
