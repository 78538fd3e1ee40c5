"""How unevenly experts are loaded on the GPUs of an expert-parallel group, and what copies of the popular ones mend.

Popularity follows Zipf's law: the expert of rank r (from 1) is chosen in proportion to r^-skew, each layer in an order
of its own. Without copies, experts lie on the GPUs in that order. With `redundant` more slots they are copied and
packed as DeepSeek's load balancer EPLB does globally (github.com/deepseek-ai/EPLB): each further slot goes to the
expert with most load per copy, then the copies, heaviest first, each to the least loaded GPU that has a slot left. The
loads are taken as known: their prediction is out of scope.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError, require_at_least, require_whole

_LAYERS = 64  # orders over which the load of GPUs without copies is averaged


@dataclass(frozen=True)
class ExpertLoad:
    """`skew`: exponent of the popularity, 0: all alike; `redundant`: slots for copies; `seed`: of the experts' orders.

    Raises InputError for a value out of range.
    """

    skew: float = 0.0
    redundant: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least("timing.experts.skew", self.skew, 0)
        require_whole("timing.experts.redundant", self.redundant)
        require_whole("timing.experts.seed", self.seed)

    def most(self, experts: int, ep: int) -> float:
        """Load of the GPU that has most over the mean of `ep` GPUs; a layer ends with it.

        InputError where the slots are fewer than the GPUs.
        """
        if experts + self.redundant < ep:
            raise InputError(
                f"timing.experts: {experts} experts and {self.redundant} redundant ones do not fill ep = {ep} GPUs"
            )
        return _most(self.skew, self.redundant, self.seed, experts, ep)


def expert_load(given: Any) -> ExpertLoad | None:
    """An ExpertLoad from its settings by name; None and one that is made already pass. InputError for anything else."""
    if given is None or isinstance(given, ExpertLoad):
        return given
    known = [item.name for item in fields(ExpertLoad)]
    if not isinstance(given, Mapping) or not set(given) <= set(known):
        raise InputError(f"timing.experts must be null or settings among {', '.join(known)}, got {given!r}")
    return ExpertLoad(**given)


@functools.lru_cache(maxsize=64)
def _most(skew: float, redundant: int, seed: int, experts: int, ep: int) -> float:
    loads = popularity(experts, skew)
    if redundant:
        copies = replicate(loads, experts + redundant)
        each = np.repeat(loads / copies, copies)
        return ep * float(pack(each, ep).max())
    generator = np.random.default_rng(seed)
    return ep * float(np.mean([in_order(generator.permutation(loads), ep).max() for _ in range(_LAYERS)]))


def popularity(experts: int, skew: float) -> NDArray[np.float64]:
    """Share of the tokens that each expert gets, the most popular first; shape (experts,)."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return np.asarray(weights / weights.sum())


def in_order(loads: NDArray[np.float64], gpus: int) -> NDArray[np.float64]:
    """Load of each GPU where experts are dealt out in their order, as evenly in number as can be; shape (gpus,)."""
    return np.array([part.sum() for part in np.array_split(loads, gpus)])


def replicate(loads: NDArray[np.float64], slots: int) -> NDArray[np.int64]:
    """Copies of each expert on so many slots; the first among equals gets the next."""
    copies = np.ones(len(loads), np.int64)
    for _ in range(slots - len(loads)):
        copies[np.argmax(loads / copies)] += 1
    return copies


def pack(loads: NDArray[np.float64], gpus: int) -> NDArray[np.float64]:
    """Load of each GPU after packing, ceil(len(loads) / gpus) slots each; shape (gpus,)."""
    room = -(-len(loads) // gpus)
    packed, used = np.zeros(gpus), np.zeros(gpus, np.int64)
    for load in -np.sort(-loads):
        gpu = int(np.argmin(np.where(used < room, packed, np.inf)))
        packed[gpu] += load
        used[gpu] += 1
    return packed
