"""How many tokens of KV an instance has room for beside the weights."""

from __future__ import annotations

from framework.errors import InputError
from framework.hardware import DTYPE_BYTES, Gpu, Model, Parallelism

_GB = 1e9


class TooLargeError(InputError):
    """A model that does not fit its GPUs. `lacking`: how much memory is missing, as a share of what is usable."""

    def __init__(self, message: str, lacking: float = 0.0) -> None:  # the default is for pickle
        super().__init__(message)
        self.lacking = lacking


def kv_capacity_tokens(
    model: Model, gpu: Gpu, parallelism: Parallelism, kv_fraction: float, memory_share: float = 1.0
) -> int:
    """KV tokens that an instance holds beside the weights, using `kv_fraction` of the memory for both.

    A token takes `memory_share` of the model's KV bytes.

    Weights outside the experts are split over tp and pp and copied over dp, experts are split over all GPUs; KV heads
    are split over tp (with more GPUs than KV heads each holds a copy of one head, latent KV is copied to all), and each
    of the dp groups holds sequences of its own. Raises TooLargeError, with the arithmetic, if not one token fits.
    """
    tp, pp, dp = parallelism.tp, parallelism.pp, parallelism.dp
    usable = gpu.memory_bytes * kv_fraction
    expert_bytes = model.expert_parameters * DTYPE_BYTES[model.expert_dtype]
    weights = (model.weight_bytes - expert_bytes) / (tp * pp) + expert_bytes / parallelism.gpus
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
    return tokens
