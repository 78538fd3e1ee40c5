"""Programs before the first event: what each call waits for, and what a client has to send of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.codes import RANKS
from framework.engine.memory.state import Memory
from framework.engine.setup.prefix_layout import ListSpace
from framework.load import Load
from framework.workload import Workload
from framework.workload.programs import besides


def lay_out_programs(options: NDArray[np.void], space: ListSpace, workload: Workload, load: Load) -> None:
    """Lay out the lists of programs that are more than chains."""
    count, joins = len(workload), workload.joins
    options["joins"] = joins is not None and len(joins) > 0
    options["joins_at"] = space.reserve(count + 1 + len(joins) if joins is not None and len(joins) else 0)
    options["overlaps"] = load.clients is not None and workload.overlaps
    for name in ("opener_at", "unended_at", "beside_at"):
        options[name] = space.reserve(count if options["overlaps"][0] else 0)


def prepare_call_ends(memory: Memory) -> None:
    """Write the first request that each waits for, and empty lists of ranked blocks, before the first event."""
    requests, count = memory.requests, len(memory.requests)
    awaited = memory.lists[memory.options["awaited_at"][0] :][:count]
    awaited[:] = -1
    memory.lists[memory.options["ranks_at"][0] :][: 2 * RANKS * len(memory.instances)] = -1
    before = np.flatnonzero(requests["followed_by"] >= 0)
    after = requests["followed_by"][before]
    while len(after):
        awaited[after] = before
        more = requests["next"][after]
        before, after = before[more >= 0], more[more >= 0]


def fill_programs(
    options: NDArray[np.void], requests: NDArray[np.void], lists: NDArray[np.int64], workload: Workload
) -> None:
    """Write these lists, and for a closed load how long each further first call comes after the one before it."""
    count = len(workload)
    if options["joins"][0] and workload.joins is not None:
        at, joins = int(options["joins_at"][0]), workload.joins[np.argsort(workload.joins[:, 0], kind="stable")]
        lists[at : at + count + 1] = at + count + 1 + np.searchsorted(joins[:, 0], np.arange(count + 1))
        lists[at + count + 1 :][: len(joins)] = joins[:, 1]
    if options["overlaps"][0] and workload.previous is not None:
        opener_at, unended_at, beside_at = (int(options[name][0]) for name in ("opener_at", "unended_at", "beside_at"))
        lists[opener_at:][:count] = workload.openers
        lists[unended_at:][:count] = np.bincount(workload.openers, minlength=count)
        lists[beside_at:][:count] = besides(workload.previous, workload.openers)
        beside = lists[beside_at:][:count]
        before = np.flatnonzero(beside >= 0)
        requests["think_s"][beside[before]] = workload.arrival_s[beside[before]] - workload.arrival_s[before]
