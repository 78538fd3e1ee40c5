"""The cost of layers with linear attention on one GPU, by the methods of framework.timing.kernels.step_cost.

A layer of the gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464) convolves queries, keys and
values, passes them through the rule, and gates the output. A prompt goes through the rule in chunks, a decode reads and
writes the state of its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES
from framework.system.layers import DELTA_RULE_FLOPS
from framework.system.model import LinearAttention, Model
from framework.timing.curves import FloatArray
from framework.timing.kernels.attention_gqa import GroupedQuery
from framework.timing.kernels.interpolate import Ideal, Interpolated, interpolate, nearest
from framework.timing.kernels.measured_rows import rows_of
from framework.timing.kernels.operations import ACTIVATION_BYTES, Operations


@dataclass(frozen=True)
class DeltaRule:
    """The layers of a model with linear attention on one of `tp` GPUs, which share the heads.

    Raises InputError if tp GPUs cannot split the heads of values.
    """

    operations: Operations
    model: Model
    tp: int

    def __post_init__(self) -> None:
        if self._sizes.value_heads % self.tp:
            raise InputError(
                f"tp = {self.tp} does not divide the {self._sizes.value_heads} value heads of {self.model.name}"
            )

    @property
    def copied_bytes(self) -> float:
        """The gated norm of the output reads values and gates, and writes values."""
        return self._sizes.layers * 3.0 * self._value_heads * self._sizes.value_dim * ACTIVATION_BYTES

    @property
    def copies(self) -> int:
        return self._sizes.layers

    def projections_s(self, tokens: FloatArray) -> FloatArray:
        sizes, hidden, gemm = self._sizes, self.model.hidden, self.operations.gemm(self.model.dtype)
        values = self._value_heads * sizes.value_dim
        into_s = gemm.seconds(self._convolved + values, hidden, tokens)
        gates_s = gemm.seconds(2 * self._value_heads, hidden, tokens)
        return sizes.layers * (into_s + gates_s + gemm.seconds(hidden, values, tokens))

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        kernels = [self._kernel("conv_prefill"), self._kernel("prefill")]
        return self._sizes.layers * np.add.reduce([kernel.seconds(batch, tokens) for kernel in kernels])

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        kernels = [self._kernel("conv_decode"), self._kernel("decode")]
        each_s = self._sizes.layers * np.add.reduce([kernel.seconds(batch, 1.0) for kernel in kernels])
        return each_s + np.zeros(np.shape(context))

    def length_limit(self) -> float:
        return float(self._kernel("prefill").limit(1.0))

    def context_limit(self, batch: FloatArray) -> FloatArray:
        """None: a decode reads its state, whatever the context."""
        return np.full(np.shape(batch), np.inf)

    @property
    def _sizes(self) -> LinearAttention:
        assert self.model.linear is not None
        return self.model.linear

    @property
    def _value_heads(self) -> int:
        return self._sizes.value_heads // self.tp

    @property
    def _key_heads(self) -> int:
        return -(-self._sizes.key_heads // self.tp)

    @property
    def _convolved(self) -> int:
        sizes = self._sizes
        return 2 * self._key_heads * sizes.key_dim + self._value_heads * sizes.value_dim

    def _kernel(self, phase: str) -> Interpolated:
        """One layer's kernel of a phase over (sequences, tokens of each)."""
        sizes, gpu = self._sizes, self.operations.gpu

        def ideal(value_heads: int, key_heads: int) -> Ideal:
            convolved = 2 * key_heads * sizes.key_dim + value_heads * sizes.value_dim
            state = float(value_heads * sizes.key_dim * sizes.value_dim)
            ruled = phase in ("prefill", "decode")
            state_bytes = 2.0 * state * DTYPE_BYTES[sizes.state_dtype] if ruled else 0.0

            def seconds(batch: FloatArray, tokens: FloatArray) -> FloatArray:
                moved = batch * (2.0 * tokens * convolved * ACTIVATION_BYTES + state_bytes)
                flops = batch * tokens * (DELTA_RULE_FLOPS * state if ruled else 0.0)
                return self.operations.ideal_s(flops, moved, gpu.peak("bf16"))

            return seconds

        def make() -> Interpolated:
            shape = {"key_dim": sizes.key_dim, "value_dim": sizes.value_dim, "phase": phase}
            rows = rows_of(self.operations.kernels, "linear_attention", shape)
            if phase.endswith("decode"):
                rows = rows.filter(pl.col("tokens") == 1)
            rows = nearest(rows, {"value_heads": self._value_heads, "key_heads": self._key_heads})
            measured = ideal(int(rows["value_heads"][0]), int(rows["key_heads"][0]))
            wanted = ideal(self._value_heads, self._key_heads)
            return interpolate(rows, ("batch", "tokens"), measured, wanted, capped=False)

        return self.operations.fit(("linear_attention", phase), make)


@dataclass(frozen=True)
class Hybrid:
    """Layers with linear attention and layers with grouped-query attention, on one of `tp` GPUs."""

    linear: DeltaRule
    full: GroupedQuery

    @property
    def copied_bytes(self) -> float:
        return self.linear.copied_bytes + self.full.copied_bytes

    @property
    def copies(self) -> int:
        return self.linear.copies + self.full.copies

    def projections_s(self, tokens: FloatArray) -> FloatArray:
        return self.linear.projections_s(tokens) + self.full.projections_s(tokens)

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        return self.linear.prefill_s(batch, tokens) + self.full.prefill_s(batch, tokens)

    def bounded_share(self, tokens: FloatArray) -> FloatArray:
        bounded_s = self.linear.prefill_s(np.ones(()), tokens) + self.full.bounded_s(tokens)
        return bounded_s / self.prefill_s(np.ones(()), tokens)

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        return self.linear.decode_s(batch, context) + self.full.decode_s(batch, context)

    def length_limit(self) -> float:
        return min(self.linear.length_limit(), self.full.length_limit())

    def context_limit(self, batch: FloatArray) -> FloatArray:
        return np.minimum(self.linear.context_limit(batch), self.full.context_limit(batch))
