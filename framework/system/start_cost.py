"""What it takes to start an instance: a machine, the weights, and a warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Positive, between, check_fields
from framework.system.cluster import PoolSpec
from framework.system.model import Model, gpu_weight_bytes

_STREAM = 0x57A7  # of the run's seed: other draws of the run have others
_DRAWS = 1024  # after so many starts they repeat
_TICK_S = 2.0**-20  # what is drawn is a multiple of it, so sums with dyadic times are exact


@dataclass(frozen=True)
class StartCost:
    """Parts of the time from switching an instance on until it takes work; nothing by default.

    `provisioning_s`: until its machine and its server run. `load_bytes_s`: bandwidth at which it then reads the weights
    of all its GPUs, None: they are there. `warm_up_s`: from then on, such as for capturing graphs. `source_bytes_s`:
    bandwidth of where all starts read weights, one after the other in the order of their orders; None: starts do not
    slow each other. `spread_s`: standard deviation of the whole, which is normal and not below 0. `fails`: probability
    that a start fails, at its end, and is repeated. Raises InputError for a value out of range.
    """

    provisioning_s: NotNegative = 0.0
    load_bytes_s: Positive | None = None
    warm_up_s: NotNegative = 0.0
    source_bytes_s: Positive | None = None
    spread_s: NotNegative = 0.0
    fails: Annotated[float, between(0, 0.99)] = 0.0

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

    def draws(self, seed: int) -> NDArray[np.float64]:
        """For each of some starts by how many seconds each try is longer, and how often it is tried, (K, 2); (0, 2)
        if starts neither vary nor fail.
        """
        if self.spread_s == 0.0 and self.fails == 0.0:
            return np.zeros((0, 2))
        rng = np.random.default_rng([seed % 2**32, _STREAM])
        longer_s = np.rint(rng.normal(0.0, self.spread_s, _DRAWS) / _TICK_S) * _TICK_S
        return np.column_stack([longer_s, rng.geometric(1.0 - self.fails, _DRAWS)])


def _read_s(model: Model, pool: PoolSpec, bytes_s: float | None) -> float:
    if bytes_s is None:
        return 0.0
    return gpu_weight_bytes(model, pool.parallelism) * pool.own_parallelism.gpus / bytes_s
