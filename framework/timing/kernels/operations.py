"""The operations of a decoder's layers on one GPU, timed by interpolation of measured kernel times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.model import Experts
from framework.timing.curves import FloatArray
from framework.timing.kernels.copies import Copies
from framework.timing.kernels.interpolate import Ideal, Interpolated, estimated, interpolate, nearest
from framework.timing.kernels.measured_rows import (
    Shard,
    attention_rows,
    distribution_of,
    expert_shape,
    gemm_rows,
    has_rows,
    multiplied_as,
    rows_of,
    shard_of,
)
from framework.timing.kernels.table import Kernels
from framework.timing.profile import NODE_GPUS

ACTIVATION_BYTES = 2.0  # bytes of a value between layers: bf16
# If no elementwise kernel was measured, one reaches 80 % of the bandwidth after a launch of 3 us: the values that
# aiconfigurator-core states for every GPU (systems/<gpu>.yaml).
_COPY_BANDWIDTH = 0.8
# Measured kernels have the cache to themselves; in a step weights stream through it between one kernel and the next.
# The model assumes as many bytes again in the way.
_CACHE_SHARED = 2.0
LAUNCH_S = 3e-6
# Tokens choose experts unevenly, and more evenly if routers were trained with a shared expert (DeepSeek-V3).
_UNEVEN = ("power_law_1.2", "power_law_1.01", "balanced")
_EVEN = ("power_law_1.01", "power_law_1.2", "balanced")
_NETWORK_S = 15e-6  # seconds of a round between nodes; estimate
_ESTIMATED = 0.7  # utilisation of estimates from the datasheet; measured matrix products reach 0.6 to 0.85
_ROUND_S = 15e-6  # seconds of an all-reduce for each GPU after the first, if the GPU states none


@dataclass(frozen=True)
class Operations:
    """The operations of one GPU and backend, interpolated between measured shapes.

    Arrays of sizes broadcast, and all times are in seconds. Methods raise InputError, naming operation and shape, if
    the tables have no usable rows.
    """

    kernels: Kernels
    gpu: Gpu
    _fits: dict[tuple[Any, ...], Interpolated] = field(default_factory=dict, repr=False)

    @property
    def launch_s(self) -> float:
        """Seconds of an elementwise kernel with almost no work."""
        return self._copies.launch_s

    def copy_s(self, moved_bytes: FloatArray) -> FloatArray:
        """Seconds of an elementwise kernel that reads and writes `moved_bytes`, without its launch."""
        return self._copies.seconds(np.asarray(moved_bytes, np.float64))

    @property
    def elementwise_measured(self) -> bool:
        """Whether elementwise kernels were measured separately."""
        return "elementwise" in self.kernels.tables

    @cached_property
    def _copies(self) -> Copies:
        if not self.elementwise_measured:
            return Copies.at(_COPY_BANDWIDTH * self.gpu.bandwidth_bytes_s, LAUNCH_S)
        return Copies.measured(rows_of(self.kernels, "elementwise", {}), _CACHE_SHARED)

    def gemm(self, dtype: str) -> Interpolated:
        """The product of (m, k) activations and (k, n) weights of `dtype`, over (n, k, m).

        Scaling the activations is included.
        """
        flops, weight_bytes = self.gpu.peak(dtype), DTYPE_BYTES[dtype]

        def ideal(n: FloatArray, k: FloatArray, m: FloatArray) -> FloatArray:
            moved = n * k * weight_bytes + (n + k) * m * ACTIVATION_BYTES
            return self.ideal_s(2.0 * m * n * k, moved, flops)

        def make() -> Interpolated:
            return interpolate(gemm_rows(self.kernels, dtype), ("n", "k", "m"), ideal)

        return self.fit(("gemm", dtype), lambda: self._or_estimated("gemm", make, 3, ideal))

    def experts(self, dtype: str, hidden: int, experts: Experts, tp: int, ep: int) -> Interpolated:
        """A layer's routed experts, over the tokens that enter it on all GPUs that share it.

        Each of `ep` groups has whole experts, and `tp` GPUs of a group split each of them. Across nodes, kernels made
        for that count if they were measured, under even routing.
        """
        intermediate, count, per_token = experts.intermediate, experts.count, experts.per_token

        def ideal(dtype: str, shards: float, count: int = count, per_token: int = per_token) -> Ideal:
            def seconds(tokens: FloatArray) -> FloatArray:
                matrices = 3.0 * hidden * intermediate * count / shards
                read = matrices * (1.0 - (1.0 - per_token / count) ** tokens) * DTYPE_BYTES[dtype]
                moved = read + 2.0 * tokens * per_token * hidden / shards * ACTIVATION_BYTES
                return self.ideal_s(2.0 * matrices * per_token / count * tokens, moved, self.gpu.peak(dtype))

            return seconds

        def make() -> Interpolated:
            multiplied = multiplied_as(self.kernels, dtype)
            shape = expert_shape(self.kernels, multiplied, hidden, experts)
            preferred = _EVEN if experts.shared_intermediate else _UNEVEN
            spread = ep > NODE_GPUS and tp == 1 and has_rows(self.kernels, "spread_experts", shape)
            rows = rows_of(self.kernels, "spread_experts" if spread else "experts", shape)
            rows = nearest(distribution_of(rows, preferred), {"ep": ep, "tp": tp})
            shards = float(rows["tp"][0] * rows["ep"][0])
            measured = ideal(multiplied, shards, shape["experts"], shape["per_token"])
            return interpolate(rows, ("tokens",), measured, ideal(multiplied, float(tp * ep)), capped=False)

        key = ("experts", dtype, hidden, experts, tp, ep)
        return self.fit(key, lambda: self._or_estimated("experts", make, 1, ideal(dtype, float(tp * ep))))

    def collective_s(self, operation: str, gpus: int, message_bytes: FloatArray) -> FloatArray:
        """Seconds of an all_reduce, all_gather or reduce_scatter of a message among `gpus` GPUs; 0 for a single one.

        The message is the gathered one, in bytes. Across nodes the parts of a message that the GPUs of a node hold
        after their own exchange travel in parallel, each over its GPU's network port.
        """
        if gpus == 1:
            return np.zeros(np.shape(message_bytes))
        rounds = 2.0 if operation == "all_reduce" else 1.0
        node = self.gpu.linked_gpus
        if gpus > node:
            nodes = -(-gpus // node)
            across_s = np.asarray(message_bytes) / node * (nodes - 1) / nodes / self.gpu.nic_bytes_s + _NETWORK_S
            return self.collective_s(operation, node, message_bytes) + rounds * across_s

        def ring_s(among: int, link: float) -> Ideal:
            return lambda sent: np.asarray(rounds * (among - 1) / among * sent / link)

        def make() -> Interpolated:
            rows = nearest(rows_of(self.kernels, operation, {}), {"gpus": gpus})
            measured = int(rows["gpus"][0])
            ideal, wanted = (ring_s(among, self.link_bytes_s(among, measured)) for among in (measured, gpus))
            return interpolate(rows, ("bytes",), ideal, wanted, capped=False)

        def linked_s(sent: FloatArray) -> FloatArray:
            latency_s = _ROUND_S if self.gpu.link_latency_s is None else self.gpu.link_latency_s
            reached = self.gpu.link_bytes_s * self.gpu.link_efficiency
            return _ESTIMATED * (latency_s * (gpus - 1) + ring_s(gpus, reached)(sent))

        fit = self.fit((operation, gpus), lambda: self._or_estimated(operation, make, 1, linked_s))
        return fit.seconds(message_bytes)

    def prefill_attention(self, shard: Shard) -> Interpolated:
        """Prefill attention of one layer, over (sequences, tokens of each), with nothing cached."""

        def ideal(of: Shard) -> Ideal:
            wide = 2.0 * (of.heads + of.kv_heads) * of.head_dim * ACTIVATION_BYTES

            def seconds(batch: FloatArray, tokens: FloatArray) -> FloatArray:
                seen = of.seen(tokens)
                flops = 4.0 * batch * of.heads * of.head_dim * (tokens * seen - seen * seen / 2.0)
                return self.ideal_s(flops, batch * tokens * wide, self.gpu.peak("bf16"))

            return seconds

        def make() -> Interpolated:
            rows = attention_rows(self.kernels, "prefill_attention", shard).filter(pl.col("prefix") == 0)
            measured, saturates = shard_of(rows), self.kernels.saturates
            fit = interpolate(rows, ("batch", "tokens"), ideal(measured), ideal(shard), saturates=saturates)
            return replace(fit, stretch=shard.heads / measured.heads)

        key = ("prefill_attention", shard)
        return self.fit(key, lambda: self._or_estimated("prefill_attention", make, 2, ideal(shard)))

    def decode_attention(self, shard: Shard) -> Interpolated:
        """Decode attention of one layer, over (sequences, context of each), with one new token a sequence."""

        def ideal(of: Shard) -> Ideal:
            cached = 2.0 * of.kv_heads * of.head_dim * DTYPE_BYTES[of.kv_dtype]
            flat = 2.0 * of.heads * of.head_dim * ACTIVATION_BYTES

            def seconds(batch: FloatArray, context: FloatArray) -> FloatArray:
                seen = of.seen(context)
                flops = 4.0 * batch * of.heads * of.head_dim * seen
                return self.ideal_s(flops, batch * (seen * cached + flat), self.gpu.peak("bf16"))

            return seconds

        def make() -> Interpolated:
            rows, sizes = attention_rows(self.kernels, "decode_attention", shard), ("batch", "context")
            measured, saturates = shard_of(rows), self.kernels.saturates
            fit = interpolate(rows, sizes, ideal(measured), ideal(shard), saturates=saturates, together=saturates)
            return replace(fit, stretch=shard.kv_heads / measured.kv_heads)

        key = ("decode_attention", shard)
        return self.fit(key, lambda: self._or_estimated("decode_attention", make, 2, ideal(shard)))

    def sampler_s(self, vocab: float, batch: FloatArray) -> FloatArray:
        """Seconds to choose a token for each of `batch` sequences; 0 if that was not measured."""
        if "sampler" not in self.kernels.tables:
            return np.zeros(np.shape(batch))

        def ideal(sequences: FloatArray) -> FloatArray:
            return np.asarray(sequences * vocab * ACTIVATION_BYTES / self.gpu.bandwidth_bytes_s)

        def make() -> Interpolated:
            return interpolate(
                nearest(rows_of(self.kernels, "sampler", {}), {"vocab": vocab}), ("batch",), ideal, capped=False
            )

        return self.fit(("sampler", vocab), make).seconds(batch)

    def link_bytes_s(self, gpus: int, measured: int) -> float:
        """The bytes a second from one of `gpus` GPUs to the others; `measured` of them were measured in one node."""
        near = max(measured, self.gpu.linked_gpus)
        return self.gpu.link_bytes_s if gpus <= near else min(self.gpu.nic_bytes_s, self.gpu.link_bytes_s)

    def fit(self, key: tuple[Any, ...], make: Callable[[], Interpolated]) -> Interpolated:
        """The interpolation that `make` makes, only once for a key."""
        if key not in self._fits:
            self._fits[key] = make()
        return self._fits[key]

    def _or_estimated(self, operation: str, make: Callable[[], Interpolated], sizes: int, ideal: Ideal) -> Interpolated:
        """The result of `make` from measured times or, if there are none and that is allowed, from the datasheet."""
        try:
            return make()
        except InputError:
            if self.kernels.estimated is None:
                raise
            self.kernels.estimated.add(operation)
            return estimated(sizes, ideal, _ESTIMATED)

    def ideal_s(self, flops: FloatArray, moved_bytes: FloatArray, peak_flops: float) -> FloatArray:
        """Seconds at the speed of light: the longer of computing `flops` and of moving `moved_bytes`."""
        return np.maximum(flops / peak_flops, moved_bytes / self.gpu.bandwidth_bytes_s)
