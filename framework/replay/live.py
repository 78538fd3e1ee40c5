"""The compiled engine fed while it runs: requests become known one by one, and its caller stops the clock.

The memory has a row for each request that may ever come. A row that nobody has sent yet arrives in the far future, so
the engine always has something to wait for and never ends by itself. The loop stops at a mark, which is the time up to
which it may go: nothing after that time has happened yet, and what is sent later arrives after it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.codes import CANCEL, DECIDES, FUTURE, LOG_FULL, MARKED, SCALE, TICK, YIELDED
from framework.engine.memory.state import Memory
from framework.engine.roles.decisions import decide
from framework.engine.setup.config import Setting
from framework.engine.setup.open_ended import FAR_S, allocate_open
from framework.errors import InputError
from framework.policy.base import Policy
from framework.policy.view import Cluster
from framework.reference.loop import first_tick
from framework.replay.compiled import CompiledEngine, FaultLog, run_on

_KEPT_S = 10.0  # seconds for which the names of an ended request stay: a step under way may still read them


class Sent(NamedTuple):
    """A request as its client sends it. `names`: those of its blocks that can be shared, first block first."""

    input_tokens: int
    output_tokens: int
    names: NDArray[np.int32]
    priority: int = 0


class News(NamedTuple):
    """What has happened to requests since the last look, (K,): numbers, tokens emitted by now, states, instances."""

    ids: NDArray[np.int64]
    emitted: NDArray[np.int64]
    states: NDArray[np.int8]
    instances: NDArray[np.int32]


class LiveEngine(CompiledEngine):
    """A run of at most `most` requests, none of which is known before it is sent; times are seconds of the run."""

    def __init__(self, setting: Setting, most: int) -> None:
        memory, names = allocate_open(setting, most)
        super().__init__(setting, memory)
        self._names, self._names_there = names, Names(len(names))
        self._sim, self._most, self._next = memory.sim, most, 0
        self._output_at = int(memory.options["output_at"][0])
        self._active = Active()
        self._last_arrival_s = 0.0
        self.next_s = FAR_S  # time of the next event

    def begin(self, policy: Policy, cluster: Cluster) -> None:
        """Let the policy decide from now on; `cluster` is its view of `inspection`."""
        self._policy_binding = self._bound(policy, cluster)
        self._fault_log = FaultLog(self._faults)
        self.run_to(0.0)

    @property
    def now_s(self) -> float:
        """The time up to which everything has happened."""
        return float(self._sim["now_s"][0])

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of rejections and cancellations, by their numbers in the memory."""
        return self._policy_binding.reasons

    @property
    def sent(self) -> int:
        """How many requests have been sent, which is the number of the next one."""
        return self._next

    @property
    def memory(self) -> Memory:
        """The records of the run; their reader changes nothing."""
        return self._memory

    def send(self, request: Sent, sent_s: float) -> int:
        """Let a client send a request at `sent_s`, or as soon after what has happened; return its number.

        Raises InputError once `most` requests have been sent, or if there is no room for its names.
        """
        r, memory = self._next, self._memory
        if r + 1 >= self._most:
            raise InputError(f"{r:,} requests have been sent, and there is room for no more")
        at = self._names_there.take(len(request.names), sent_s)
        self._names[at : at + len(request.names)] = request.names
        earliest_s = math.nextafter(max(self.now_s, self._last_arrival_s), math.inf)
        self._last_arrival_s = arrival_s = max(sent_s + float(memory.options["request_s"][0]), earliest_s)
        row = memory.requests[r]
        row["event_s"], row["input_tokens"], row["priority"] = arrival_s, request.input_tokens, request.priority
        row["hash_at"], row["hash_count"] = at, len(request.names)
        memory.lists[self._output_at + r] = request.output_tokens
        self._next += 1
        self._active.add(r)
        self._resume_ticks(arrival_s)
        self.next_s = min(self.next_s, arrival_s)
        return r

    def cancel(self, r: int, reason: str) -> bool:
        """Cancel a request now, as an answer of `on_tick` would: at once, or at the turn of its instance.

        False: it has not passed the front end yet, where nothing can be cancelled.
        """
        if self._memory.requests["state"][r] == FUTURE:
            return False
        self._carry_out(CANCEL, r, -1, self._policy_binding.reason(reason))
        return True

    def scale(self, pool: int, instances: int) -> None:
        """Order now that so many instances of a pool be on, as `Scale` of a policy does."""
        self._carry_out(SCALE, -1, pool, instances)

    def _carry_out(self, kind: int, r: int, instance: int, value: int) -> None:
        """Carry out an action now, as if a tick had answered with it."""
        memory, binding = self._memory, self._policy_binding
        memory.actions[0] = (kind, r, instance, value, 0, 0, 0)
        self._sim["kind"], self._sim["first_action"], self._sim["actions"] = TICK, 0, 1
        status = decide(binding.handed(memory))
        if status != YIELDED:
            raise binding.error()
        self.run_to(self.now_s)

    def run_to(self, time_s: float) -> None:
        """Let everything happen up to `time_s`. Raises what a hook raised."""
        sim = self._sim
        sim["mark_s"] = time_s
        while (status := run_on(self._memory, self._policy_binding, self._fault_log, self._reports)) != MARKED:
            if status == LOG_FULL:
                sim["step_rows"] = sim["token_rows"] = 0
            elif status not in (YIELDED, DECIDES):
                raise self._policy_binding.error()
        self.next_s = float(sim["now_s"][0])
        if sim["kind"][0] == TICK and sim["quiet_ticks"][0] > 0:
            sim["quiet_ticks"] -= 1  # it will be counted when it is due
        sim["at_mark"], sim["now_s"] = False, time_s

    def news(self) -> News:
        """The requests that have emitted tokens or ended since the last look; those that have ended are forgotten."""
        ids, seen = self._active.rows
        requests = self._memory.requests
        states = requests["state"][ids]
        emitted = np.where(np.isnan(requests["first_token_s"][ids]), 0, self._present.generated(ids))
        ended = np.isfinite(requests["end_s"][ids])
        news = np.flatnonzero((emitted > seen) | ended)
        seen[news] = emitted[news]
        found = News(ids[news], emitted[news], states[news], requests["instance"][ids[news]])
        if ended.any():
            over = np.flatnonzero(ended)
            for r in ids[over].tolist():
                self._names_there.give_back(int(requests["hash_at"][r]), int(requests["hash_count"][r]), self.now_s)
            self._active.drop(over)
        return found

    def _resume_ticks(self, arrival_s: float) -> None:
        """Ticks that were skipped because nothing was to come begin again at this arrival."""
        sim, tick_s = self._sim, float(self._memory.options["tick_s"][0])
        if tick_s > 0 and sim["next_tick"][0] * tick_s > FAR_S / 2:
            sim["next_tick"], sim["quiet_ticks"] = first_tick(arrival_s, tick_s), 0


