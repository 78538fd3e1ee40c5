"""The cost of grouped-query attention on one GPU, by the methods of framework.timing.kernels.step_cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framework.system.model import Model
from framework.timing.curves import FloatArray
from framework.timing.kernels.interpolate import Interpolated
from framework.timing.kernels.measured_rows import Shard
from framework.timing.kernels.operations import ACTIVATION_BYTES, Operations


@dataclass(frozen=True)
class _Layers:
    """`count` layers of one kind, and the time of one layer's attention."""

    count: int
    prefill: Interpolated
    decode: Interpolated


@dataclass(frozen=True)
class GroupedQuery:
    """Grouped-query attention of all layers that have it, on one of `tp` GPUs; some of them may have a window.

    Raises InputError if tp GPUs cannot split the heads.
    """

    operations: Operations
    model: Model
    tp: int

    def __post_init__(self) -> None:
        self.model.heads_on(self.tp)

    @property
    def copied_bytes(self) -> float:
        heads, kv_heads = self._heads()
        rotated, cached = heads + kv_heads, 2 * kv_heads
        return self._count * 2.0 * (rotated + cached) * self.model.head_dim * ACTIVATION_BYTES

    @property
    def copies(self) -> int:
        return 2 * self._count

    def projections_s(self, tokens: FloatArray) -> FloatArray:
        heads, kv_heads = self._heads()
        gemm, hidden, dim = self.operations.gemm(self.model.dtype), self.model.hidden, self.model.head_dim
        queries = 2 * heads if self.model.output_gate else heads
        first_s = gemm.seconds((queries + 2 * kv_heads) * dim, hidden, tokens)
        return self._count * (first_s + gemm.seconds(hidden, heads * dim, tokens))

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        return np.add.reduce([layers.count * layers.prefill.seconds(batch, tokens) for layers in self._layers()])

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        return np.add.reduce([layers.count * layers.decode.seconds(batch, context) for layers in self._layers()])

    def length_limit(self) -> float:
        return min(float(layers.prefill.limit(1.0)) for layers in self._layers())

    def context_limit(self, batch: FloatArray) -> FloatArray:
        return np.minimum.reduce([layers.decode.limit_together(batch) for layers in self._layers()])

    @property
    def _count(self) -> int:
        return self.model.full_layers + self.model.windowed_layers

    def _heads(self) -> tuple[int, int]:
        return self.model.heads_on(self.tp)

    def _layers(self) -> Sequence[_Layers]:
        model = self.model
        kinds = [(model.full_layers, 0), (model.windowed_layers, model.window)]
        return [self._kind(count, window) for count, window in kinds if count]

    def _kind(self, count: int, window: int) -> _Layers:
        shard = Shard(*self._heads(), self.model.head_dim, self.model.kv_dtype, window)
        return _Layers(count, self.operations.prefill_attention(shard), self.operations.decode_attention(shard))
