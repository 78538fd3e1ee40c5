"""Requests before the first event."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_count
from framework.engine.memory.records import REQUEST
from framework.load import Load
from framework.workload import Workload
from framework.workload.programs import followers

_CACHE_LINE = 64  # bytes


def first_requests(workload: Workload, load: Load, delay_s: float) -> NDArray[np.void]:
    """Requests as the scheduler will see them: each arrives `delay_s` after its client has sent it."""
    requests = _alike(len(workload))
    requests["event_s"] = delay_s if load.clients is not None else workload.arrival_s + delay_s
    requests["input_tokens"] = workload.input_tokens
    if workload.previous is not None:
        requests["opens"] = workload.openers == np.arange(len(workload))
        requests["follows"] = workload.previous >= 0
        requests["followed_by"], requests["next"] = followers(workload.previous)
    if load.clients is not None:
        requests["follows"] |= ~requests["opens"]
        requests["follows"][np.flatnonzero(requests["opens"])[load.clients :]] = True
    for name, column in (
        ("think_s", workload.think_s),
        ("session", workload.session_id),
        ("turn", workload.turn),
        ("priority", workload.priority),
    ):
        if column is not None:
            requests[name] = column
    if workload.think_s is not None and workload.previous is not None:
        requests["think_s"][workload.previous < 0] = 0.0
    if delay_s > 0:
        requests["think_s"] += delay_s
    for name, texts in (("slo_class", workload.slo_class), ("tenant", workload.tenant)):
        if texts is not None:
            names, numbers = np.unique(texts, return_inverse=True)
            require_count(f"how many names {name} has", len(names), int(np.iinfo(requests.dtype[name]).max))
            requests[name] = numbers
    return requests


def first_waiting(requests: NDArray[np.void], load: Load) -> int:
    """The first of these that opens a session and waits for a client; their number if none does."""
    if load.clients is None:
        return len(requests)
    waiting = np.flatnonzero(requests["opens"] & requests["follows"])
    return int(waiting[0]) if len(waiting) else len(requests)


def _alike(count: int) -> NDArray[np.void]:
    """`count` requests of which nothing is known, each the first of its session."""
    one = np.zeros(1, REQUEST)
    one["opens"] = True
    for name in ("instance", "destination", "heap_index", "next", "child", "followed_by", "channel", "held_at"):
        one[name] = -1
    for name in ("prefill_instance", "decode_instance", "session"):
        one[name] = -1
    for name in ("arrival_s", "start_s", "prefill_end_s", "first_token_s", "transfer_end_s", "end_s"):
        one[name] = np.nan
    requests = _aligned(count, REQUEST)
    requests.view(np.int64).reshape(count, -1)[:] = one.view(np.int64)  # numpy would copy records field by field
    return requests


def _aligned(rows: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Room for `rows` records, the first of which begins a cache line."""
    room = np.empty(rows * dtype.itemsize + _CACHE_LINE, np.uint8)
    begin = -room.ctypes.data % _CACHE_LINE
    return room[begin:][: rows * dtype.itemsize].view(dtype)
