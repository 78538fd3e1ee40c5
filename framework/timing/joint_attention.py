"""Which GPUs and servers run the attention of a step's chunks and of its decodes as one kernel.

FlashAttention 2 does: flash_attn_varlen_func takes all sequences of a step, and where any of them has a chunk, each
decode takes up a whole tile of queries, most of which is empty. vLLM calls it so, on keys and values in bf16, on GPUs
for which FlashAttention 3 and the kernels made for data-centre Blackwell do not exist: compute capabilities 8.0, 8.6,
8.9 and 12.0 (vllm/v1/attention/backends/fa_utils.py chooses the version). Measured there, a chunk of 512 tokens beside
128 decodes of 1,024 tokens: 23.5 ms on an RTX PRO 6000 and 49.4 ms on an RTX 4090, where the parts alone sum to 13.8
and 20.7 ms. TensorRT-LLM and SGLang have kernels of their own for decodes, and so has multi-head latent attention.
"""

from __future__ import annotations

from typing import Any

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model

JOINT = ", attention of chunks and decodes in one kernel"  # follows the source of step times
_COMPUTE_CAPABILITIES = (8.0, 8.6, 8.9, 12.0)
_APART = ("trtllm", "sglang")
# Rows of queries in a tile of the kernel for paged keys (Dao-AILab/flash-attention, flash_fwd_launch_template.h:
# kBlockM of run_mha_fwd_splitkv_dispatch, the same for all head sizes).
_TILE_ROWS = 64


def require_joint(value: Any) -> None:
    """Raise InputError unless `value` is true, false or None."""
    if value is not None and not isinstance(value, bool):
        raise InputError(f"timing.joint_attention must be true, false or null, got {value!r}")


def decode_rows(gpu: Gpu, model: Model, backend: str, joint: bool | None) -> float:
    """The rows of a tile that a decode takes up beside chunks, 0 where it has a kernel of its own.

    `joint` decides; where it is None, GPU, model and backend do.
    """
    if joint is None:
        runs = gpu.compute_capability in _COMPUTE_CAPABILITIES and backend not in _APART
        joint = runs and model.latent is None and model.kv_dtype == "bf16"
    return float(_TILE_ROWS) if joint else 0.0
