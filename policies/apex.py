"""Goodput under SLOs from four rules that others have one by one (docs/apex.md measures each).

Routing. A prompt goes where its first token is expected soonest: behind the prompts there that are still in time, with
its own prefix as that instance's cache has it, and one decode step later.

Order. A queue is read by the due time of first tokens. If not all can be in time, the longest prompts move behind the
others (Moore and Hodgson, as in `kairos`), with each prompt's time after its cached prefix. Nothing is turned away.

Step. The decode with the least time left until its next token is due sets how long a step may last, and chunks count
with the prefix before them. What a decode has saved lengthens a step, up to four times its TPOT. A decode whose request
has missed a limit for good sets nothing.

Streams. Where prompts and decodes meet, they share the GPU as two streams (as in `nexus`) if the prompts in time need
much less than the prefill stream then gives, or if one step with both would be slower for them. Otherwise one step
holds both, with as large a chunk as its time allows.

The limits are those of the run's SLO for each request. Nothing is learnt and no output length is predicted.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from framework.checks import Share, checked
from framework.compiler.decorators import compiled
from framework.engine.parallel.sm_sharing import Percent
from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Plan
from framework.policy.rules import PREFILL_RULES
from framework.policy.view import Cluster, Floats, Integers, Request
from framework.timing.estimate import StepTimes, chunked_s, prefill_alone_s
from framework.timing.table import StepTables

_CHUNK = 64  # tokens: the smallest chunk, and the unit of chunks
_SLOWER = 1.15  # factor on prefills alone, by which prompts are expected to take longer next to decodes
_SPARE = 1.4  # factor by which the prefill stream must be faster than the prompts in time need
_SHORTEST, _LONGEST = 0.7, 4.0  # bounds of a step, in TPOT limits of the decode that sets it
_LOST = 10.0  # a decode that many TPOT limits behind has missed its own
_LATE_KEY_S = 1e9  # added to the due time of a prompt that would be late
_SOON_S = 1e-3  # the shortest time left by which a rate is computed
_LEAST_PERCENT = 10  # of the SMs that a prefill stream has


@compiled
def on_time_first(
    due_s: Floats, own_s: Floats, now_s: float, ahead_s: float, late: NDArray[np.bool_], heap: Integers
) -> float:
    """Mark in `late` the fewest prompts without which the others, computed in this order, are in time.

    `due_s` ascends; `own_s` are the seconds of each prefill, behind `ahead_s` of others; shapes (n,), as that of
    `heap`, which holds the prompts that are not late, the longest first. Returns the share of a prefill's speed that
    the prompts in time need.
    """
    done_s, size = now_s + ahead_s, 0
    for k in range(len(due_s)):
        done_s += own_s[k]
        _push(heap, size, own_s, k)
        size += 1
        while size > 0 and done_s > due_s[k]:
            late[heap[0]] = True
            done_s -= own_s[heap[0]]
            size -= 1
            _pop(heap, size, own_s)
    need, work_s = 0.0, ahead_s
    for k in range(len(due_s)):
        if not late[k]:
            work_s += own_s[k]
            need = max(need, work_s / max(due_s[k] - now_s, _SOON_S))
    return need


@compiled
def _is_longer(own_s: Floats, one: int, other: int) -> bool:
    return own_s[one] > own_s[other] or (own_s[one] == own_s[other] and one > other)


@compiled
def _push(heap: Integers, size: int, own_s: Floats, k: int) -> None:
    """Add prompt k to a heap of `size` prompts."""
    at = size
    while at > 0 and _is_longer(own_s, k, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = k


@compiled
def _pop(heap: Integers, size: int, own_s: Floats) -> None:
    """Take the first prompt out of a heap, which then has `size` prompts."""
    last, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_longer(own_s, heap[child + 1], heap[child]):
            child += 1
        if not _is_longer(own_s, heap[child], last):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last


@compiled
def under_way(times: StepTimes, i: int, prompts: Integers, rest: int, most: int) -> tuple[float, int]:
    """The seconds of what is left of prompts under way on i, and the tokens of the first of them that are computed.

    `prompts` are their lengths, in order, of which `rest` tokens are left in all, behind those that are computed.
    """
    tables, computed = StepTables(times.rows, times.data), max(prompts.sum() - rest, 0)
    seconds, prefix = 0.0, -1
    for k in range(len(prompts)):
        done = min(computed, prompts[k])
        computed -= done
        if done < prompts[k]:
            seconds += prefill_alone_s(tables, times.pools[i], times.stages[i], done, prompts[k], most)
            prefix = done if prefix < 0 else prefix
    return seconds, max(prefix, 0)


@compiled
def largest_chunk(
    times: StepTimes, i: int, prefix: int, decodes: int, context: int, limit_s: float, most: int
) -> tuple[int, float]:
    """The prompt tokens after `prefix`, a multiple of `_CHUNK` up to `most`, of the longest step of i in `limit_s`, and
    the share of a prefill's speed at which that step computes them.
    """
    low, high = 1, max(most // _CHUNK, 1)
    prompt = np.array([[prefix], [most]])
    while low < high:
        middle = (low + high + 1) // 2
        if chunked_s(times, i, prompt, middle * _CHUNK, decodes, context, context // decodes) <= limit_s:
            low = middle
        else:
            high = middle - 1
    chunk = low * _CHUNK
    step_s = chunked_s(times, i, prompt, chunk, decodes, context, context // decodes)
    return chunk, chunked_s(times, i, prompt, chunk, 0, 0, 0) / step_s


@compiled
def longest_step_s(
    ids: Integers,
    generated: Integers,
    arrival_s: Floats,
    first_token_s: Floats,
    ttft_s: Floats,
    tpot_s: Floats,
    now_s: float,
    margin: float,
    bounds: tuple[float, float],
) -> float:
    """The longest step that decodes `ids` allow, which have `generated` tokens; inf if none has a limit to keep.

    The other columns are of all requests, shapes (N,). `bounds` are those of a decode's part, in its TPOT limits.
    """
    limit_s = np.inf
    for k in range(len(ids)):
        r = ids[k]
        left_s = first_token_s[r] + generated[k] * tpot_s[r] - now_s
        if first_token_s[r] <= arrival_s[r] + ttft_s[r] and left_s > -_LOST * tpot_s[r]:
            allowed_s = min(max(margin * left_s, bounds[0] * tpot_s[r]), bounds[1] * tpot_s[r])
            limit_s = min(limit_s, allowed_s)
    return limit_s


class Apex(Aggregated):
    """Each word chooses a rule; the last one of each is that of a neighbour.

    `routing`: ttft; or one of the rules of `chunked`. `order`: on_time, or arrival. `budget`: slack; step (a TPOT limit
    for each step); or fixed (`engine.token_budget`). `streams`: spare, or never. `margin`: the part of the time left
    that a step may take. `most_percent`: the largest part of the SMs for prefills.
    """

    batching_mode: ClassVar[Batching | None] = "decode_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        routing: Literal["ttft", "least_queued", "round_robin", "least_waiting"] = "ttft",
        order: Literal["on_time", "arrival"] = "on_time",
        budget: Literal["slack", "step", "fixed"] = "slack",
        streams: Literal["spare", "never"] = "spare",
        margin: Share = 0.9,
        most_percent: Percent = 70,
    ) -> None:
        self.in_time, self.fixed = order == "on_time", budget == "fixed"
        self.bounds = (_SHORTEST, _LONGEST) if budget == "slack" else (margin, margin)
        self.margin, self.most_percent = margin, most_percent
        vars(self)["shares_gpus"] = streams == "spare" and budget != "fixed"
        vars(self)["route_prefill"] = PREFILL_RULES.get(routing, self.soonest)

    def prepare(self, cluster: Cluster) -> None:
        requests, there = cluster.requests, cluster.instances
        self.ttft_s, self.tpot_s = requests.limits
        self.own_s = np.full(len(requests.arrival_s), np.nan)  # seconds of each prompt's prefill, alone
        self.longest = there.token_budget.tolist()  # tokens of a step
        self._plans = dict[tuple[int, Batching, int | None], Plan]()
        # Of each instance: seconds of prompts under way; of its queue, counted when it was last ordered, seconds of
        # prompts in time, all tokens, and the share of a prefill's speed that the first need.
        self.under_way_s, self.timely_s, self.tokens, self.need = np.zeros((4, len(there)))

    def soonest(self, request: Request, cluster: Cluster) -> int:
        """The instance with the earliest first token."""
        pool, there = cluster.prefill, cluster.instances
        own_s = pool.prefill_s(request, chunk_tokens=max(self.longest))
        done_s = self._ahead_s(pool.ids, cluster) + own_s
        at = int((done_s + pool.step_s()).argmin())
        i = int(pool.ids[at])
        if there.queued[i] == 0:
            self.timely_s[i] = self.tokens[i] = self.need[i] = 0.0
        self.own_s[request.id] = own_s[at]
        self.timely_s[i] += own_s[at]
        self.tokens[i] += request.input_tokens
        need = done_s[at] / max(request.arrival_s + self.ttft_s[request.id] - cluster.now_s, _SOON_S)
        if need <= 1.0:  # else it will be late, or will make another one late
            self.need[i] = max(self.need[i], need)
        return i

    def _ahead_s(self, ids: Integers, cluster: Cluster) -> Floats:
        """Seconds of the prompts on these instances that go first: those under way, and those that wait in time."""
        there = cluster.instances
        waiting_s = np.where(there.queued[ids] > 0, self.timely_s[ids], 0.0)
        return np.asarray(waiting_s + np.where(there.prefilling[ids] > 0, self.under_way_s[ids], 0.0))

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        requests = cluster.requests
        i = int(requests.instance[queue[0]])
        for r in queue[np.isnan(self.own_s[queue])].tolist():
            self.own_s[r] = cluster.instances.prefill_s(Request(r, requests), chunk_tokens=self.longest[i])[i]
        arrival_s = requests.arrival_s[queue]
        due_s, own_s, tokens = arrival_s + self.ttft_s[queue], self.own_s[queue], requests.input_tokens[queue]
        self.tokens[i] = tokens.sum()
        under_way_s = self._under_way(i, cluster)[0]
        order, late = np.lexsort((queue, due_s)), np.zeros(len(queue), np.bool_)
        slower_s = _SLOWER * own_s[order]
        heap, ahead_s = np.empty(len(queue), np.int64), _SLOWER * under_way_s
        need = on_time_first(due_s[order], slower_s, cluster.now_s, ahead_s, late, heap) / _SLOWER
        late[order] = late.copy()
        self.need[i], self.timely_s[i] = need, own_s[~late].sum()
        if self.in_time:
            return np.where(late, due_s + _LATE_KEY_S, due_s)
        return arrival_s

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        there = cluster.instances
        decodes, longest = int(there.running[instance]), self.longest[instance]
        if self.fixed or decodes == 0 or there.queued_tokens[instance] == 0:
            return self._plan(longest, "decode_first", None)
        prefix = self._under_way(instance, cluster)[1]
        limit_s, context = self._limit_s(instance, cluster), int(there.kv_tokens[instance])
        chunk, speed = largest_chunk(there.step_times, instance, prefix, decodes, context, limit_s, longest)
        if self.shares_gpus:
            prefill_s, decode_s = cluster.streams_s(instance)
            in_limit = np.flatnonzero(decode_s[100 - self.most_percent : 100] <= limit_s)
            percent = max(self.most_percent - int(in_limit[0]) if len(in_limit) else 0, _LEAST_PERCENT)
            share = prefill_s[100] / prefill_s[percent]
            if share >= min(_SPARE * self._need(instance, cluster), speed):
                return self._plan(longest, "concurrent", percent)
        return self._plan(chunk + decodes, "decode_first", None)

    def _under_way(self, instance: int, cluster: Cluster) -> tuple[float, int]:
        """As `under_way`, of an instance's prompts."""
        there, prompts = cluster.instances, cluster.requests.input_tokens[cluster.prefilling(instance)]
        rest = int(there.queued_tokens[instance] - (self.tokens[instance] if there.queued[instance] else 0.0))
        found = under_way(there.step_times, instance, prompts, max(rest, 0), self.longest[instance])
        self.under_way_s[instance] = found[0]
        return found

    def _plan(self, tokens: int, batching: Batching, percent: int | None) -> Plan:
        """A plan; equal ones are one object, which is checked once."""
        key = tokens, batching, percent
        return self._plans.get(key) or self._plans.setdefault(key, Plan(*key))

    def _limit_s(self, instance: int, cluster: Cluster) -> float:
        """The longest step that the decodes of an instance allow; inf if none has a limit to keep."""
        requests, ids = cluster.requests, cluster.decoding(instance)
        columns = ids, requests.generated(ids), requests.arrival_s, requests.first_token_s, self.ttft_s, self.tpot_s
        return longest_step_s(*columns, cluster.now_s, self.margin, self.bounds)

    def _need(self, instance: int, cluster: Cluster) -> float:
        """The share of a prefill's speed that the prompts in time need."""
        if cluster.instances.queued[instance] > 0:
            return float(self.need[instance])
        ids = cluster.prefilling(instance)
        left_s = cluster.requests.arrival_s[ids] + self.ttft_s[ids] - cluster.now_s
        left_s = left_s[left_s > 0.0]
        return float(self.under_way_s[instance] / left_s.min()) if len(left_s) else 0.0
