"""GPUs and models: the numbers that every step time and every KV capacity is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framework.errors import InputError
from framework.validate import require_at_least, require_count, require_positive

_GB = 1e9
_DTYPE_OF_BYTES = {4: "fp32", 2: "bf16", 1: "fp8"}


@dataclass(frozen=True)
class Gpu:
    """One GPU as its datasheet states it.

    `peak_flops`: dense FLOP/s per data type; `link_bytes_s`: to the GPUs of the same node, in each direction;
    `nic_bytes_s`: this GPU's share of the network between nodes, in each direction; `usd_per_hour`: rental price.
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    bandwidth_bytes_s: float
    link_bytes_s: float
    pcie_bytes_s: float
    nic_bytes_s: float
    tdp_w: float
    idle_w: float
    usd_per_hour: float

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "bandwidth_bytes_s", "link_bytes_s", "pcie_bytes_s", "nic_bytes_s", "tdp_w"):
            require_positive(f"gpu.{name}", getattr(self, name))
        for name in ("idle_w", "usd_per_hour"):
            require_at_least(f"gpu.{name}", getattr(self, name), 0)
        if not isinstance(self.peak_flops, Mapping):
            raise InputError(f"gpu.peak_flops must map data types to FLOP/s, got {self.peak_flops!r}")
        for dtype, flops in self.peak_flops.items():
            require_positive(f"gpu.peak_flops.{dtype}", flops)

    def peak(self, dtype_bytes: float) -> float:
        """Dense FLOP/s for operands of that many bytes; InputError where the GPU states none."""
        dtype = _DTYPE_OF_BYTES.get(int(dtype_bytes), "")
        if dtype not in self.peak_flops:
            raise InputError(
                f"gpu {self.name} states no peak for {dtype_bytes}-byte operands (it has {', '.join(self.peak_flops)}):"
                " choose another model.dtype_bytes or gpu"
            )
        return float(self.peak_flops[dtype])


@dataclass(frozen=True)
class Model:
    """A dense transformer decoder.

    `kv_heads` < `heads`: grouped-query attention. `mlp_matrices`: 3 for a gated MLP, 2 for a plain one. Biases and
    learned positions, under 0.1 % of any such model, are not counted.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    tied_embeddings: bool = False
    mlp_matrices: int = 3
    dtype_bytes: int = 2
    kv_dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for name in (
            *("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_context"),
            *("mlp_matrices", "dtype_bytes", "kv_dtype_bytes"),
        ):
            require_count(f"model.{name}", getattr(self, name))
        if self.heads % self.kv_heads:
            raise InputError(f"model.heads = {self.heads} is not a multiple of model.kv_heads = {self.kv_heads}")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: attention projections, MLP, two norms."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        return attention + self.mlp_matrices * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def non_embedding_parameters(self) -> int:
        """Weights that every token passes: all but the embedding and the output projection."""
        return self.layers * self.layer_parameters + self.hidden

    @property
    def output_parameters(self) -> int:
        """Weights of the projection to the vocabulary."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; a tied embedding counts once."""
        return self.non_embedding_parameters + self.output_parameters * (1 if self.tied_embeddings else 2)

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers: 2 L n_kv d_h b."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype_bytes


def kv_capacity_tokens(model: Model, gpu: Gpu, tp: int, kv_fraction: float) -> int:
    """KV tokens that an instance of `tp` GPUs holds beside the weights, using `kv_fraction` of the memory for both.

    Weights and KV heads are split over the GPUs; with more GPUs than KV heads each GPU holds a copy of one head. Raises
    InputError, with the arithmetic, if not one token fits.
    """
    usable = gpu.memory_bytes * kv_fraction
    weights = model.weight_bytes / tp
    per_token = model.kv_bytes_per_token * -(-model.kv_heads // tp) / model.kv_heads
    tokens = int((usable - weights) // per_token)
    if tokens < 1:
        raise InputError(
            f"model {model.name} does not fit gpu {gpu.name}: weights {model.weight_bytes / _GB:.1f} GB / tp {tp}"
            f" = {weights / _GB:.1f} GB per GPU, usable {gpu.memory_bytes / _GB:.1f} GB x kv_fraction {kv_fraction:g}"
            f" = {usable / _GB:.1f} GB; use more GPUs per instance (cluster.tp) or a larger gpu"
        )
    return tokens
