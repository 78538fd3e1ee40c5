"""Promises that are kept, and tokens of each step by the tightest pace (SLOs-Serve: Chen et al., arXiv 2504.08784).

An instance promises an arriving request its limits: the first, in order of queued tokens and of requests, that can keep
them in addition to all that it has promised. If none can, the first takes it, and gives up as few promises as make the
others hold. Requests without a promise are best effort: they wait behind the others, step aside where these lack
memory, and no step keeps a limit for them (soft admission). Steps are as large as the tightest limit on TPOT of the
promised requests allows (dynamic batch size).

Promises hold if prompts are computed when they are due, at the pace at which an instance prefills next to its decodes.
The paper plans by a dynamic programme over tokens, memory and number of promises. For one pace and equal worth of all
requests the rule of Moore (Management Science 15, 1968) finds the same number: prompts in the order in which they are
due, and whenever one would be late, the longest so far is given up.

Simplified: the work of a prompt is its length, also if it is under way or partly cached. Decodes of looser limits are
not left out of steps. Drafts are those of `engine.speculation`. A request is not sent on once it has been promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Positive, Share, checked
from framework.compiler.decorators import compiled
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Preempt, Request, Resume, SetTokenBudget
from framework.policy.view import Floats
from framework.timing.estimate import StepTimes, estimate_s
from policies._class_limits import limits_s
from policies._stepping_aside import stepping_aside

Integers = NDArray[np.int64]
_SMALLEST_CHUNK = 32  # tokens
_BEST_EFFORT_S = 1e12  # added to the key of a request without a promise


class SlosServe(Aggregated):
    """Limits `ttft_s` and `tpot_s` of all requests, or of each class in the order of their names.

    `full`: the share of KV memory that promised requests may fill.
    """

    batching_mode: ClassVar[Batching | None] = "decode_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive | None = 2.0,
        tpot_s: Positive | None = 0.05,
        classes_ttft_s: Sequence[float] | None = None,
        classes_tpot_s: Sequence[float] | None = None,
        full: Share = 0.9,
    ) -> None:
        self._ttft = limits_s("policy.classes_ttft_s", ttft_s, classes_ttft_s)
        self._tpot = limits_s("policy.classes_tpot_s", tpot_s, classes_tpot_s)
        self.full = full

    def prepare(self, cluster: Cluster) -> None:
        classes = cluster.requests.slo_class
        self._ttft_s, self._tpot_s = self._ttft(classes), self._tpot(classes)
        self._due_s = np.full(len(classes), np.nan)  # time at which the prompt of each request is due
        self._promised = np.zeros(len(classes), bool)
        self._prompts = [np.zeros(0, np.int64) for _ in cluster.instances.ids]  # promised there, as they are due
        self._most = cluster.instances.token_budget.copy()

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        r, there = request.id, cluster.prefill
        if np.isnan(self._due_s[r]):
            self._due_s[r] = cluster.now_s + self._ttft_s[r]
        order = there.ids[np.lexsort([there.running + there.prefilling + there.queued, there.queued_tokens])].tolist()
        for i in order:
            prompts = self._with(i, r, cluster)
            if not self._given_up(i, prompts, cluster).any():
                self._promise(i, prompts)
                return int(i)
        prompts = self._with(order[0], r, cluster)
        given_up = self._given_up(order[0], prompts, cluster)
        self._promise(order[0], prompts[~given_up])
        self._promised[prompts[given_up]] = False
        return int(order[0])

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        due_s = np.nan_to_num(self._due_s[queue], posinf=_BEST_EFFORT_S)
        return np.where(self._promised[queue], due_s, _BEST_EFFORT_S + cluster.requests.arrival_s[queue])

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Give up what cannot be kept any more, make room for promised prompts, and set the size of the steps."""
        prompts = self._still_waiting(instance, cluster)
        given_up = self._given_up(instance, prompts, cluster)
        self._promised[prompts[given_up]] = False
        self._prompts[instance] = prompts[~given_up]
        there = cluster.instances
        if there.queued_tokens[instance] == 0:
            return []
        decodes = int(there.running[instance])
        chunk = self._chunk(instance, cluster, self._limit_s(instance, cluster), decodes)
        tokens = min(chunk + decodes, int(self._most[instance]))
        actions: list[Action] = []
        if tokens != there.token_budget[instance]:
            actions.append(SetTokenBudget(instance, tokens))
        return actions + [action for r in self._aside(instance, cluster) for action in (Preempt(r), Resume(r))]

    def _aside(self, instance: int, cluster: Cluster) -> list[int]:
        """Best-effort requests whose memory or seats promised ones need, the latest first."""
        waiting, running = cluster.queued(instance), cluster.decoding(instance)
        waiting = waiting[self._promised[waiting]]
        running = running[~self._promised[running]][::-1]
        if len(waiting) == 0 or len(running) == 0:
            return []
        return stepping_aside(cluster, instance, waiting, running, (np.zeros(len(waiting)), np.ones(len(running))))

    def _promise(self, instance: int, prompts: Integers) -> None:
        self._prompts[instance] = prompts
        self._promised[prompts] = True

    def _with(self, instance: int, r: int, cluster: Cluster) -> Integers:
        """The promised prompts of an instance and this one, in the order in which they are due."""
        prompts = self._still_waiting(instance, cluster)
        prompts = np.append(prompts[prompts != r], r)
        return prompts[np.lexsort([prompts, self._due_s[prompts]])]

    def _still_waiting(self, instance: int, cluster: Cluster) -> Integers:
        """The promised prompts on the instance that are not done."""
        prompts, requests = self._prompts[instance], cluster.requests
        where = requests.instance[prompts]
        is_here = (where == instance) | (where == -1)
        return prompts[self._promised[prompts] & is_here & np.isnan(requests.first_token_s[prompts])]

    def _given_up(self, instance: int, prompts: Integers, cluster: Cluster) -> NDArray[np.bool_]:
        """The fewest of these prompts without which the others are in time and in memory, as a mask."""
        there, given_up = cluster.instances, np.zeros(len(prompts), np.bool_)
        limit_s = min(self._limit_s(instance, cluster), float(self._tpot_s[prompts].min(initial=np.inf)))
        decodes = int(there.running[instance]) + len(prompts)
        chunk = self._chunk(instance, cluster, limit_s, decodes)
        step_s = estimate_s(there.step_times, instance, chunk, decodes, int(there.kv_tokens[instance]))
        room = self.full * int(there.total_blocks[instance]) * cluster.block_tokens - self._held(instance, cluster)
        if step_s > limit_s:
            room = -1.0  # None fits.
        columns = cluster.requests.input_tokens, self._due_s
        _give_up(prompts, columns, cluster.now_s, chunk, step_s, room, given_up)
        return given_up

    def _held(self, instance: int, cluster: Cluster) -> int:
        """KV tokens of promised requests that decode."""
        running = cluster.decoding(instance)
        return int(cluster.requests.kv_tokens(running[self._promised[running]]).sum())

    def _limit_s(self, instance: int, cluster: Cluster) -> float:
        """The tightest limit on TPOT of the promised requests on an instance."""
        running = cluster.decoding(instance)
        decoding_s = self._tpot_s[running[self._promised[running]]].min(initial=np.inf)
        return float(min(decoding_s, self._tpot_s[self._prompts[instance]].min(initial=np.inf)))

    def _chunk(self, instance: int, cluster: Cluster, limit_s: float, decodes: int) -> int:
        """The largest chunk, of the budget and its halves, whose step keeps the limit."""
        there = cluster.instances
        most, context = int(self._most[instance]), int(there.kv_tokens[instance])
        return _largest_chunk(there.step_times, instance, most, decodes, context, limit_s)


