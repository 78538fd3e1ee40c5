"""What instances did while requests waited for their first admission: why there was a queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.metrics.series import Windows, integral, span_s, time_series, windows_of
from framework.result import Result

Floats = NDArray[np.float64]
_CELLS, _MOST_WINDOWS = 2_000_000, 8_000  # windows times instances, and windows: they are short because queues are
_FEW_WINDOWS = 400  # windows for what changes slowly
_FULL = 0.8  # share of the KV memory read by decodes from which admissions wait for it
_HALF, _ROOM = 0.5, 1.25  # the same share if what is left has room for fewer waiting prompts than that
_SEATS = 0.9  # share of the seats of a batch
_BUSY = 0.8  # share of the time in steps
_IDLE = 0.5  # share of busy time of the other instances below which the cause of a queue is routing


@dataclass(frozen=True)
class Room:
    """For the fullest `pool`: the share of the KV memory that decodes read, and of the seats that they take. Both are
    means over the time in which requests wait, weighted by their number. `prompt`: the mean share of an instance's KV
    memory that the prompt of a waiting request takes beyond what was cached.
    """

    kv: float
    seats: float
    pool: str
    prompt: float = 0.0

    @property
    def memory_is_full(self) -> bool:
        """Whether admissions wait for memory: hardly any is left, or too little for one more prompt."""
        return self.kv >= _FULL or (self.kv >= _HALF and 1 - self.kv < _ROOM * self.prompt)

    @property
    def fullness(self) -> str:
        """`decodes read 72 % of the KV memory of mixed, a prompt that waits takes 25 % of an instance's`."""
        read = f"decodes read {100 * self.kv:.0f} % of the KV memory of {self.pool}"
        more = f", a prompt that waits takes {100 * self.prompt:.0f} % of an instance's"
        return read if self.kv >= _FULL else read + more

    @property
    def seats_are_full(self) -> bool:
        return self.seats >= _SEATS


@dataclass(frozen=True)
class Waiting:
    """Means over the time in which requests wait, each moment weighted by their number.

    `busy`: share of the time in steps of the instance at which they wait; `others`: of the other instances of its pool
    that are on, 1 if there is none; `room`: the room that decodes take meanwhile.
    """

    busy: float
    others: float
    room: Room

    @property
    def reason(self) -> str:
        """The reason: memory, seats, routing, prefill (the instances are busy), or held: none of these."""
        if self.room.memory_is_full:
            return "memory"
        if self.room.seats_are_full:
            return "seats"
        if self.others < _IDLE:
            return "routing"
        return "prefill" if self.busy >= _BUSY else "held"


def waiting_of(result: Result) -> Waiting | None:
    """What instances did while requests waited; None if the step log was reduced, or if no request waited."""
    start_s, end_s = span_s(result)
    if result.engine.log != "full" or end_s <= start_s:
        return None
    windows = windows_of(result, (end_s - start_s) / min(_MOST_WINDOWS, _CELLS // len(result.instances)))
    queued_s = _queued_s(result, windows)
    if queued_s.sum() <= 0:
        return None
    lengths_s = np.maximum(np.diff(windows.edges_s), np.finfo(np.float64).tiny)  # the last one may have no length
    share = np.minimum(_busy_s(result, windows) / lengths_s, 1.0)
    pool, pools = result.instances["pool"].astype(np.int64), result.cluster.pools
    of_pool = (pool == np.arange(len(pools))[:, None]).astype(np.float64)
    on = _are_on(result, share, float(lengths_s[0])).astype(np.float64)
    members = (of_pool @ on)[pool] - on
    others = np.where(members > 0, ((of_pool @ share)[pool] - share) / np.maximum(members, 1), 1.0)
    requests = result.requests
    here = ~np.isnan(requests["start_s"])
    return Waiting(
        busy=float((share * queued_s).sum() / queued_s.sum()),
        others=float((others * queued_s).sum() / queued_s.sum()),
        room=decode_room(result, requests["arrival_s"][here], requests["start_s"][here], _fresh_tokens(result)[here]),
    )


def _are_on(result: Result, share: Floats, window_s: float) -> NDArray[np.bool_]:
    """Whether each instance may have been on in each window, by its `share` of busy time, both (M, windows).

    When an instance went off is not logged. One that was switched on or off counts as off while it has no step for as
    long as a start takes, or at an end of the run.
    """
    on = np.ones(share.shape, np.bool_)
    for i in np.flatnonzero(result.instances["starts"] + result.instances["stops"]):
        pool = result.cluster.pools[int(result.instances["pool"][i])]
        start_s = result.engine.start_s + result.engine.start.seconds(result.model, pool)
        edges = np.flatnonzero(np.diff(np.concatenate([[True], share[i] > 0, [True]])))  # of spans without a step
        for begin, end in edges.reshape(-1, 2):
            is_at_an_end = begin == 0 or end == share.shape[1]
            on[i, begin:end] = not is_at_an_end and (end - begin) * window_s < start_s
    return on


def _fresh_tokens(result: Result) -> Floats:
    """Prompt tokens of each request (N,) that its first admission found in no cache."""
    return (result.workload.input_tokens - result.requests["cached_tokens"]).astype(np.float64)


def _queued_s(result: Result, windows: Windows) -> Floats:
    """Seconds for which requests wait at each instance, shape (M, windows)."""
    requests = result.requests
    here = (requests["prefill_instance"] >= 0) & ~np.isnan(requests["start_s"])
    chosen = requests[here]
    at = chosen["prefill_instance"].astype(np.int64)
    count = len(result.instances)
    return integral(windows, chosen["arrival_s"], chosen["start_s"], np.ones(len(chosen)), at, count)


def _busy_s(result: Result, windows: Windows) -> Floats:
    """Seconds of each instance in steps, shape (M, windows); steps of two streams count twice."""
    leaps = result.step_log
    steps = leaps["steps"].astype(np.float64)
    end_s = leaps["start_s"] + steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    at = leaps["instance"].astype(np.int64)
    return integral(windows, leaps["start_s"], end_s, np.ones(len(leaps)), at, len(result.instances))


def decode_room(result: Result, begin_s: Floats, end_s: Floats, tokens: Floats) -> Room:
    """The used share of the room for decodes while requests wait, each from `begin_s` to `end_s`, for KV of `tokens`,
    all (N,).
    """
    first_s, last_s = span_s(result)
    window_s = (last_s - first_s) / _FEW_WINDOWS
    windows = windows_of(result, window_s)
    one = np.zeros(len(begin_s), np.int64)
    weight = integral(windows, begin_s, end_s, np.ones(len(begin_s)), one, 1)[0]
    table = time_series(result, np.zeros(len(result.requests), np.bool_), window_s)
    kv, seats = [], []
    for pool in result.cluster.pools:
        own = table.filter(table["pool"] == pool.name)
        most = pool.instances * result.engine.seats_of(pool)
        kv.append(_mean(own["decode_kv_share"].fill_null(0.0).to_numpy(), weight))
        seats.append(_mean(own["decoding"].to_numpy() / most, weight))
    fullest = int(np.argmax(kv))
    own = result.instances[result.instances["pool"] == fullest]
    most_tokens = float((own["total_blocks"] * result.engine.block_tokens).mean())
    return Room(
        kv[fullest],
        max(seats),
        result.cluster.pools[fullest].name,
        _mean(tokens, end_s - begin_s) / max(most_tokens, 1.0),
    )


def _mean(values: Floats, weight: Floats) -> float:
    return float(values @ weight / weight.sum()) if weight.sum() > 0 else 0.0
