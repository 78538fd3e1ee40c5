"""Instances that lose GPUs and go on with the others: memory for KV, work of each GPU, and time to reconfigure.

Weights are split over the GPUs that are left, so each holds more of them, and does more of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from framework.checks import NotNegative, Positive, check_fields
from framework.system.cluster import PoolSpec
from framework.system.model import Model, gpu_weight_bytes
from framework.system.parallelism import Parallelism

AfterLoss = Literal["wait", "go_on"]
KvSplit = Literal["even", "heads"]


class Fewer(NamedTuple):
    """An instance that has only `gpus` of its GPUs left.

    `kv_tokens`: those that it has room for, 0: the model does not fit. `work` and `attention`: the times of matrices
    and of attention, relative to those of all GPUs. `shrink_s`: seconds until it goes on with these GPUs, `grow_s`:
    until it goes on with all again.
    """

    gpus: int
    kv_tokens: int
    work: float
    attention: float
    shrink_s: float
    grow_s: float


@dataclass(frozen=True)
class FewerGpus:
    """What becomes of an instance that has lost GPUs, and what it costs to go on with the others.

    `after_loss`: it waits for the repair, or goes on, unless a policy's `reconfigure` says. `setup_s`: seconds of a
    reconfiguration beyond loading weights, such as for communicators and CUDA graphs. `load_bytes_s`: at which each GPU
    loads the weights that it lacks, None: over its PCIe link. `kv_split`: KV and attention are shared evenly, as by
    FailSafe's cyclic placement and hybrid attention (arXiv 2511.14116, abstract), or by whole KV heads, so that the GPU
    with the most of them bounds both. Raises InputError for a value out of range.
    """

    after_loss: AfterLoss = "wait"
    setup_s: NotNegative = 0.0
    load_bytes_s: Positive | None = None
    kv_split: KvSplit = "even"

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.fewer.")

    def of(self, model: Model, pool: PoolSpec, lost: int, kv_fraction: float, memory_share: float) -> Fewer:
        """An instance of the pool without `lost` of its GPUs; the other arguments are those of `PoolSpec.kv_tokens`."""
        whole = pool.parallelism.tp
        left = whole - lost
        factor = whole / left
        share, own_share = model.kv_share(whole), model.kv_share(left)
        if self.kv_split == "even":
            own_share = min(1.0, share * factor)
        weights, own_weights = (gpu_weight_bytes(model, Parallelism(tp)) for tp in (whole, left))
        free_bytes = pool.gpu.memory_bytes * kv_fraction - own_weights
        tokens = int(free_bytes // (model.kv_bytes_per_token * memory_share * own_share))
        load_bytes_s = self.load_bytes_s or pool.gpu.pcie_bytes_s
        return Fewer(
            gpus=left,
            kv_tokens=max(0, tokens),
            work=factor,
            attention=factor if self.kv_split == "even" else max(factor, own_share / share),
            shrink_s=self.setup_s + (own_weights - weights) / load_bytes_s,
            grow_s=self.setup_s + weights / load_bytes_s,
        )
