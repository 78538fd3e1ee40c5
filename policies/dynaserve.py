"""Unified instances that share a request, cut in two at any one token (DynaServe: arXiv 2504.09285).

The global scheduler cuts a request where the predicted work of the two instances that it goes to is balanced: in its
prompt, in its output or between them. Each instance forms chunked steps as large as its TBT limit allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from framework.policy import Aggregated, Plan
from framework.validate import require_count, require_positive
from framework.views import Cluster, Request
from policies.planning import largest_batch

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_NO_CUT = 1 << 40


def first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number from `low` on for which `holds`, true from some number on; `high` if none below is."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


class DynaServe(Aggregated):
    """Steps last at most `tbt_s`, but hold `least_chunk` tokens of prompts at least.

    A cut must leave `least_part` tokens on either side, and save more work on the busier instance than the time of the
    transfer. Without a predictor `output_tokens` are expected of each request.
    """

    def __init__(
        self,
        tbt_s: float = 0.05,
        output_tokens: int = 256,
        least_part: int = 64,
        least_chunk: int = 16,
    ) -> None:
        require_positive("policy.tbt_s", tbt_s)
        require_count("policy.output_tokens", output_tokens)
        require_count("policy.least_part", least_part)
        require_count("policy.least_chunk", least_chunk)
        self.tbt_s, self.output_tokens = tbt_s, output_tokens
        self.least_part, self.least_chunk = least_part, least_chunk
        self.parts: dict[int, tuple[int, int, int]] = {}  # of unfinished requests: first instance, second, cut
        self.ended = 0
        self.decode_s: tuple[Floats, Floats] | None = None  # of a token on each instance, and more for each of context
        self.largest_step: Integers = np.zeros(0, np.int64)  # tokens of a step of each instance, whatever its limit

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        if len(self.largest_step) == 0:
            self.largest_step = cluster.instances.token_budget.copy()
        if request.id in self.parts:  # at its cut
            return self.parts[request.id][1]
        for r in cluster.finished(self.ended).ids:
            self.parts.pop(int(r), None)
            self.ended += 1
        self.parts[request.id] = self._divide(request, cluster)
        return self.parts[request.id][0]

    def split_at(self, request: Request, cluster: Cluster) -> int:
        cut = self.parts[request.id][2]
        return 0 if cut == _NO_CUT else cut

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        _, second, cut = self.parts[request.id]
        at_cut = request.input_tokens + request.generated >= cut > request.input_tokens
        return second if at_cut else int(cluster.requests.instance[request.id])

    # the global scheduler

    def _divide(self, request: Request, cluster: Cluster) -> tuple[int, int, int]:
        """Where the two parts of a request go, and its cut."""
        there, prompt = cluster.instances, request.input_tokens
        load_s = self._load_s(cluster)
        pair = np.argsort(load_s, kind="stable")[:2]
        least = int(pair[0])
        if len(pair) < 2:
            return least, least, _NO_CUT
        first, second = (int(i) for i in pair[np.argsort(there.queued_tokens[pair], kind="stable")])
        output = int(self._expected(np.array([request.id]), cluster)[0])
        total = prompt + output
        each_s = self._decode_s(prompt + output / 2, cluster)

        def work_s(i: int, tokens: int) -> float:
            """Of the first tokens of the request, on i."""
            prefill_s = float(there.estimate_s(min(tokens, prompt), 0, 0)[i])
            return prefill_s + max(tokens - prompt, 0) * float(each_s[i])

        def loads_s(cut: int) -> tuple[float, float]:
            rest_s = work_s(second, total) - work_s(second, cut)
            return load_s[first] + work_s(first, cut), load_s[second] + rest_s

        cut = first_true(1, total, lambda tokens: loads_s(tokens)[0] >= loads_s(tokens)[1])
        saved_s = load_s[least] + work_s(least, total) - max(loads_s(cut))
        transfer_s = cut * cluster.kv_bytes_per_token / float(there.bandwidth_bytes_s[first])
        if min(cut, total - cut) < self.least_part or saved_s <= transfer_s:
            return least, least, _NO_CUT
        return first, second, cut

    def _load_s(self, cluster: Cluster) -> Floats:
        """Seconds of work that each instance has before it: prompts, and the tokens expected of its decodes."""
        there = cluster.instances
        step = int(self.largest_step.max())
        waiting_s = there.queued_tokens * there.estimate_s(step, 0, 0) / step
        if not self.parts:
            return np.asarray(waiting_s, np.float64)
        ids = np.fromiter(self.parts, np.int64)
        first, second, cut = np.array([*self.parts.values()]).T
        prompt = cluster.requests.input_tokens[ids]
        at = prompt + cluster.requests.generated(ids)
        end = at + self._expected(ids, cluster)
        here = np.maximum(np.minimum(cut, end) - at, 0)
        later = np.maximum(end - np.maximum(at, cut), 0)
        tokens = np.bincount(first, here, len(there)) + np.bincount(second, later, len(there))
        context = float((prompt + end).mean()) / 2
        return np.asarray(waiting_s + tokens * self._decode_s(context, cluster), np.float64)

    def _expected(self, ids: Integers, cluster: Cluster) -> Floats:
        """Output tokens that are still to come."""
        by_default = np.maximum(self.output_tokens - cluster.requests.generated(ids), 1)
        predicted = cluster.remaining_tokens(ids)
        return np.where(np.isnan(predicted), by_default, np.maximum(predicted, 1))

    def _decode_s(self, context: float, cluster: Cluster) -> Floats:
        """Seconds of one token of that context on each instance, in the largest batch that keeps the TBT limit."""
        if self.decode_s is None:
            there = cluster.instances
            batch = largest_batch(there, self.tbt_s, context, int(there.max_batch[0]))
            short_s, long_s = (there.estimate_s(0, batch, batch * tokens) / batch for tokens in (1, 1 + int(context)))
            self.decode_s = short_s, (long_s - short_s) / max(int(context), 1)
        return self.decode_s[0] + context * self.decode_s[1]

    # the local scheduler

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        """As many tokens of prompts beside the decodes as the limit allows."""
        there = cluster.instances
        most, ids = int(self.largest_step[instance]), cluster.decoding(instance)
        running, context = len(ids), int((cluster.requests.kv_tokens(ids) + 1).sum())
        if there.queued_tokens[instance] == 0:
            return Plan(max(most, running + self.least_chunk), "decode_first")

        def is_late(chunk: int) -> bool:
            return bool(there.estimate_s(chunk + 1, running, context)[instance] > self.tbt_s)

        chunk = first_true(self.least_chunk, max(most - running, self.least_chunk), is_late)
        return Plan(running + chunk, "decode_first")
