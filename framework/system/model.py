"""Models: the numbers behind step times and KV capacity, and the KV tokens for which an instance has room."""

from __future__ import annotations

from dataclasses import dataclass

from framework.checks import MOST_COUNTED, Count, Name, Whole, check_fields
from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.layers import (
    Dtype,
    Experts,
    LatentAttention,
    LinearAttention,
    LocalAttention,
    SparseAttention,
    known_dtype,
)
from framework.system.parallelism import Parallelism

__all__ = [
    "Experts",
    "LatentAttention",
    "LinearAttention",
    "LocalAttention",
    "Model",
    "SparseAttention",
    "TooLargeError",
    "gpu_weight_bytes",
    "kv_capacity_tokens",
]


@dataclass(frozen=True)
class Model:
    """A transformer decoder.

    `kv_heads` < `heads`: grouped-query attention; `latent`: multi-head latent attention instead. `mlp_matrices`: 3 for
    a gated MLP, 2 for one without a gate; `experts`: a mixture of experts instead of the MLP. `windowed_layers` layers,
    not all of them, attend to the last `window` tokens only. `linear`: some layers have linear attention instead, whose
    state has a constant size. `local`: some layers attend within chunks; their keys and values stay for the whole
    context. `sparse`: latent attention reads the tokens that an indexer chooses. `output_gate`: the
    projection of queries also yields a gate of as many values. `norm_across_heads`: queries and keys are normed over
    all heads together, so the GPUs that split the heads add their sums. `dtype`, `kv_dtype`: of weights and of cached
    keys and values, names of DTYPE_BYTES. Biases and learned positions, under 0.1 % of any such model, are not counted.
    """

    name: Name
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count
    max_context: Count
    tied_embeddings: bool = False
    mlp_matrices: Count = 3
    dtype: Dtype = "bf16"
    kv_dtype: Dtype = "bf16"
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: Whole = 0
    windowed_layers: Whole = 0
    norm_across_heads: bool = False
    linear: LinearAttention | None = None
    sparse: SparseAttention | None = None
    output_gate: bool = False
    local: LocalAttention | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", known_dtype(self.dtype))
        check_fields(self, "model.")
        if self.heads % self.kv_heads:
            raise InputError(f"model.heads = {self.heads} is not a multiple of model.kv_heads = {self.kv_heads}")
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind | None):
                raise InputError(f"model.{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        if self.full_layers < 1:
            kinds = {"linear": self.linear, "local": self.local}
            others = "".join(f", model.{name}.layers = {one.layers}" for name, one in kinds.items() if one is not None)
            raise InputError(
                f"model.windowed_layers = {self.windowed_layers}{others} of {self.layers} layers: at least one must"
                " attend to the whole context"
            )
        if (self.windowed_layers > 0) != (self.window > 0):
            raise InputError(
                f"model.windowed_layers = {self.windowed_layers} with model.window = {self.window}:"
                " give both or neither"
            )
        if self.sparse is not None and self.latent is None:
            raise InputError("model.sparse needs model.latent: the tokens that it chooses are read as latents")
        for name in ("linear", "local"):
            if getattr(self, name) is not None and self.latent is not None:
                raise InputError(f"model.{name} beside model.latent: no step times are known of layers of both kinds")
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise InputError(f"model.experts.dense_layers = {self.experts.dense_layers} of {self.layers} layers")

    @property
    def dtype_bytes(self) -> float:
        """Bytes of a weight outside the experts."""
        return DTYPE_BYTES[self.dtype]

    @property
    def expert_dtype(self) -> str:
        """Type of the experts' weights."""
        return self.dtype if self.experts is None or self.experts.dtype is None else self.experts.dtype

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return 0 if self.experts is None else self.layers - self.experts.dense_layers

    @property
    def linear_layers(self) -> int:
        """Layers with linear attention."""
        return 0 if self.linear is None else self.linear.layers

    @property
    def local_layers(self) -> int:
        """Layers that attend within chunks."""
        return 0 if self.local is None else self.local.layers

    @property
    def full_layers(self) -> int:
        """Layers that attend to the whole context: without window, chunks and linear attention."""
        return self.growing_layers - self.local_layers

    @property
    def growing_layers(self) -> int:
        """Layers whose keys and values grow with the context: without a window, and without linear attention."""
        return self.layers - self.windowed_layers - self.linear_layers

    @property
    def attention_parameters(self) -> int:
        """Weights of the attention of all layers."""
        if self.latent is not None:
            each = self.latent.parameters(self.hidden, self.heads)
            if self.sparse is not None:
                each += self.sparse.parameters(self.hidden, self.latent.query_rank)
            return self.layers * each
        queries = 2 if self.output_gate else 1
        each = self.hidden * self.head_dim * ((queries + 1) * self.heads + 2 * self.kv_heads)
        linear = 0 if self.linear is None else self.linear.layers * self.linear.parameters(self.hidden)
        return (self.layers - self.linear_layers) * each + linear

    @property
    def expert_parameters(self) -> int:
        """Weights of all experts of all layers, except shared ones."""
        if self.experts is None:
            return 0
        return self.expert_layers * self.experts.count * self._mlp(self.experts.intermediate)

    @property
    def shared_parameters(self) -> int:
        """Weights that every token passes: all except experts, embedding and output projection."""
        mlps = (self.layers - self.expert_layers) * self._mlp(self.intermediate)
        if self.experts is not None:
            router = self.hidden * self.experts.count
            mlps += self.expert_layers * (self._mlp(self.experts.shared_intermediate) + router)
        return self.attention_parameters + 2 * self.layers * self.hidden + mlps + self.hidden

    @property
    def active_parameters(self) -> int:
        """Weights that one token passes, without embedding and output projection."""
        if self.experts is None:
            return self.shared_parameters
        return self.shared_parameters + self.expert_parameters * self.experts.per_token // self.experts.count

    @property
    def output_parameters(self) -> int:
        """Weights of the projection to the vocabulary."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; a tied embedding counts once."""
        embeddings = self.output_parameters * (1 if self.tied_embeddings else 2)
        return self.shared_parameters + self.expert_parameters + embeddings

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights. Embedding and output projection stay in bf16 if the rest is quantised."""
        embeddings = self.parameters - self.shared_parameters - self.expert_parameters
        return (
            self.shared_parameters * self.dtype_bytes
            + self.expert_parameters * DTYPE_BYTES[self.expert_dtype]
            + embeddings * max(self.dtype_bytes, DTYPE_BYTES["bf16"])
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in all layers that keep them: 2 L n_kv d_h b; see `latent`, `sparse`.

        Layers with a window keep no more than the window: they do not grow with the context and are not counted.
        """
        values = 2 * self.kv_heads * self.head_dim
        if self.latent is not None:
            values = self.latent.kv_rank + self.latent.rope_dim
        index = 0.0 if self.sparse is None else self.sparse.key_bytes
        return self.growing_layers * (values * DTYPE_BYTES[self.kv_dtype] + index)

    @property
    def state_bytes(self) -> float:
        """Bytes that a request keeps in addition to its tokens' keys and values, of any length: states of `linear`."""
        return 0.0 if self.linear is None else self.linear.state_bytes

    @property
    def flops_per_token(self) -> float:
        """FLOPs of a token, whatever it attends to: two for each weight that it passes, and those of `linear`."""
        states = 0.0 if self.linear is None else self.linear.flops_per_token
        return 2.0 * self.active_parameters + states

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs of attention for each pair of a query and a key, without windowed and local layers: scores, weighted
        sum.

        With `sparse` those of the indexer: attention reads no more than `top_tokens` keys, as layers with a window do.
        """
        if self.sparse is not None:
            return 2.0 * self.full_layers * self.sparse.index_heads * self.sparse.index_dim
        if self.latent is None:
            per_head = 2 * self.head_dim
        else:
            per_head = self.latent.nope_dim + self.latent.rope_dim + self.latent.value_dim
        return 2.0 * self.full_layers * self.heads * per_head

    def heads_on(self, tp: int) -> tuple[int, int]:
        """Query and KV heads on each of `tp` GPUs; GPUs beyond the number of KV heads hold a copy of one.

        Raises InputError for tp that does not divide the query heads.
        """
        if self.heads % tp:
            raise InputError(f"tp = {tp} does not divide the {self.heads} heads of {self.name}")
        return self.heads // tp, -(-self.kv_heads // tp)

    def require_split(self, parallelism: Parallelism) -> None:
        """Raise InputError for pipeline stages without a layer, and for tp that does not divide the heads."""
        if parallelism.pp > self.layers:
            raise InputError(f"pp = {parallelism.pp} stages cannot share the {self.layers} layers of {self.name}")
        self.heads_on(parallelism.tp)

    def state_tokens(self, tp: int) -> float:
        """The tokens whose KV takes as many bytes on each of `tp` GPUs as the states of one request, which are split.

        Raises InputError for tp that does not divide the heads of states.
        """
        if self.linear is None:
            return 0.0
        if self.linear.value_heads % tp:
            raise InputError(f"tp = {tp} does not divide the {self.linear.value_heads} value heads of {self.name}")
        return self.state_bytes / tp / (self.kv_bytes_per_token * self.kv_share(tp))

    def kv_share(self, tp: int) -> float:
        """Share of a token's KV that each of `tp` GPUs holds: whole heads; latent KV is copied to all."""
        return 1.0 if self.latent is not None else -(-self.kv_heads // tp) / self.kv_heads

    def _mlp(self, intermediate: int) -> int:
        return self.mlp_matrices * self.hidden * intermediate


_KINDS = {
    "experts": Experts,
    "latent": LatentAttention,
    "linear": LinearAttention,
    "local": LocalAttention,
    "sparse": SparseAttention,
}
_GB = 1e9


class TooLargeError(InputError):
    """A model that does not fit its GPUs. `lacking`: the missing memory, as a share of the usable memory."""

    def __init__(self, message: str, lacking: float = 0.0) -> None:  # the default is for pickle
        super().__init__(message)
        self.lacking = lacking


def gpu_weight_bytes(model: Model, parallelism: Parallelism) -> float:
    """Bytes of weights on each GPU of an instance.

    Weights outside the experts are split over tp and pp and copied over dp, experts are split over all GPUs.
    """
    expert_bytes = model.expert_parameters * DTYPE_BYTES[model.expert_dtype]
    return (model.weight_bytes - expert_bytes) / (parallelism.tp * parallelism.pp) + expert_bytes / parallelism.gpus


def kv_capacity_tokens(
    model: Model, gpu: Gpu, parallelism: Parallelism, kv_fraction: float, memory_share: float = 1.0
) -> int:
    """KV tokens that an instance holds next to the weights, using `kv_fraction` of the memory for both.

    A token takes `memory_share` of the model's KV bytes.

    Weights are those of `gpu_weight_bytes`. KV heads are split over tp (with more GPUs than KV heads each holds a copy
    of one head, latent KV is copied to all), and each of the dp groups holds its own sequences. Raises TooLargeError,
    with the arithmetic, if not one token fits.
    """
    tp, pp, dp = parallelism.tp, parallelism.pp, parallelism.dp
    usable = gpu.memory_bytes * kv_fraction
    weights = gpu_weight_bytes(model, parallelism)
    per_token = model.kv_bytes_per_token * memory_share * model.kv_share(tp) / pp
    tokens = dp * int((usable - weights) // per_token)
    if tokens < 1:
        raise TooLargeError(
            f"model {model.name} does not fit gpu {gpu.name}: weights {model.weight_bytes / _GB:.1f} GB on"
            f" {parallelism.gpus} GPU{'s' if parallelism.gpus > 1 else ''} ({parallelism})"
            f" = {weights / _GB:.1f} GB per GPU, usable {gpu.memory_bytes / _GB:.1f} GB x kv_fraction {kv_fraction:g}"
            f" = {usable / _GB:.1f} GB; use more GPUs per instance (cluster.tp) or a larger gpu",
            (weights + per_token - usable) / usable,
        )
    if tokens > MOST_COUNTED:
        raise InputError(f"gpu {gpu.name} holds {tokens:g} KV tokens of model {model.name}, more than can be counted")
    return tokens
