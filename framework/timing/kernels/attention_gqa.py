"""The cost of grouped-query attention on one GPU, by the methods of framework.timing.kernels.step_cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framework.system.model import LocalAttention, Model
from framework.timing.curves import FloatArray
from framework.timing.kernels.interpolate import Interpolated
from framework.timing.kernels.measured_rows import Shard
from framework.timing.kernels.operations import ACTIVATION_BYTES, Operations


@dataclass(frozen=True)
class _Layers:
    """`count` layers of one kind, and the times of one layer's kernels; within chunks if they are `local`."""

    count: int
    prefill: Interpolated
    decode: Interpolated
    local: LocalAttention | None

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        """Seconds of all layers over `batch` prompts of `tokens` tokens each.

        Servers let a kernel take the chunks of a prompt for prompts of their own (vLLM and SGLang,
        `make_local_attention_virtual_batches`). The last chunk costs as much of one more as it has of its pairs.
        """
        if self.local is None:
            return self.count * self.prefill.seconds(batch, tokens)
        size = float(self.local.chunk_tokens)
        whole, rest = np.divmod(np.asarray(tokens, float), size)
        known = batch * np.maximum(whole, 1.0)
        chunks_s = self.prefill.seconds(known, size)
        more_s = (self.prefill.seconds(known + batch, size) - chunks_s) * (rest / size) ** 2
        return self.count * np.where(whole < 1.0, self.prefill.seconds(batch, tokens), chunks_s + more_s)

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        """Seconds of all layers over `batch` decodes with `context` tokens each."""
        seen = context if self.local is None else self.local.seen(context)
        return self.count * self.decode.seconds(batch, seen)


@dataclass(frozen=True)
class GroupedQuery:
    """Grouped-query attention of all layers that have it, on one of `tp` GPUs; some may have a window or chunks.

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
        return np.add.reduce([layers.prefill_s(batch, tokens) for layers in self._layers()])

    def bounded_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of one prompt's attention in layers with chunks. A window is taken for short: it has few pairs."""
        parts = [layers.prefill_s(np.ones(()), tokens) for layers in self._layers() if layers.local is not None]
        return np.add.reduce(parts) if parts else np.zeros(np.shape(tokens))

    def bounded_share(self, tokens: FloatArray) -> FloatArray:
        return self.bounded_s(tokens) / self.prefill_s(np.ones(()), tokens)

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        return np.add.reduce([layers.decode_s(batch, context) for layers in self._layers()])

    def length_limit(self) -> float:
        return min(float(layers.prefill.limit(1.0)) for layers in self._layers())

    def context_limit(self, batch: FloatArray) -> FloatArray:
        return np.minimum.reduce([layers.decode.limit_together(batch) for layers in self._layers()])

    @property
    def _count(self) -> int:
        return self.model.layers - self.model.linear_layers

    def _heads(self) -> tuple[int, int]:
        return self.model.heads_on(self.tp)

    def _layers(self) -> Sequence[_Layers]:
        model = self.model
        kinds = ((model.full_layers, 0, None), (model.windowed_layers, model.window, None))
        return [self._kind(*kind) for kind in (*kinds, (model.local_layers, 0, model.local)) if kind[0]]

    def _kind(self, count: int, window: int, local: LocalAttention | None) -> _Layers:
        shard = Shard(*self._heads(), self.model.head_dim, self.model.kv_dtype, window)
        kernels = self.operations.prefill_attention(shard), self.operations.decode_attention(shard)
        return _Layers(count, *kernels, local)
