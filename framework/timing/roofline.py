"""Step times from peak FLOP/s and bandwidth alone: without measurement, and within some tens of percent of one.

The closed forms below are the roofline model (Williams, Waterman, Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009) for a transformer decoder. `mfu` and `mbu` are the
fractions of peak FLOP/s and of peak bandwidth that kernels reach.

A GPU may state what its kernels reach by published tables (`gpu.kernels`). A matrix product then takes a constant, the
time to read the matrix and the time to compute, one after the other, as products on MI300X do within 8 % in the mean
(conf/gpu/mi300x.yaml).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from framework.checks import NotNegative, Share, check_fields
from framework.system.gpu import DTYPE_BYTES, Gpu, computes_as
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface
from framework.timing.joint_attention import decode_rows
from framework.timing.step_row import StepRow

_REDUCTIONS_PER_LAYER = 2  # all-reduces: after attention and after the MLP
_ACTIVATION_BYTES = 2.0  # activations stay in bf16 if weights are smaller
_MFU, _MBU = 0.65, 0.8  # shares of the peaks if neither the settings nor the GPU state them
_SPREAD = 2.0  # factor without tables of kernels: the error of MI300X in that case
# Kernels of a layer: queries, keys and values; output; up and gate; down. With experts also their router.
_PRODUCTS, _PRODUCTS_WITH_EXPERTS = 4, 5
# Two norms, rotary embedding, KV written, attention and its reduction, activation. Weights of at most 8 bits also have
# their activations quantised before each product.
_OTHERS = 7
_KNOTS_PER_OCTAVE = 4  # of a prompt's pairs, affine between knots: less than 1 % too many
_LARGEST_BATCH_LOG2 = 10
_LARGEST_STEP_LOG2 = 16  # largest step: beyond 65,536 tokens all experts have long been chosen


def ridge_flops_per_byte(peak_flops: float, bandwidth_bytes_s: float) -> float:
    """The arithmetic intensity (FLOP/byte) above which a kernel is limited by compute instead of bandwidth."""
    return peak_flops / bandwidth_bytes_s


def attainable_flops(intensity: float, peak_flops: float, bandwidth_bytes_s: float) -> float:
    """The FLOP/s that a kernel of that arithmetic intensity (FLOP/byte) can reach."""
    return min(peak_flops, bandwidth_bytes_s * intensity)


def attention_flops(model: Model, prefix: int, chunk: int) -> float:
    """The FLOPs of causal attention of `chunk` tokens after `prefix` tokens; layers with a window do not count."""
    pairs = ((prefix + chunk) ** 2 - prefix**2) / 2
    return model.attention_flops_per_pair * pairs


def all_reduce_s(message_bytes: float, tp: int, link_bytes_s: float) -> float:
    """Seconds of a ring all-reduce over `tp` GPUs, without latency: each GPU sends 2 (tp - 1) / tp of the message."""
    return 2 * (tp - 1) / tp * message_bytes / link_bytes_s


@dataclass(frozen=True)
class Roofline:
    """Step times from peak FLOP/s and bandwidth.

    Linear layers and output projection take the longer of compute and weight traffic, prefill attention is compute, and
    decode attention is KV traffic. All is divided over the GPUs; each layer has two ring all-reduces among the GPUs of
    a stage. Windows, chunks and chosen tokens bound what a query computes and reads.

    Experts are read as far as tokens choose them, evenly and at random. With pp stages, pp micro-batches of equal size
    are in flight and each reads the weights of all stages; dp groups share the tokens and read the same weights. `mfu`
    and `mbu` are the fractions of peak FLOP/s and bandwidth that are reached. `overhead_s` are additional seconds of
    every step (launches, sampling, scheduling), and `all_reduce_latency_s` those of every all-reduce, or those of the
    GPU's link if they are more. For a short chunk with a long prefix, KV traffic limits prefill attention, which is not
    counted. `joint_attention` is as for `Measured`. Raises InputError for values out of range.
    """

    mfu: Share | None = None
    mbu: Share | None = None
    overhead_s: NotNegative = 0.0005
    all_reduce_latency_s: NotNegative = 15e-6
    joint_attention: bool | None = None
    source: str = "roofline"

    def __post_init__(self) -> None:
        check_fields(self, "timing.")

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance. Raises InputError if the GPU states no peak for the model's data types."""
        stage, micro_batches = parallelism.stage_gpus, parallelism.pp
        reach = self._reach(gpu)
        flops = gpu.peak(model.dtype) * reach.mfu[computes_as(model.dtype)] * parallelism.gpus
        bandwidth = gpu.bandwidth_bytes_s * reach.mbu
        reductions = _REDUCTIONS_PER_LAYER * model.layers if stage > 1 else 0
        message_bytes = model.hidden * max(model.dtype_bytes, _ACTIVATION_BYTES)
        reduce_s = (
            reductions * all_reduce_s(message_bytes, stage, gpu.link_bytes_s * gpu.link_efficiency) / micro_batches
        )
        kv_bytes = _growing_bytes(model) * model.kv_share(parallelism.tp)
        sequence_bytes = _sequence_bytes(model, kv_bytes, parallelism.tp)
        groups = parallelism.dp * micro_batches
        read_s = model.dtype_bytes / (bandwidth * parallelism.tp)
        row_flops = model.flops_per_token - 2 * (model.active_parameters - model.shared_parameters)
        linear = _matrix(reach, model.shared_parameters * read_s, row_flops / flops, reduce_s)
        if model.experts is not None:
            linear = linear + _experts(model, gpu, parallelism, reach)
        return StepRow(
            base_s=self.overhead_s + reductions * self._latency_s(gpu, stage) + _floor_s(model, reach),
            prefill_quadratic_s=attention_flops(model, 0, 1) / flops,
            bounded=_bounded(model, flops),
            decode=_local_decodes(model, kv_bytes / (bandwidth * groups)),
            per_context_token_s=kv_bytes * (1 - model.local_layers / model.growing_layers) / (bandwidth * groups),
            per_sequence_s=sequence_bytes / (bandwidth * groups),
            linear=linear,
            decode_rows=decode_rows(gpu, model, self.source, joint=self.joint_attention),
            logits=_matrix(reach, model.output_parameters * read_s, 2 * model.output_parameters / flops, 0.0),
        )

    def _reach(self, gpu: Gpu) -> _Reach:
        """What kernels reach: as the settings say, else as the GPU states, else as kernels of other GPUs do."""
        if gpu.kernels is not None and self.mfu is None and self.mbu is None:
            stated = gpu.kernels
            lowest = min(stated.mfu.values())
            mfu = {computed: stated.mfu.get(computed, lowest) for computed in gpu.peak_flops}
            return _Reach(mfu, stated.mbu, operator.add, stated.product_s, stated.launch_s)
        share = _MFU if self.mfu is None else self.mfu
        return _Reach(dict.fromkeys(gpu.peak_flops, share), _MBU if self.mbu is None else self.mbu, max, 0.0, 0.0)

    def _latency_s(self, gpu: Gpu, stage: int) -> float:
        """Seconds of an all-reduce of a minimal message among the GPUs of a stage."""
        linked_s = 0.0 if gpu.link_latency_s is None else gpu.link_latency_s * (stage - 1)
        return max(self.all_reduce_latency_s, linked_s)


