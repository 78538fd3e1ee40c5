"""The uneven load of experts on the GPUs of an expert-parallel group, and how copies even it out.

Popularity follows Zipf's law: the expert of rank r (from 1) is chosen in proportion to r^-skew, in a different order in
each layer. Without copies, experts lie on the GPUs in that order. With `redundant` more slots they are copied and
packed as DeepSeek's load balancer EPLB does globally (github.com/deepseek-ai/EPLB). Each further slot goes to the
expert with the most load per copy. The copies, heaviest first, then each go to the least loaded GPU with a free slot.
The loads are assumed to be known: their prediction is out of scope.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Whole, check_fields, up_to
from framework.errors import InputError
from framework.timing.profile import NODE_GPUS, StepParts

_LAYERS = 64  # orders over which the load of GPUs without copies is averaged


@dataclass(frozen=True)
class ExpertLoad:
    """The popularity of experts, and the number of their copies.

    `skew` is the exponent of the popularity; 0 makes all experts equal. `redundant` is the number of further slots, for
    copies. `seed` is that of the orders in which experts lie on the GPUs. Raises InputError for a value out of range.
    """

    skew: NotNegative = 0.0
    redundant: Annotated[int, up_to(10_000, least=0)] = 0
    seed: Whole = 0

    def __post_init__(self) -> None:
        check_fields(self, "timing.experts.")

    def most(self, experts: int, ep: int) -> float:
        """The load of the GPU with the most tokens divided by the mean of `ep` GPUs, at least 1.

        Raises InputError if there are fewer slots than GPUs.
        """
        if experts + self.redundant < ep:
            raise InputError(
                f"timing.experts: {experts} experts and {self.redundant} redundant ones do not fill ep = {ep} GPUs"
            )
        return _most(self.skew, self.redundant, self.seed, experts, ep)


def expert_load(given: Any) -> ExpertLoad | None:
    """An ExpertLoad from its settings by name; None and an ExpertLoad stay as they are.

    Raises InputError for anything else.
    """
    if given is None or isinstance(given, ExpertLoad):
        return given
    known = [item.name for item in fields(ExpertLoad)]
    if not isinstance(given, Mapping) or not set(given) <= set(known):
        raise InputError(f"timing.experts must be null or settings among {', '.join(known)}, got {given!r}")
    return ExpertLoad(**given)


def with_expert_load(parts: StepParts, load: float) -> StepParts:
    """The parts of a step if the GPU with the most tokens of a layer has `load` times as many as was measured.

    A layer ends with that GPU: its experts take `load` times as long, and so do dispatch and combine if they cross
    nodes. The measured routing is uneven itself (framework.timing.kernels.operations), so 1 changes nothing. Within a
    node every GPU gathers all tokens, whatever experts they choose.
    """
    parallelism = parts.setup.parallelism
    crosses = parallelism.dp > 1 and parallelism.ep > NODE_GPUS
    rows = {
        "experts": parts["experts"].times(load),
        "communication": parts["communication"].times(load if crosses else 1.0),
    }
    return replace(parts, rows=dict(parts.rows) | rows)


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
    """The share of the tokens that each expert gets, the most popular first; shape (experts,)."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return np.asarray(weights / weights.sum())


def in_order(loads: NDArray[np.float64], gpus: int) -> NDArray[np.float64]:
    """The load of each GPU if experts are dealt out in order, in numbers as equal as possible; shape (gpus,)."""
    return np.array([part.sum() for part in np.array_split(loads, gpus)])


def replicate(loads: NDArray[np.float64], slots: int) -> NDArray[np.int64]:
    """The copies of each expert in `slots` slots, of the shape of `loads`; the first of equals gets the next copy."""
    copies = np.ones(len(loads), np.int64)
    for _ in range(slots - len(loads)):
        copies[np.argmax(loads / copies)] += 1
    return copies


def pack(loads: NDArray[np.float64], gpus: int) -> NDArray[np.float64]:
    """The load of each GPU, shape (gpus,), after these loads were packed, ceil(len(loads) / gpus) of them to a GPU."""
    room = -(-len(loads) // gpus)
    packed, used = np.zeros(gpus), np.zeros(gpus, np.int64)
    for load in -np.sort(-loads):
        gpu = int(np.argmin(np.where(used < room, packed, np.inf)))
        packed[gpu] += load
        used[gpu] += 1
    return packed
