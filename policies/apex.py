"""Goodput under SLOs from four rules that others have one by one (docs/apex.md measures each).

Routing. A prompt goes where its first token is expected soonest: behind the prompts there that are still in time, with
its own prefix as that instance's cache has it, and one decode step later.

Order. A queue is read by the due time of first tokens. If not all can be in time, the longest prompts move behind the
others (Moore and Hodgson, as in `kairos`), with each prompt's time after its cached prefix. Nothing is turned away.

Step. The decode with the least time left until its next token is due sets how long a step may last. What a decode has
saved lengthens a step, up to twice its TPOT. A decode whose request has missed a limit for good sets nothing.

Streams. Where prompts and decodes meet, they share the GPU as two streams (as in `nexus`) if the prompts in time need
no more than the prefill stream then gives. Otherwise one step holds both, with as large a chunk as its time allows.

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
from framework.timing.estimate import StepTimes, estimate_s

_CHUNK = 64  # tokens: the smallest chunk, and the unit of chunks
_RATE_TOKENS = 1024  # a prompt of this length gives the seconds of a token that waits
_SLOWER = 1.15  # factor on prefills alone, by which prompts are expected to take longer next to decodes
_SPARE = 1.1  # factor by which the prefill stream must be faster than the prompts in time need
_SHORTEST, _LONGEST = 0.3, 2.0  # bounds of a step, in TPOT limits of the decode that sets it
_LOST = 10.0  # a decode that many TPOT limits behind has missed its own
_LATE_KEY_S = 1e9  # added to the due time of a prompt that would be late
_SOON_S = 1e-3  # the shortest time left by which a rate is computed
_LEAST_PERCENT = 10  # of the SMs that a prefill stream has


@compiled
def on_time_first(due_s: Floats, own_s: Floats, now_s: float, ahead_s: float, late: NDArray[np.bool_]) -> float:
    """Mark in `late` the fewest prompts without which the others, computed in this order, are in time.

    `due_s` ascends; `own_s` are the seconds of each prefill, behind `ahead_s` of others; shapes (n,). Returns the share
    of a prefill's speed that the prompts in time need.
    """
    done_s = now_s + ahead_s
    for k in range(len(due_s)):
        done_s += own_s[k]
        while done_s > due_s[k]:
            longest = -1
            for m in range(k + 1):
                if not late[m] and (longest < 0 or own_s[m] >= own_s[longest]):
                    longest = m
            if longest < 0:
                break
            late[longest] = True
            done_s -= own_s[longest]
    need, work_s = 0.0, ahead_s
    for k in range(len(due_s)):
        if not late[k]:
            work_s += own_s[k]
            need = max(need, work_s / max(due_s[k] - now_s, _SOON_S))
    return need


@compiled
def largest_chunk(times: StepTimes, i: int, decodes: int, context: int, limit_s: float, most: int) -> int:
    """The prompt tokens, a multiple of `_CHUNK` up to `most`, of the longest step of i within `limit_s`."""
    low, high = 1, max(most // _CHUNK, 1)
    while low < high:
        middle = (low + high + 1) // 2
        if estimate_s(times, i, middle * _CHUNK, decodes, context) <= limit_s:
            low = middle
        else:
            high = middle - 1
    return low * _CHUNK


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
        self.in_time, self.by_slack, self.fixed = order == "on_time", budget == "slack", budget == "fixed"
        self.margin, self.most_percent = margin, most_percent
        vars(self)["shares_gpus"] = streams == "spare" and budget != "fixed"
        vars(self)["route_prefill"] = PREFILL_RULES.get(routing, self.soonest)

    def prepare(self, cluster: Cluster) -> None:
        requests, there = cluster.requests, cluster.instances
        self.ttft_s, self.tpot_s = requests.limits
        self.own_s = np.full(len(requests.arrival_s), np.nan)  # seconds of each prompt's prefill, alone
        self.longest = there.token_budget.tolist()  # tokens of a step
        self.token_s = there.estimate_s(_RATE_TOKENS, 0, 0) / _RATE_TOKENS
        # Of each instance's queue, counted when it was last ordered: seconds of prompts in time, all tokens, and the
        # share of a prefill's speed that the first need.
        self.timely_s, self.tokens, self.need = np.zeros((3, len(there)))

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
        waits = there.queued[ids] > 0
        under_way = np.maximum(there.queued_tokens[ids] - np.where(waits, self.tokens[ids], 0.0), 0.0)
        return np.asarray(np.where(waits, self.timely_s[ids], 0.0) + under_way * self.token_s[ids])

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        requests = cluster.requests
        i = int(requests.instance[queue[0]])
        for r in queue[np.isnan(self.own_s[queue])].tolist():
            self.own_s[r] = cluster.instances.prefill_s(Request(r, requests), chunk_tokens=self.longest[i])[i]
        arrival_s = requests.arrival_s[queue]
        due_s, own_s, tokens = arrival_s + self.ttft_s[queue], self.own_s[queue], requests.input_tokens[queue]
        self.tokens[i] = tokens.sum()
        under_way_s = max(float(cluster.instances.queued_tokens[i] - self.tokens[i]), 0.0) * self.token_s[i]
        order, late = np.lexsort((queue, due_s)), np.zeros(len(queue), np.bool_)
        slower_s = _SLOWER * own_s[order]
        need = on_time_first(due_s[order], slower_s, cluster.now_s, _SLOWER * under_way_s, late) / _SLOWER
        late[order] = late.copy()
        self.need[i], self.timely_s[i] = need, own_s[~late].sum()
        if self.in_time:
            return np.where(late, due_s + _LATE_KEY_S, due_s)
        return arrival_s

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        there = cluster.instances
        decodes, longest = int(there.running[instance]), self.longest[instance]
        if self.fixed or decodes == 0 or there.queued_tokens[instance] == 0:
            return Plan(longest, "decode_first")
        limit_s = self._limit_s(instance, cluster)
        if self.shares_gpus:
            prefill_s, decode_s = cluster.streams_s(instance)
            in_limit = np.flatnonzero(decode_s[100 - self.most_percent : 100] <= limit_s)
            percent = max(self.most_percent - int(in_limit[0]) if len(in_limit) else 0, _LEAST_PERCENT)
            if prefill_s[100] >= _SPARE * self._need(instance, cluster) * prefill_s[percent]:
                return Plan(longest, "concurrent", percent)
        context = int(there.kv_tokens[instance])
        chunk = largest_chunk(there.step_times, instance, decodes, context, limit_s, longest)
        return Plan(chunk + decodes, "decode_first")

    def _limit_s(self, instance: int, cluster: Cluster) -> float:
        """The longest step that the decodes of an instance allow; inf if none has a limit to keep."""
        requests, ids = cluster.requests, cluster.decoding(instance)
        tpot_s, first_s = self.tpot_s[ids], requests.first_token_s[ids]
        left_s = np.minimum(first_s + requests.generated(ids) * tpot_s - cluster.now_s, 1e9)
        keeps = (first_s <= requests.arrival_s[ids] + self.ttft_s[ids]) & (left_s > -_LOST * tpot_s)
        if not keeps.any():
            return np.inf
        if not self.by_slack:
            return self.margin * float(tpot_s[keeps].min())
        allowed_s = np.clip(self.margin * left_s, _SHORTEST * tpot_s, _LONGEST * tpot_s)
        return float(allowed_s[keeps].min())

    def _need(self, instance: int, cluster: Cluster) -> float:
        """The share of a prefill's speed that the prompts in time need."""
        if cluster.instances.queued[instance] > 0:
            return float(self.need[instance])
        ids = cluster.prefilling(instance)
        left_s = cluster.requests.arrival_s[ids] + self.ttft_s[ids] - cluster.now_s
        left_s = left_s[left_s > 0.0]
        rest_s = float(cluster.instances.queued_tokens[instance]) * self.token_s[instance]
        return rest_s / float(left_s.min()) if len(left_s) else 0.0
