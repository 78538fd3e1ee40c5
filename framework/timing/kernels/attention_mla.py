"""The cost of multi-head latent attention (MLA) on one GPU, by the methods of framework.timing.kernels.step_cost.

A prefill projects latents up to keys and values of every head; a decode absorbs that projection into queries and
outputs and attends to the latents themselves (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1). Backends were
measured in one of two ways: the whole attention module, or its kernels one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES
from framework.system.model import LatentAttention, Model
from framework.timing.curves import FloatArray
from framework.timing.kernels.interpolate import Ideal, Interpolated, interpolate, nearest
from framework.timing.kernels.measured_rows import rows_of
from framework.timing.kernels.operations import ACTIVATION_BYTES, LAUNCH_S, Operations

_SHORT = 16.0  # tokens: attention among so few costs nothing compared with the projections
_BETWEEN = 4  # two norms, rotary embedding, writing the cache
_FOUR_BITS = ("nvfp4", "mxfp4", "int4")


@dataclass(frozen=True)
class _Mla:
    """MLA of all layers on one of `tp` GPUs. Raises InputError if tp GPUs cannot split the heads."""

    operations: Operations
    model: Model
    tp: int

    def __post_init__(self) -> None:
        self.model.heads_on(self.tp)

    def bounded_share(self, tokens: FloatArray) -> FloatArray:
        return np.zeros(np.shape(tokens))

    def length_limit(self) -> float:
        return float(self._prefill().limit(1.0))

    def context_limit(self, batch: FloatArray) -> FloatArray:
        return self._decode().limit_together(batch)

    @property
    def _module(self) -> int:
        raise NotImplementedError

    @property
    def _sizes(self) -> LatentAttention:
        assert self.model.latent is not None
        return self.model.latent

    @property
    def _heads(self) -> int:
        return self.model.heads_on(self.tp)[0]

    @property
    def _dtype(self) -> str:
        """The type of the projections: published checkpoints with 4-bit weights leave them in bf16."""
        return "bf16" if self.model.dtype in _FOUR_BITS else self.model.dtype

    def _weights(self, heads: int) -> float:
        """Values of a layer's projections for `heads` heads; those into the latents belong to no head."""
        return float(self._sizes.parameters(self.model.hidden, heads))

    def _rows(self, operation: str) -> pl.DataFrame:
        dtype = self._dtype if self._module else "bf16"
        wanted = {"kv_dtype": self.model.kv_dtype, "dtype": dtype, "module": self._module}
        return nearest(rows_of(self.operations.kernels, operation, wanted), {"heads": self._heads})

    def _prefill(self) -> Interpolated:
        """One layer over (sequences, tokens of each)."""
        sizes, peak = self._sizes, self.operations.gpu.peak("bf16")

        def ideal(heads: int) -> Ideal:
            weights = self._weights(heads) * self._module
            pair = 2.0 * heads * (sizes.nope_dim + sizes.rope_dim + sizes.value_dim)
            row = 2.0 * heads * (sizes.nope_dim + sizes.rope_dim + sizes.value_dim) * ACTIVATION_BYTES

            def seconds(batch: FloatArray, tokens: FloatArray) -> FloatArray:
                flops = batch * tokens * (pair * tokens / 2.0 + 2.0 * weights)
                return self.operations.ideal_s(flops, weights * DTYPE_BYTES[self._dtype] + batch * tokens * row, peak)

            return seconds

        return self._fit("latent_prefill", ("batch", "tokens"), ideal)

    def _decode(self) -> Interpolated:
        """One layer over (sequences, context of each)."""
        sizes, peak = self._sizes, self.operations.gpu.peak("bf16")
        cached = (sizes.kv_rank + sizes.rope_dim) * DTYPE_BYTES[self.model.kv_dtype]

        def ideal(heads: int) -> Ideal:
            weights = self._weights(heads) * self._module
            pair = 2.0 * heads * (2 * sizes.kv_rank + sizes.rope_dim)

            def seconds(batch: FloatArray, context: FloatArray) -> FloatArray:
                moved = weights * DTYPE_BYTES[self._dtype] + batch * context * cached
                return self.operations.ideal_s(batch * (context * pair + 2.0 * weights), moved, peak)

            return seconds

        return self._fit("latent_decode", ("batch", "context"), ideal)

    def _fit(self, operation: str, sizes: tuple[str, str], ideal: Callable[[int], Ideal]) -> Interpolated:
        def make() -> Interpolated:
            rows, saturates = self._rows(operation), self.operations.kernels.saturates
            return interpolate(rows, sizes, ideal(int(rows["heads"][0])), ideal(self._heads), saturates=saturates)

        return self.operations.fit((operation, self._module), make)