class Active:
    """Requests that have been sent and have not ended, each with its number of tokens that were seen."""

    def __init__(self) -> None:
        self._room, self._count = np.zeros((2, 1024), np.int64), 0

    @property
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers, and tokens seen, which the caller keeps up to date."""
        return self._room[0, : self._count], self._room[1, : self._count]

    def add(self, r: int) -> None:
        if self._count == self._room.shape[1]:
            self._room = np.concatenate([self._room, np.zeros_like(self._room)], axis=1)
        self._room[:, self._count] = r, 0
        self._count += 1

    def drop(self, places: NDArray[np.int64]) -> None:
        """Forget the requests at these places; the order of the others stays."""
        kept = np.delete(self._room[:, : self._count], places, axis=1)
        self._count = kept.shape[1]
        self._room[:, : self._count] = kept


class Names:
    """Places of lists of names in one array, in stretches of powers of two that are used again.

    The engine's lists of held blocks have the same lengths (`engine/kv/held_blocks.py`), and each is open only while
    its request has a place here. So they fit into as much room, for which the memory is laid out.
    """

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._given_back: dict[int, deque[tuple[float, int]]] = {}

    def take(self, count: int, now_s: float) -> int:
        """A place for `count` names. Raises InputError if there is none."""
        if count == 0:
            return 0
        stretch = 1 << (count - 1).bit_length()
        old = self._given_back.get(stretch)
        if old and old[0][0] + _KEPT_S < now_s:
            return old.popleft()[1]
        if self._used + stretch > self._size:
            raise InputError(
                "too many blocks of prompts are under way to name them all; send fewer long prompts at once"
            )
        self._used += stretch
        return self._used - stretch

    def give_back(self, at: int, count: int, now_s: float) -> None:
        """Let a place be used again, some time after `now_s`."""
        if count:
            self._given_back.setdefault(1 << (count - 1).bit_length(), deque()).append((now_s, at))