@compiled
def _largest_chunk(times: StepTimes, i: int, most: int, decodes: int, context: int, limit_s: float) -> int:
    chunk = most
    while chunk > _SMALLEST_CHUNK and estimate_s(times, i, chunk, decodes, context) > limit_s:
        chunk //= 2
    return chunk


@compiled
def _give_up(
    prompts: Integers,
    columns: tuple[Integers, Floats],
    now_s: float,
    chunk: int,
    step_s: float,
    room: float,
    given_up: NDArray[np.bool_],
) -> None:
    """Mark the prompts that are given up, of those computed in this order in steps of `chunk` tokens.

    `columns`: the tokens of all requests, and when each is due. `room`: tokens that fit, -1: none.
    """
    (sizes, due_s), tokens = columns, 0
    for k in range(len(prompts)):
        tokens += sizes[prompts[k]]
        if now_s + -(-tokens // chunk) * step_s > due_s[prompts[k]] or tokens > room:
            longest = -1
            for m in range(k + 1):
                if not given_up[m] and (longest < 0 or _is_longer(sizes, prompts[m], prompts[longest])):
                    longest = m
            given_up[longest] = True
            tokens -= sizes[prompts[longest]]


@compiled
def _is_longer(sizes: Integers, one: int, other: int) -> bool:
    return sizes[one] > sizes[other] or (sizes[one] == sizes[other] and one > other)