def _growing_bytes(model: Model) -> float:
    """Bytes that a decode reads for each token of its context: keys and values, or the index keys that choose few."""
    return model.kv_bytes_per_token if model.sparse is None else model.full_layers * model.sparse.key_bytes


def _sequence_bytes(model: Model, kv_bytes: float, tp: int) -> float:
    """Bytes that a decode reads on each of `tp` GPUs whatever its context: windows and sparse choices count as full,
    states are read and written. `kv_bytes`: of a token on such a GPU.
    """
    if model.sparse is not None:
        latent = model.kv_bytes_per_token - _growing_bytes(model)
        return model.sparse.top_tokens * latent
    return kv_bytes / model.growing_layers * model.windowed_layers * model.window + 2.0 * model.state_bytes / tp


def _bounded(model: Model, flops: float) -> Curve | None:
    """Seconds of a whole prompt's attention in windows, in chunks and to chosen tokens; None without such layers."""
    each = 4.0 * model.heads * model.head_dim  # FLOPs of a layer for each pair
    kinds = [(model.windowed_layers * each, model.window, 1.0)]
    if model.local is not None:
        kinds.append((model.local.layers * each, model.local.chunk_tokens, 0.5))
    if model.sparse is not None and model.latent is not None:
        chosen = 2.0 * model.heads * (2 * model.latent.kv_rank + model.latent.rope_dim)
        kinds.append((model.layers * chosen, model.sparse.top_tokens, 1.0))
    curves = [_pairs(reach, beyond).times(cost / flops) for cost, reach, beyond in kinds if cost]
    return functools.reduce(operator.add, curves) if curves else None


