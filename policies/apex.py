"""Goodput under SLOs from five rules that others have one by one (docs/apex.md measures each).

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

Room. Where prompts wait in time for KV memory or a seat, decodes step aside for them, those first that are expected to
hold most KV tokens for most steps. Each is computed again before its answer as a whole would miss its TPOT limit. None
steps aside where prefills take over 40 % of the time. What an answer has left is the predictor's word.

The limits are those of the run's SLO for each request. Nothing is learnt.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from framework.checks import Share, checked
from framework.engine.parallel.sm_sharing import Percent
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Plan, Preempt, Resume
from framework.policy.rules import PREFILL_RULES
from framework.policy.view import Cluster, Floats, Integers, Request
from policies._on_time import SOON_S, on_time_first
from policies._step_limits import LOST, largest_chunk, longest_step_s, prefill_s, under_way
from policies._stepping_aside import stepping_aside

_SLOWER = 1.15  # factor on prefills alone, by which prompts are expected to take longer next to decodes
_SPARE = 1.4  # factor by which the prefill stream must be faster than the prompts in time need
_SHORTEST, _LONGEST = 0.7, 4.0  # bounds of a step, in TPOT limits of the decode that sets it
_BUSY = 0.4  # share of the time that prefills take, from which on none is computed again
_LATELY_S = 30.0  # the time constant of that share
_LATE_KEY_S = 1e9  # added to the due time of a prompt that would be late
_LEAST_PERCENT = 10  # of the SMs that a prefill stream has


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
        room: Literal["rest", "wait"] = "rest",
        margin: Share = 0.9,
        most_percent: Percent = 70,
    ) -> None:
        self.in_time, self.fixed = order == "on_time", budget == "fixed"
        self.bounds = (_SHORTEST, _LONGEST) if budget == "slack" else (margin, margin)
        self.margin, self.most_percent = margin, most_percent
        vars(self)["shares_gpus"] = streams == "spare" and budget != "fixed"
        vars(self)["route_prefill"] = PREFILL_RULES.get(routing, self.soonest)
        if room == "rest":
            vars(self)["decide"], vars(self)["victim"] = self._make_room, self._costliest

    def prepare(self, cluster: Cluster) -> None:
        requests, there = cluster.requests, cluster.instances
        self.ttft_s, self.tpot_s = requests.limits
        self.own_s = np.full(len(requests.arrival_s), np.nan)  # seconds of each prompt's prefill, alone
        self.again_s = np.full(len(requests.arrival_s), np.nan)  # when the next token of a preempted request is due
        self.to_prefill = requests.input_tokens.copy()  # tokens, of the prompt, or of all so far once it was preempted
        self.longest = there.token_budget.tolist()  # tokens of a step
        self._plans = dict[tuple[int, Batching, int | None], Plan]()
        # Of each instance: seconds of prompts under way; of its queue, counted when it was last ordered, seconds of
        # prompts in time, all tokens, and the share of a prefill's speed that the first need.
        self.under_way_s, self.timely_s, self.tokens, self.need = np.zeros((4, len(there)))
        # Seconds of prefill that came to each instance lately, as of the time they were last counted.
        self.arrived_s, self.counted_s = np.zeros((2, len(there)))

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
        self._prefill_share(i, cluster, own_s[at])
        self.timely_s[i] += own_s[at]
        self.tokens[i] += request.input_tokens
        need = done_s[at] / max(request.arrival_s + self.ttft_s[request.id] - cluster.now_s, SOON_S)
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
            self._prefill_share(i, cluster, self.own_s[r])
        arrival_s = requests.arrival_s[queue]
        due_s, own_s, tokens = self._due_s(queue, cluster), self.own_s[queue], self.to_prefill[queue]
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

    def _make_room(self, instance: int, cluster: Cluster) -> list[Action]:
        """Let decodes step aside for prompts that wait in time, those first that will hold most KV for longest.

        What they held is computed again, so none does where prompts take much of the time.
        """
        waiting, running = cluster.queued(instance), cluster.decoding(instance)
        if len(waiting) == 0 or len(running) == 0 or self._is_busy(instance, cluster):
            return []
        start_s = self._due_s(waiting, cluster) - _SLOWER * self.own_s[waiting]  # at the latest
        in_time = start_s > cluster.now_s
        waiting = waiting[in_time][np.argsort(start_s[in_time], kind="stable")]
        if len(waiting) == 0:
            return []
        until_s = self._again_until_s(running, instance, cluster)
        running, cost = self._costliest_first(running[until_s > self._due_s(waiting[:1], cluster)], cluster)
        leaving = stepping_aside(cluster, instance, waiting, running, (self._cost(waiting, cluster), cost))
        self._note(running[: len(leaving)], instance, cluster)
        return [action for r in leaving for action in (Preempt(r), Resume(r))]

    def _costliest(self, instance: int, candidates: Integers, cluster: Cluster) -> int:
        """The decode that will hold most KV for longest, where the engine lacks blocks for the next token of all."""
        decoding = candidates[np.isin(candidates, cluster.decoding(instance))]
        if len(decoding) == 0 or self._is_busy(instance, cluster):
            return int(candidates[-1])
        first = self._costliest_first(decoding, cluster)[0][:1]
        self._note(first, instance, cluster)
        return int(first[0])

    def _rest(self, ids: Integers, cluster: Cluster) -> Floats:
        """The output tokens that each is expected to have left: without a predictor as many as it has emitted."""
        generated = cluster.requests.generated(ids)
        rest = cluster.predictions.remaining(ids, generated)
        return np.where(np.isnan(rest), generated, rest)

    def _cost(self, ids: Integers, cluster: Cluster) -> Floats:
        """KV tokens times the steps for which each is expected to hold them."""
        rest = self._rest(ids, cluster)
        held = cluster.requests.input_tokens[ids] + cluster.requests.generated(ids)
        return np.asarray((held + rest / 2) * rest)

    def _costliest_first(self, decoding: Integers, cluster: Cluster) -> tuple[Integers, Floats]:
        """Decodes in descending order of their cost, and that; inf if a limit is missed for good."""
        cost = np.where(self._has_missed(decoding, cluster), np.inf, self._cost(decoding, cluster))
        order = np.argsort(-cost, kind="stable")
        return decoding[order], cost[order]

    def _has_missed(self, ids: Integers, cluster: Cluster) -> NDArray[np.bool_]:
        requests, tpot_s = cluster.requests, self.tpot_s[ids]
        first_s = requests.first_token_s[ids]
        behind_s = cluster.now_s - first_s - requests.generated(ids) * tpot_s
        return np.asarray((first_s > requests.arrival_s[ids] + self.ttft_s[ids]) | (behind_s > LOST * tpot_s))

    def _again_until_s(self, decoding: Integers, instance: int, cluster: Cluster) -> Floats:
        """Until when each decode can be computed again and keep its limit on TPOT; inf if one is missed for good."""
        tpot_s, step_s = self.tpot_s[decoding], cluster.instances.step_s()[instance]
        until_s = cluster.requests.first_token_s[decoding] + cluster.requests.generated(decoding) * tpot_s
        until_s += self._rest(decoding, cluster) * np.maximum(tpot_s - step_s, 0.0)
        return np.where(self._has_missed(decoding, cluster), np.inf, until_s)

    def _note(self, leaving: Integers, instance: int, cluster: Cluster) -> None:
        """Note until when these decodes are due, and what is computed again before."""
        until_s = self._again_until_s(leaving, instance, cluster)
        self.again_s[leaving] = np.where(np.isinf(until_s), 0.0, until_s)  # behind all that are in time
        self.to_prefill[leaving] = cluster.requests.input_tokens[leaving] + cluster.requests.generated(leaving)
        for r in leaving.tolist():
            tokens = int(self.to_prefill[r])
            self.own_s[r] = prefill_s(cluster.instances.step_times, instance, tokens, self.longest[instance])

    def _due_s(self, ids: Integers, cluster: Cluster) -> Floats:
        """When the next token of each request that does not decode is due."""
        again_s = self.again_s[ids]
        return np.where(np.isnan(again_s), cluster.requests.arrival_s[ids] + self.ttft_s[ids], again_s)

    def _is_busy(self, instance: int, cluster: Cluster) -> bool:
        return self._prefill_share(instance, cluster) > _BUSY

    def _prefill_share(self, instance: int, cluster: Cluster, more_s: float = 0.0) -> float:
        """Seconds of prefill, with `more_s`, that came to an instance, per second of the last `_LATELY_S`."""
        past_s = cluster.now_s - self.counted_s[instance]
        self.arrived_s[instance] = self.arrived_s[instance] * np.exp(-past_s / _LATELY_S) + more_s
        self.counted_s[instance] = cluster.now_s
        return float(self.arrived_s[instance] / _LATELY_S)

    def _under_way(self, instance: int, cluster: Cluster) -> tuple[float, int]:
        """As `under_way`, of an instance's prompts."""
        there, prompts = cluster.instances, self.to_prefill[cluster.prefilling(instance)]
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
        left_s = self._due_s(ids, cluster) - cluster.now_s
        left_s = left_s[left_s > 0.0]
        return float(self.under_way_s[instance] / left_s.min()) if len(left_s) else 0.0
