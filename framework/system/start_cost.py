"""What it takes to start an instance: a machine, the weights, and a warm-up."""

from __future__ import annotations

from dataclasses import dataclass

from framework.checks import NotNegative, Positive, check_fields
from framework.system.cluster import PoolSpec
from framework.system.model import Model, gpu_weight_bytes


@dataclass(frozen=True)
class StartCost:
    """Parts of the time from switching an instance on until it takes work; nothing by default.

    `provisioning_s`: until its machine and its server run. `load_bytes_s`: bandwidth at which it then reads the weights
    of all its GPUs, None: they are there. `warm_up_s`: from then on, such as for capturing graphs. Raises InputError
    for a value out of range.
    """

    provisioning_s: NotNegative = 0.0
    load_bytes_s: Positive | None = None
    warm_up_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "engine.start.")

    def seconds(self, model: Model, pool: PoolSpec) -> float:
        """Seconds for an instance of the pool."""
        provisioning_s = self.provisioning_s if pool.provisioning_s is None else pool.provisioning_s
        return provisioning_s + self._load_s(model, pool) + self.warm_up_s

    def _load_s(self, model: Model, pool: PoolSpec) -> float:
        if self.load_bytes_s is None:
            return 0.0
        return gpu_weight_bytes(model, pool.parallelism) * pool.own_parallelism.gpus / self.load_bytes_s
