"""Which GPUs and servers run the attention of a step's chunks and of its decodes as one kernel, and how it runs.

FlashAttention 2 does: flash_attn_varlen_func takes all sequences of a step, and if any of them has a chunk, each decode
takes a whole tile of queries, most of which is empty. vLLM calls it this way, on keys and values in bf16, on GPUs for
which FlashAttention 3 and the kernels for data-centre Blackwell do not exist: compute capabilities 8.0, 8.6, 8.9 and
12.0 (vllm/v1/attention/backends/fa_utils.py chooses the version). Measured there, a chunk of 512 tokens with 128
decodes of 1,024 tokens takes 23.5 ms on an RTX PRO 6000 and 49.4 ms on an RTX 4090, while the parts alone sum to 13.8
and 20.7 ms. TensorRT-LLM and SGLang have separate kernels for decodes, and so has multi-head latent attention.

The kernel has a tile for each query head and decode, and does not split keys over tiles. It starts them head by head
(flash_fwd_launch_template.h: the grid has tiles of a sequence first, then sequences, then heads), so query heads that
share a KV head follow each other. The first of them reads keys and values from memory, the others find them in the
cache. If the decodes of one head fill the whole GPU, nothing runs concurrently with that first reading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.step_row import StepRow

JOINT = ", attention of chunks and decodes in one kernel"  # follows the source of step times
# Tiles that a multiprocessor runs at once, by compute capability: one takes 80 KB of shared memory, queries of 64 rows
# and keys and values of 128 tokens (heads of 128), of the 164 KB (8.0) or 100 KB of a multiprocessor (CUDA C++
# Programming Guide, technical specifications).
_TILES = {8.0: 2, 8.6: 1, 8.9: 1, 12.0: 1}
_APART = ("trtllm", "sglang")
# Rows of queries in a tile of the kernel for paged keys (Dao-AILab/flash-attention, flash_fwd_launch_template.h:
# kBlockM of run_mha_fwd_splitkv_dispatch, the same for all head sizes).
_TILE_ROWS = 64


def is_joint(gpu: Gpu, model: Model, backend: str) -> bool:
    """Whether the backend runs chunks and decodes of the model as one kernel on the GPU."""
    runs = gpu.compute_capability in _TILES and backend not in _APART
    return runs and model.latent is None and model.kv_dtype == "bf16"


def decode_rows(gpu: Gpu, model: Model, backend: str, *, joint: bool | None) -> float:
    """The rows of a tile that a decode takes with chunks, 0 if it has its own kernel.

    `joint` decides; if it is None, GPU, model and backend do.
    """
    joint = is_joint(gpu, model, backend) if joint is None else joint
    return float(_TILE_ROWS) if joint else 0.0


@dataclass(frozen=True)
class Joint:
    """The properties of one kernel for chunks and decodes: the fields of `StepRow` of these names."""

    decode_rows: float
    head_group: float
    decodes_at_once: float

    def of(self, row: StepRow) -> StepRow:
        """The row of an instance whose kernels have these properties."""
        return replace(row, **vars(self))


def joint_kernel(gpu: Gpu, model: Model, parallelism: Parallelism, backend: str, *, joint: bool | None) -> Joint:
    """How an instance's kernel for chunks and decodes runs; `joint` as for `decode_rows`.

    Raises InputError if tp does not divide the heads.
    """
    heads, kv_heads = (1, 1) if model.latent is not None else model.heads_on(parallelism.tp)
    rows = decode_rows(gpu, model, backend, joint=joint)
    return Joint(rows, heads / kv_heads, _tiles_at_once(gpu, parallelism))


def _tiles_at_once(gpu: Gpu, parallelism: Parallelism) -> float:
    """Tiles of one head that the GPUs of an instance run at once; inf if unknown."""
    tiles = _TILES.get(gpu.compute_capability or 0.0)
    if tiles is None or gpu.multiprocessors is None:
        return float("inf")
    return float(tiles * gpu.multiprocessors * parallelism.dp * parallelism.pp)