@dataclass(frozen=True)
class MlaModule(_Mla):
    """MLA that was measured as a whole module, with its projections, rotary embedding and cache writes.

    The cost of a step's tokens, whatever they attend to, is the least time in which as many were measured: as one
    sequence, as sequences of a few tokens each, or as decodes with almost no context. Prefills and decodes cost what is
    above it. On some GPUs modules of a few tokens take twice as long as their matrices and the four kernels between
    these, measured separately: the CPU launched them one by one, while servers replay a CUDA graph. The excess is
    subtracted.
    """

    @property
    def _module(self) -> int:
        return 1

    @property
    def copied_bytes(self) -> float:
        return 0.0

    @property
    def copies(self) -> int:
        return 0

    def projections_s(self, tokens: FloatArray) -> FloatArray:
        return self._flat_s(tokens) - self._launched_s()

    def _launched_s(self) -> float:
        """Seconds of launches from the CPU beyond the kernels of one token; 0 if these were not measured."""
        one, apart = np.ones(()), MlaKernels(self.operations, self.model, self.tp)
        try:
            kernels_s = apart.projections_s(one) + apart.absorb_s(one)
        except InputError:
            return 0.0
        return max(0.0, float(self._flat_s(one) - kernels_s) - _BETWEEN * self.model.layers * LAUNCH_S)

    def _flat_s(self, tokens: FloatArray) -> FloatArray:
        """The least measured time of `tokens` tokens."""
        short_s = self._prefill().seconds(np.maximum(tokens / _SHORT, 1.0), np.minimum(tokens, _SHORT))
        whole_s = self._prefill().seconds(1.0, tokens)
        decode_s = self._decode().seconds(tokens, 1.0)
        return self.model.layers * np.minimum(np.minimum(short_s, whole_s), decode_s)

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        whole_s = self.model.layers * self._prefill().seconds(batch, tokens)
        return np.maximum(whole_s - self._flat_s(batch * tokens), 0.0)

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        whole_s = self.model.layers * self._decode().seconds(batch, context)
        return np.maximum(whole_s - self._flat_s(batch), 0.0)


@dataclass(frozen=True)
class MlaKernels(_Mla):
    """MLA that was measured kernel by kernel: projections, attention, and the products that absorb them in a decode."""

    @property
    def _module(self) -> int:
        return 0

    @property
    def copied_bytes(self) -> float:
        sizes = self._sizes
        values = (self._heads + 1) * sizes.rope_dim + sizes.kv_rank + sizes.rope_dim
        return self.model.layers * 2.0 * values * ACTIVATION_BYTES

    @property
    def copies(self) -> int:
        return 2 * self.model.layers

    def projections_s(self, tokens: FloatArray) -> FloatArray:
        sizes, hidden, gemm = self._sizes, self.model.hidden, self.operations.gemm(self._dtype)
        down_s = gemm.seconds(sizes.query_rank + sizes.kv_rank + sizes.rope_dim, hidden, tokens)
        queries_s = gemm.seconds(self._heads * (sizes.nope_dim + sizes.rope_dim), sizes.query_rank, tokens)
        return self.model.layers * (down_s + queries_s + gemm.seconds(hidden, self._heads * sizes.value_dim, tokens))

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        sizes, gemm = self._sizes, self.operations.gemm(self._dtype)
        up_s = gemm.seconds(self._heads * (sizes.nope_dim + sizes.value_dim), sizes.kv_rank, batch * tokens)
        return self.model.layers * (up_s + self._prefill().seconds(batch, tokens))

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        return self.absorb_s(batch) + self.model.layers * self._decode().seconds(batch, context)

    def absorb_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of a decode's products of queries and outputs with the up-projections, over its tokens.

        They replace the projection of keys and values.
        """
        return self.model.layers * (self._absorb("pre").seconds(tokens) + self._absorb("post").seconds(tokens))

    def _absorb(self, phase: str) -> Interpolated:
        """One layer's product of queries (pre) or outputs (post) with the up-projection, over tokens."""
        sizes = self._sizes
        width = sizes.nope_dim if phase == "pre" else sizes.value_dim
        dtype = "fp8" if DTYPE_BYTES[self._dtype] == 1.0 else "bf16"
        peak = self.operations.gpu.peak(dtype)

        def ideal(heads: int) -> Ideal:
            weights, row = float(heads * width * sizes.kv_rank), heads * (width + sizes.kv_rank) * ACTIVATION_BYTES
            return lambda tokens: self.operations.ideal_s(
                2.0 * weights * tokens, weights * DTYPE_BYTES[dtype] + tokens * row, peak
            )

        def make() -> Interpolated:
            rows = rows_of(self.operations.kernels, "latent_bmm", {"phase": phase})
            measured = dtype if dtype in rows["dtype"].unique() else "bf16"
            rows = nearest(rows.filter(pl.col("dtype") == measured), {"heads": self._heads})
            return interpolate(rows, ("tokens",), ideal(int(rows["heads"][0])), ideal(self._heads))

        return self.operations.fit(("latent_bmm", phase), make)


def mla_attention(operations: Operations, model: Model, tp: int) -> MlaModule | MlaKernels:
    """MLA as it was measured: the whole module if there is one, else its kernels. Raises InputError for neither."""
    module = MlaModule(operations, model, tp)
    try:
        module.length_limit(), module.context_limit(np.ones(1))
    except InputError:
        kernels = MlaKernels(operations, model, tp)
        kernels.length_limit(), kernels.context_limit(np.ones(1))
        return kernels
    return module
