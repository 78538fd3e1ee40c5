"""The cost of sparse latent attention (DSA) on one GPU, by the methods of framework.timing.kernels.step_cost.

An indexer scores all tokens of the context, and latent attention reads the best of them (DeepSeek-AI, "DeepSeek-V3.2",
arXiv 2512.02556, section 2.1). Backends were measured as whole modules, projections and indexer included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from framework.system.gpu import DTYPE_BYTES
from framework.system.model import SparseAttention
from framework.timing.curves import FloatArray
from framework.timing.kernels.attention_mla import MlaModule
from framework.timing.kernels.interpolate import Ideal, Interpolated, nearest
from framework.timing.kernels.measured_rows import rows_of


@dataclass(frozen=True)
class SparseModule(MlaModule):
    """DSA of all layers on one of `tp` GPUs; `tp` splits the heads of attention, and every GPU has the whole indexer.

    Modules of prompts were launched by the CPU, kernel by kernel, which takes up to 1.6 ms however short a prompt is,
    while servers hide launches behind the step before. So many tokens were also measured as decodes, in a CUDA graph: a
    prompt takes no longer than its tokens would as decodes of half its length.
    """

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        all_tokens = np.asarray(batch * tokens)
        known = all_tokens <= self._decode().largest(0)
        decodes_s = np.where(known, self._decode().seconds(all_tokens, np.maximum(tokens / 2.0, 1.0)), np.inf)
        whole_s = self.model.layers * np.minimum(self._prefill().seconds(batch, tokens), decodes_s)
        return np.maximum(whole_s - self._flat_s(all_tokens), 0.0)

    def bounded_share(self, tokens: FloatArray) -> FloatArray:
        """All of it: the pairs of the indexer and the chosen ones are those of a prompt less those of its prefix."""
        return np.ones(np.shape(tokens))

    def _launched_s(self) -> float:
        """Decodes, which say what few tokens take, were replayed from a CUDA graph."""
        return 0.0

    @property
    def _indexer(self) -> SparseAttention:
        assert self.model.sparse is not None
        return self.model.sparse

    def _weights(self, heads: int) -> float:
        indexer = self._indexer.parameters(self.model.hidden, self._sizes.query_rank)
        return super()._weights(heads) + indexer

    @property
    def _latent_bytes(self) -> float:
        """Bytes of a cached token that attention reads."""
        return (self._sizes.kv_rank + self._sizes.rope_dim) * DTYPE_BYTES[self.model.kv_dtype]

    @property
    def _score_flops(self) -> float:
        """FLOPs of the indexer for each pair of a query and a key."""
        return 2.0 * self._indexer.index_heads * self._indexer.index_dim

    def _pair_flops(self, heads: int) -> float:
        """FLOPs of attention to each chosen key."""
        return 2.0 * heads * (2 * self._sizes.kv_rank + self._sizes.rope_dim)

    def _rows(self, operation: str) -> pl.DataFrame:
        wanted = {"kv_dtype": self.model.kv_dtype, "dtype": self._dtype, "hidden": self.model.hidden}
        rows = rows_of(self.operations.kernels, operation, wanted)
        if "prefix" in rows.columns:
            rows = rows.filter(pl.col("prefix") == 0)
        return nearest(rows, {"heads": self._heads})

    def _prefill(self) -> Interpolated:
        """One layer over (sequences, tokens of each)."""
        indexer, latent, score, gpu = self._indexer, self._latent_bytes, self._score_flops, self.operations.gpu

        def ideal(heads: int) -> Ideal:
            weights, pair = self._weights(heads), self._pair_flops(heads)

            def seconds(batch: FloatArray, tokens: FloatArray) -> FloatArray:
                seen = np.minimum(tokens, indexer.top_tokens)
                attended = pair * (tokens * seen - seen * seen / 2.0) + score * tokens * tokens / 2.0
                flops = batch * (attended + 2.0 * weights * tokens)
                moved = weights * DTYPE_BYTES[self._dtype] + batch * tokens * latent
                return self.operations.ideal_s(flops, moved, gpu.peak("bf16"))

            return seconds

        return self._fit("sparse_prefill", ("batch", "tokens"), ideal)

    def _decode(self) -> Interpolated:
        """One layer over (sequences, context of each)."""
        indexer, latent, score, gpu = self._indexer, self._latent_bytes, self._score_flops, self.operations.gpu

        def ideal(heads: int) -> Ideal:
            weights, pair = self._weights(heads), self._pair_flops(heads)

            def seconds(batch: FloatArray, context: FloatArray) -> FloatArray:
                seen = np.minimum(context, indexer.top_tokens)
                moved = weights * DTYPE_BYTES[self._dtype] + batch * (seen * latent + context * indexer.key_bytes)
                flops = batch * (seen * pair + context * score + 2.0 * weights)
                return self.operations.ideal_s(flops, moved, gpu.peak("bf16"))

            return seconds

        return self._fit("sparse_decode", ("batch", "context"), ideal)