def _pairs(reach: int, beyond: float) -> Curve:
    """Pairs of a prompt whose tokens see all before them up to `reach`, and later ones `beyond` * reach on average."""
    reach = max(reach, 2)
    knots = np.geomspace(1.0, reach, int(_KNOTS_PER_OCTAVE * np.log2(reach)) + 1)
    return Curve.of(np.append(knots, 2.0 * reach), np.append(knots**2 / 2, (0.5 + beyond) * reach**2))


def _local_decodes(model: Model, token_s: float) -> Surface | None:
    """Seconds of decodes in layers with chunks; `token_s`: of a token of context in all layers that keep it."""
    if model.local is None:
        return None
    batches = np.asarray(2.0 ** np.arange(_LARGEST_BATCH_LOG2 + 1), np.float64)
    size = float(model.local.chunk_tokens)
    contexts = np.unique(np.outer(batches, [1.0, size, size + 1.0, 2.0 * size]))
    seen = batches[:, None] * model.local.seen(contexts[None] / batches[:, None])
    return Surface.of(batches, contexts, token_s * model.local.layers / model.growing_layers * seen)


def spread(gpu: Gpu) -> float:
    """The factor by which steps of a GPU without measurements may take longer, or shorter."""
    return _SPREAD if gpu.kernels is None else gpu.kernels.spread


@dataclass(frozen=True)
class _Reach:
    """What kernels reach: shares of the peaks, by type of computation, and of the bandwidth, and the seconds of any
    kernel.

    `join` gives the time of a product from the seconds for reading its matrix and for computing.
    """

    mfu: Mapping[str, float]
    mbu: float
    join: Callable[[float, float], float]
    product_s: float
    launch_s: float


def _floor_s(model: Model, reach: _Reach) -> float:
    """Seconds of the kernels of all layers for few tokens, without reading matrices."""
    products = _PRODUCTS if model.experts is None else _PRODUCTS_WITH_EXPERTS
    launches = _OTHERS + (products if DTYPE_BYTES[model.dtype] < _ACTIVATION_BYTES else 0)
    return model.layers * (products * reach.product_s + launches * reach.launch_s)


def _experts(model: Model, gpu: Gpu, parallelism: Parallelism, reach: _Reach) -> Curve:
    """Seconds of the experts over tokens: for computing, and for reading those that tokens choose."""
    assert model.experts is not None
    dtype = model.expert_dtype
    flops = gpu.peak(dtype) * reach.mfu[computes_as(dtype)] * parallelism.gpus
    bandwidth = gpu.bandwidth_bytes_s * reach.mbu * parallelism.stage_gpus
    chosen_share = model.experts.per_token / model.experts.count
    row_s = 2 * model.expert_parameters * chosen_share / flops
    read_all_s = model.expert_parameters * DTYPE_BYTES[dtype] / bandwidth
    knots = tuple(2.0**k for k in range(_LARGEST_STEP_LOG2 + 1))
    touched = [1 - (1 - chosen_share) ** (tokens / parallelism.pp) for tokens in knots]
    seconds = (reach.join(read_all_s * share, row_s * rows) for share, rows in zip(touched, knots, strict=True))
    return Curve(knots, tuple(seconds))


def _matrix(reach: _Reach, read_s: float, row_s: float, extra_s: float) -> Curve:
    """Seconds over rows that meet a matrix: for reading it and for computing, plus extra_s a row."""
    ridge = max(read_s / row_s, 2.0)
    knots = (1.0, ridge, 2 * ridge)
    return Curve(knots, tuple(reach.join(read_s, row_s * rows) + extra_s * rows for rows in knots))
