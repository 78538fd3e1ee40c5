"""Layers of a model that are not plain attention or a plain MLP: their weights, and what they keep of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Whole, check_fields, one_of
from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, SAME_DTYPE

Dtype = Annotated[str, one_of(tuple(DTYPE_BYTES))]


def known_dtype(dtype: Any) -> Any:
    """The name in DTYPE_BYTES of a type with another name; anything else as it is, for the checks to judge."""
    return SAME_DTYPE.get(dtype, dtype) if isinstance(dtype, str) else dtype


@dataclass(frozen=True)
class Experts:
    """The MLP of a mixture of experts.

    A token passes `per_token` of `count` experts of size `intermediate`, and all of `shared_intermediate`. The first
    `dense_layers` layers have a dense MLP of the model's `intermediate` instead. `dtype`: of the experts' weights,
    None: the model's.
    """

    count: Count
    per_token: Count
    intermediate: Count
    shared_intermediate: Whole = 0
    dense_layers: Whole = 0
    dtype: Dtype | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", known_dtype(self.dtype))
        check_fields(self, "model.experts.")
        if self.per_token > self.count:
            raise InputError(f"model.experts.per_token = {self.per_token} of model.experts.count = {self.count}")


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1), sizes per head or rank.

    A cached token is `kv_rank` + `rope_dim` values in each layer, for any number of heads."""

    query_rank: Count
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    value_dim: Count

    def __post_init__(self) -> None:
        check_fields(self, "model.latent.")

    def parameters(self, hidden: int, heads: int) -> int:
        """Weights of one attention layer."""
        queries = hidden * self.query_rank + self.query_rank * heads * (self.nope_dim + self.rope_dim)
        keys_values = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank * heads * (self.nope_dim + self.value_dim)
        return queries + keys_values + heads * self.value_dim * hidden


@dataclass(frozen=True)
class LocalAttention:
    """Attention within chunks (Meta, Llama 4, 2025: `attention_chunk_size`) in `layers`.

    A token attends to those before it in its own chunk of `chunk_tokens` tokens, which begins at a multiple of that.
    """

    layers: Count
    chunk_tokens: Count

    def __post_init__(self) -> None:
        check_fields(self, "model.local.")

    def seen(self, context: NDArray[np.float64]) -> NDArray[np.float64]:
        """The tokens that the last one of `context` attends to; beyond one chunk their mean over all its places."""
        return np.where(context <= self.chunk_tokens, context, (self.chunk_tokens + 1) / 2.0)


_SCALE_BYTES = 4  # the scale of an index key, in fp32
DELTA_RULE_FLOPS = 7.0  # for each value of a state and token: it decays, is read, corrected, read


@dataclass(frozen=True)
class SparseAttention:
    """Sparse attention (DSA; DeepSeek-AI, "DeepSeek-V3.2", arXiv 2512.02556, section 2.1), with latent attention.

    An indexer of `index_heads` heads of `index_dim` scores all tokens of the context, and attention reads the
    `top_tokens` best. In each layer a cached token also keeps an index key: `index_dim` values in fp8, and their scale.
    """

    index_heads: Count
    index_dim: Count
    top_tokens: Count

    def __post_init__(self) -> None:
        check_fields(self, "model.sparse.")

    def parameters(self, hidden: int, query_rank: int) -> int:
        """Weights of one layer's indexer: queries from their latent, one key, a weight of each head."""
        return query_rank * self.index_heads * self.index_dim + hidden * (self.index_dim + self.index_heads)

    @property
    def key_bytes(self) -> float:
        """Bytes that the index key of a token takes in one layer."""
        return self.index_dim * DTYPE_BYTES["fp8"] + _SCALE_BYTES


@dataclass(frozen=True)
class LinearAttention:
    """Linear attention by the gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464) in `layers`.

    Such a layer keeps no keys and values, but one state for each request, however long it is: a matrix of `key_dim` x
    `value_dim` for each value head, of `state_dtype`, and the last `kernel` - 1 inputs of a convolution over queries,
    keys and values, in bf16.
    """

    layers: Count
    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    kernel: Count = 4
    state_dtype: Dtype = "bf16"

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_dtype", known_dtype(self.state_dtype))
        check_fields(self, "model.linear.")
        if self.value_heads % self.key_heads:
            raise InputError(
                f"model.linear.value_heads = {self.value_heads} is not a multiple of"
                f" model.linear.key_heads = {self.key_heads}"
            )

    @property
    def convolved(self) -> int:
        """Values of a token that one layer convolves: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one layer: queries, keys, values, the gate of the output, two gates of a head, convolution,
        output.
        """
        values = self.value_heads * self.value_dim
        projected = self.convolved + values + 2 * self.value_heads
        return hidden * projected + self.kernel * self.convolved + values * hidden

    @property
    def state_bytes(self) -> float:
        """Bytes of one request's states in all layers."""
        state = self.value_heads * self.key_dim * self.value_dim * DTYPE_BYTES[self.state_dtype]
        return self.layers * (state + (self.kernel - 1) * self.convolved * DTYPE_BYTES["bf16"])

    @property
    def flops_per_token(self) -> float:
        """FLOPs that a token adds to those of the weights in all layers."""
        return DELTA_RULE_FLOPS * self.layers * self.value_heads * self.key_dim * self.value_dim
