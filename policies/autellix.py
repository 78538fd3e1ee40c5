"""Least attained service of programs first (Autellix: Luo et al., arXiv 2502.13965).

A call has the priority of its program: the less time the program's calls have run so far, the earlier (PLAS, section
4.2.1). Times are put into levels, each `ratio` times as long as the one before, and calls of one level are served in
the order of their arrival. A program that falls to a lower level is preempted if a call of a higher one waits for room
or a seat. A call that has waited `starvation` times as long as its program has run moves to the first level. Calls of
at most `short_tokens` go to the least loaded instance, longer ones to the instance of their program, which is the least
loaded one when it first has such a call (section 4.3).

Simplified: the calls of a program that run at the same time all add to its service (PLAS); ATLAS counts the longest
thread of them. The present call counts as it runs. Times and levels are updated whenever something changes on an
instance. A preempted call loses its KV, of which a prefix cache may keep some. A prompt under way is not preempted.
Steps are those of `chunked`. A request without a session is a program of its own.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, Whole, checked
from framework.compiler.decorators import compiled
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Preempt, Request, Resume
from policies._stepping_aside import stepping_aside

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Autellix(Aggregated):
    """`levels` of attained service, the first up to `quantum_s`; `short_tokens` bounds the prompts that go anywhere."""

    batching_mode: ClassVar[Batching | None] = "decode_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        levels: Count = 8,
        quantum_s: Positive = 2.0,
        ratio: Positive = 2.0,
        starvation: Positive = 10.0,
        short_tokens: Whole = 2048,
    ) -> None:
        self.ends_s = np.array([quantum_s * ratio**level for level in range(levels - 1)])
        self.quantum_s, self.starvation, self.short_tokens = quantum_s, starvation, short_tokens

    def prepare(self, cluster: Cluster) -> None:
        sessions = cluster.requests.session
        alone = sessions < 0
        self._program = np.unique(sessions, return_inverse=True)[1].reshape(-1)
        self._program[alone] = len(sessions) + np.flatnonzero(alone)
        self._attained_s = np.zeros(2 * len(sessions))  # of each program
        self._home: dict[int, int] = {}  # instance of each program's long calls
        self._promoted = np.zeros(len(sessions), np.bool_)  # calls that have waited too long
        self._ran = [np.zeros(0, np.int64) for _ in cluster.instances.ids]  # calls that ran after the last look
        self._seen_s = np.zeros(len(cluster.instances))
        self._charged, self._looks = np.zeros(len(sessions), np.int64), 0  # last look that charged each call; looks

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        least = pool.argmin(pool.queued + pool.prefilling + pool.running + pool.incoming)
        if request.input_tokens <= self.short_tokens:
            return least
        home = self._home.setdefault(int(self._program[request.id]), least)
        return home if home in pool.ids else least

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        keys = np.empty(len(queue))
        order = np.lexsort([queue, cluster.requests.arrival_s[queue], self._levels(queue, cluster)])
        keys[order] = np.arange(len(queue))
        return keys

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Preempt calls of programs at a lower level than a waiting one's, which takes their place."""
        waiting, running = cluster.queued(instance), cluster.decoding(instance)
        self._look(instance, np.concatenate([running, cluster.prefilling(instance)]), cluster.now_s)
        if len(waiting) == 0 or len(running) == 0:
            return []
        queued, there = self._levels(waiting, cluster), self._levels(running, cluster)
        first = np.lexsort([waiting, cluster.requests.arrival_s[waiting], queued])
        last = np.argsort(-there, kind="stable")
        costs = queued[first], there[last]
        leaving = stepping_aside(cluster, instance, waiting[first], running[last], costs)
        if leaving:
            self._ran[instance] = np.setdiff1d(self._ran[instance], leaving)
        return [action for r in leaving for action in (Preempt(r), Resume(r))]

    def _look(self, instance: int, running: Integers, now_s: float) -> None:
        """Add the time since the last look to the programs whose calls ran after it, or do now."""
        self._looks += 1
        since_s = now_s - self._seen_s[instance]
        _charge(self._ran[instance], running, self._program, since_s, self._attained_s, self._charged, self._looks)
        self._ran[instance], self._seen_s[instance] = running, now_s

    def _levels(self, ids: Integers, cluster: Cluster) -> Floats:
        """The level of each call, from 0; those that have waited too long are at 0."""
        levels, bounds = np.empty(len(ids)), (self.ends_s, self.starvation, self.quantum_s)
        waited_s, generated = cluster.now_s - cluster.requests.arrival_s[ids], cluster.requests.generated(ids)
        _find_levels(ids, self._attained_s[self._program[ids]], waited_s, generated, self._promoted, bounds, levels)
        return levels


@compiled
def _charge(
    before: Integers,
    running: Integers,
    program: Integers,
    since_s: float,
    attained_s: Floats,
    charged: Integers,
    look: int,
) -> None:
    """Add the time to the programs of these calls, once for each call; `charged`: the last look that charged a call."""
    for calls in (before, running):
        for r in calls:
            if charged[r] != look:
                charged[r] = look
                attained_s[program[r]] += since_s


@compiled
def _find_levels(
    ids: Integers,
    attained_s: Floats,
    waited_s: Floats,
    generated: Integers,
    promoted: NDArray[np.bool_],
    bounds: tuple[Floats, float, float],
    levels: Floats,
) -> None:
    """Write the level of each call, and note which are promoted. `bounds`: ends of levels, starvation, quantum."""
    ends_s, starvation, quantum_s = bounds
    for k in range(len(ids)):
        if generated[k] == 0 and waited_s[k] >= starvation * max(attained_s[k], quantum_s):
            promoted[ids[k]] = True
        level = 0
        while level < len(ends_s) and ends_s[level] <= attained_s[k]:
            level += 1
        levels[k] = 0.0 if promoted[ids[k]] else level
