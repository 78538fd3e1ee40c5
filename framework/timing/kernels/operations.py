"""The operations of a decoder's layers on one GPU, timed by interpolation of measured kernel times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
_LAUNCH_BOUND_S = 30e-6  # the smallest product takes 3 us on a GPU
_ESTIMATED = 0.7  # utilisation of estimates from the datasheet; measured matrix products reach 0.6 to 0.85
_ROUND_S = 15e-6  # seconds of an all-reduce for each GPU after the first, if the GPU states none
_LEAST_PRODUCT = 0.4  # least share of a measured time after subtracting the search for scales


@dataclass(frozen=True)
class Shard:
    """One GPU's part of a layer's attention: its heads, and the data type of cached keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    window: int = 0

    def seen(self, context: FloatArray) -> FloatArray:
        """The number of tokens to which the last one of `context` tokens attends."""
        return np.minimum(context, self.window) if self.window else context


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
        return Copies.measured(self.rows("elementwise", {}), _CACHE_SHARED)

    def gemm(self, dtype: str) -> Interpolated:
        """The product of (m, k) activations and (k, n) weights of `dtype`, over (n, k, m).

        Scaling the activations is included.
        """
        flops, weight_bytes = self.gpu.peak(dtype), DTYPE_BYTES[dtype]

        def ideal(n: FloatArray, k: FloatArray, m: FloatArray) -> FloatArray:
            moved = n * k * weight_bytes + (n + k) * m * ACTIVATION_BYTES
            return self.ideal_s(2.0 * m * n * k, moved, flops)

        def make() -> Interpolated:
            return interpolate(self._gemm_rows(dtype), ("n", "k", "m"), ideal)

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
            multiplied = self._multiplied_as(dtype)
            shape = self._expert_shape(multiplied, hidden, experts)
            preferred = _EVEN if experts.shared_intermediate else _UNEVEN
            spread = ep > NODE_GPUS and tp == 1 and self._has("spread_experts", shape)
            rows = self.rows("spread_experts" if spread else "experts", shape)
            rows = nearest(_distribution(rows, preferred), {"ep": ep, "tp": tp})
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
            rows = nearest(self.rows(operation, {}), {"gpus": gpus})
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
            rows = self._attention_rows("prefill_attention", shard).filter(pl.col("prefix") == 0)
            measured, saturates = _measured(rows), self.kernels.saturates
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
            rows, sizes = self._attention_rows("decode_attention", shard), ("batch", "context")
            measured, saturates = _measured(rows), self.kernels.saturates
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
            return interpolate(nearest(self.rows("sampler", {}), {"vocab": vocab}), ("batch",), ideal, capped=False)

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

    def rows(self, operation: str, wanted: dict[str, Any]) -> pl.DataFrame:
        """The rows of a table with the wanted values in the columns. Raises InputError if there are none."""
        table = self.kernels.table(operation)
        rows = table.filter(*(pl.col(name) == value for name, value in wanted.items()))
        if rows.is_empty():
            shape = ", ".join(f"{name} {value}" for name, value in wanted.items())
            origin = self.kernels.provenance
            raise InputError(
                f"no {operation} times with {shape} for gpu {origin.gpu}, backend {origin.backend} in {origin.source}"
            )
        return rows

    def _has(self, operation: str, wanted: dict[str, Any]) -> bool:
        """Whether a table holds rows with the wanted values in the columns."""
        table = self.kernels.tables.get(operation)
        return (
            table is not None
            and not table.filter(*(pl.col(name) == value for name, value in wanted.items())).is_empty()
        )

    def ideal_s(self, flops: FloatArray, moved_bytes: FloatArray, peak_flops: float) -> FloatArray:
        """Seconds at the speed of light: the longer of computing `flops` and of moving `moved_bytes`."""
        return np.maximum(flops / peak_flops, moved_bytes / self.gpu.bandwidth_bytes_s)

    def _expert_shape(self, dtype: str, hidden: int, experts: Experts) -> dict[str, Any]:
        """The measured shape that stands for these experts: the same, or matrices of the same size in up to twice or
        half the number, which keep the GPU as busy with as many tokens.
        """
        size = {"dtype": dtype, "hidden": hidden, "intermediate": experts.intermediate}
        numbers = {"experts": experts.count, "per_token": experts.per_token}
        if not self._has("experts", size | numbers) and self._has("experts", size):
            found = nearest(self.rows("experts", size), {"experts": experts.count, "per_token": experts.per_token})
            other = {name: int(found[name][0]) for name in numbers}
            if all(0.5 <= other[name] / number <= 2.0 for name, number in numbers.items()):
                return size | other
        return size | numbers

    def _multiplied_as(self, dtype: str) -> str:
        """The type of weights by which the backend multiplies them, if that is faster and was measured."""
        faster = self.kernels.multiplied_as.get(dtype, dtype)
        return faster if faster in self.kernels.table("experts")["dtype"].unique() else dtype

    def _gemm_rows(self, dtype: str) -> pl.DataFrame:
        """Rows of a data type as a server runs it.

        Rows of fp8 contain the search for the scale of the activations; it is subtracted if scales are fixed. If
        fp8_block rows measured the host's launches instead of the kernel, those of fp8 replace them: a product of 32 x
        32 matrices that takes tens of microseconds was not replayed from a CUDA graph, as servers do; up to twice that
        time, times say little of the GPU. The same kernels in other tables take as long as fp8 with one scale.
        """
        rows = self.rows("gemm", {"dtype": "fp8" if dtype == "fp8_dynamic" else dtype})
        if dtype == "fp8":
            return self._with_fixed_scales(rows)
        if dtype != "fp8_block" or "fp8" not in self.kernels.table("gemm")["dtype"].unique():
            return rows
        by_kernel = "kernel" if "kernel" in rows.columns else "dtype"
        launch = pl.col("latency_s").min().over(by_kernel)
        plain = self.rows("gemm", {"dtype": "fp8"}).select("m", "n", "k", plain_s="latency_s")
        bound = (launch > _LAUNCH_BOUND_S) & (pl.col("latency_s") < 2 * launch)
        corrected = pl.when(bound).then(pl.min_horizontal("latency_s", "plain_s")).otherwise("latency_s")
        return rows.join(plain, on=("m", "n", "k"), how="left").with_columns(latency_s=corrected)

    def _with_fixed_scales(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Times of products without the search for the scale of their activations, if that was measured separately."""
        if "quantize" not in self.kernels.tables:
            return rows
        searches = self.rows("quantize", {}).filter((pl.col("phase") == "scale") & (pl.col("dtype") == "fp8"))
        search = searches.select("m", "k", search_s="latency_s")
        rest = pl.max_horizontal(pl.col("latency_s") - pl.col("search_s"), _LEAST_PRODUCT * pl.col("latency_s"))
        known = pl.when(pl.col("search_s").is_null()).then("latency_s").otherwise(rest)
        return rows.join(search, on=("m", "k"), how="left").with_columns(latency_s=known)

    def _attention_rows(self, operation: str, shard: Shard) -> pl.DataFrame:
        """Rows of the heads, or of the most similar ones.

        A batch of n sequences keeps the GPU as busy with h heads as one of n / 2 with 2 h.
        """
        rows = self.rows(operation, {"kv_dtype": shard.kv_dtype})
        windowed = rows.filter(pl.col("window") == 0 if shard.window == 0 else pl.col("window") > 0)
        if windowed.is_empty():
            self.rows(operation, {"kv_dtype": shard.kv_dtype, "window": shard.window})  # raises with what is missing
        wanted: dict[str, float] = {"head_dim": shard.head_dim, "kv_heads": shard.kv_heads, "heads": shard.heads}
        return nearest(windowed, wanted | ({"window": shard.window} if shard.window else {}))


def _measured(rows: pl.DataFrame) -> Shard:
    """The shard to which rows of one shard belong."""
    first = rows.row(0, named=True)
    return Shard(first["heads"], first["kv_heads"], first["head_dim"], first["kv_dtype"], first["window"])


def _distribution(rows: pl.DataFrame, preferred: Sequence[str]) -> pl.DataFrame:
    """Rows of the most likely measured distribution of tokens over experts."""
    measured = set(rows["distribution"].unique())
    chosen = next((name for name in preferred if name in measured), rows["distribution"][0])
    return rows.filter(pl.col("distribution") == chosen)
