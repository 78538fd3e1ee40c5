"""Memory of a run whose requests are not known beforehand: a row for each that may come, and room for their names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framework.engine.memory.state import Memory
from framework.engine.setup.allocate import allocate
from framework.engine.setup.config import Setting
from framework.workload import Workload, consecutive, read_only

FAR_S = 1e9  # when requests arrive that nobody has sent
_NAMES = 1 << 22  # blocks with names, of all requests under way
_STORED = 1 << 20  # the same with stores, which have a list by names; names are below that number then
_LONGEST = 1 << 12  # blocks of one request in the layout of memory


def allocate_open(setting: Setting, most: int) -> tuple[Memory, NDArray[np.int32]]:
    """The memory of a run of at most `most` requests, none of which has been sent, and its `names`, to be written.

    The workload of the setting does not count. With stores of prefixes names are below `options.tier_keys`. Raises
    InputError as `allocate` does.
    """
    room = _room(setting, most)
    memory, names = allocate(replace(setting, workload=room)), np.zeros(len(room.hash_ids), np.int32)
    memory.requests["input_tokens"], memory.requests["hash_at"], memory.requests["hash_count"] = 1, 0, 0
    memory.instances["off_since_s"] = 0.0  # the run begins at 0
    return memory._replace(names=read_only(names)), names


def _room(setting: Setting, most: int) -> Workload:
    """A workload whose layout has room for `most` requests, and for the blocks of those that are under way at once."""
    engine = setting.engine
    long = min(most, (_STORED if engine.prefix_stores.tiers else _NAMES) // _LONGEST)
    input_tokens = np.ones(most, np.int64)
    input_tokens[:long] = _LONGEST * engine.block_tokens
    return Workload(
        arrival_s=np.full(most, FAR_S),
        input_tokens=input_tokens,
        output_tokens=np.ones(most, np.int64),
        hash_ids=np.arange(long * _LONGEST, dtype=np.int32),
        hash_spans=consecutive(np.where(np.arange(most) < long, _LONGEST, 0)),
        hash_block_tokens=engine.block_tokens,
    )
