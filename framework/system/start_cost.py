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
    of all its GPUs, None: they are there. `warm_up_s`: from then on, such as for capturing graphs. `source_bytes_s`:
    bandwidth of where all starts read weights, one after the other in the order of their orders; None: starts do not
    slow each other. Raises InputError for a value out of range.
    """

    provisioning_s: NotNegative = 0.0
    load_bytes_s: Positive | None = None
    warm_up_s: NotNegative = 0.0
    source_bytes_s: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self, "engine.start.")

    def seconds(self, model: Model, pool: PoolSpec) -> float:
        """Seconds for an instance of the pool, if no other start is served before it."""
        load_s = max(_read_s(model, pool, self.load_bytes_s), self.source_s(model, pool))
        return self.before_load_s(pool) + load_s + self.warm_up_s

    def before_load_s(self, pool: PoolSpec) -> float:
        """Seconds until an instance of the pool begins to read its weights."""
        return self.provisioning_s if pool.provisioning_s is None else pool.provisioning_s

    def source_s(self, model: Model, pool: PoolSpec) -> float:
        """Seconds for which an instance of the pool occupies the source of weights."""
        return _read_s(model, pool, self.source_bytes_s)


def _read_s(model: Model, pool: PoolSpec, bytes_s: float | None) -> float:
    if bytes_s is None:
        return 0.0
    return gpu_weight_bytes(model, pool.parallelism) * pool.own_parallelism.gpus / bytes_s
