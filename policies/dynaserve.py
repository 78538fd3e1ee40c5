"""Unified instances that share a request, cut in two at any one token (DynaServe: arXiv 2504.09285).

The global scheduler cuts a request where the predicted work of its two instances is balanced: in its prompt, in its
output or between them. It takes the pair of instances whose busier one is then least busy. Each instance forms chunked
steps as large as its TBT limit allows, with the time of every chunk computed after its prefix.

Work before and after a cut of a request: compiled parts of policies that cut requests in two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, checked
from framework.codes import OFF
from framework.compiler.decorators import compiled
from framework.policy import Aggregated, Plan
from framework.policy.view import Cluster, Request
from framework.timing.estimate import StepTimes, chunked_s, estimate_s
from policies._scaling import largest_batch

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def outputs_ahead(parts: Integers, ids: Integers, at: Integers, end: Floats, instances: int) -> Floats:
    """Tokens that requests which have reached `at` will generate on each instance until `end`."""
    here, later = np.zeros(instances), np.zeros(instances)
    for k in range(len(ids)):
        cut = parts[2, ids[k]]
        here[parts[0, ids[k]]] += max(min(cut, end[k]) - at[k], 0)
        later[parts[1, ids[k]]] += max(end[k] - max(at[k], cut), 0)
    return here + later


@compiled
def work_s(tokens: int, times: StepTimes, i: int, each_s: float, prompt: int) -> float:
    """Seconds of the first `tokens` of a request on i: its prompt in one step, its output at `each_s` a token."""
    return estimate_s(times, i, min(tokens, prompt), 0, 0) + max(tokens - prompt, 0) * each_s


@compiled
def balanced_cut(
    before_s: Floats, total: int, times: StepTimes, pair: Integers, each_s: Floats, prompt: int
) -> tuple[int, float]:
    """The cut of a request between two instances with that much work before it at which the first has at least as much
    work as the second, found by bisection; and the work of the busier one.
    """
    whole_s = work_s(total, times, pair[1], each_s[1], prompt)
    low, high = 1, total
    while low < high:
        cut = (low + high) // 2
        first_s = before_s[0] + work_s(cut, times, pair[0], each_s[0], prompt)
        if first_s >= before_s[1] + (whole_s - work_s(cut, times, pair[1], each_s[1], prompt)):
            high = cut
        else:
            low = cut + 1
    first_s = before_s[0] + work_s(low, times, pair[0], each_s[0], prompt)
    return low, max(first_s, before_s[1] + (whole_s - work_s(low, times, pair[1], each_s[1], prompt)))


@compiled
def best_pair(
    load_s: Floats, queued: Integers, total: int, times: StepTimes, each_s: Floats, prompt: int
) -> tuple[int, int, int, float]:
    """The two instances whose busier one is least busy with a cut request, first the one with fewer queued tokens, or
    else with less work; its cut, and the work of the busier one.
    """
    best = -1, -1, 0, np.inf
    for i in range(len(load_s)):
        for j in range(i + 1, len(load_s)):
            is_later = queued[j] < queued[i] or (queued[j] == queued[i] and load_s[j] < load_s[i])
            first, second = (j, i) if is_later else (i, j)
            pair = np.array([first, second])
            cut, busier_s = balanced_cut(load_s[pair], total, times, pair, each_s[pair], prompt)
            if busier_s < best[3]:
                best = first, second, cut, busier_s
    return best


# --- the policy -------------------------------------------------------------------------------------------------------


_NO_CUT = 1 << 40


class DynaServe(Aggregated):
    """Steps last at most `tbt_s`, but hold at least `least_chunk` tokens of prompts.

    A cut must leave `least_part` tokens on either side, and save more work on the busier instance than the time of the
    transfer. Without a predictor each request is expected to emit `output_tokens`.
    """

    @checked("policy.")
    def __init__(
        self,
        tbt_s: Positive = 0.05,
        output_tokens: Count = 256,
        least_part: Count = 64,
        least_chunk: Count = 16,
    ) -> None:
        self.tbt_s, self.output_tokens = tbt_s, output_tokens
        self.least_part, self.least_chunk = least_part, least_chunk
        self.parts: Integers = np.zeros((3, 0), np.int64)  # first instance, second instance and cut of each request
        # requests that have such parts and have not finished
        self.is_divided: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.unfinished: Integers = np.zeros(0, np.int64)  # ids of those requests, in order of arrival
        self.ended = 0
        self.decode_s: tuple[Floats, Floats] | None = None  # seconds of a token on each instance, of each context token
        self.largest_step: Integers = np.zeros(
            0, np.int64
        )  # tokens of a step of each instance, independent of its limit
        self.prompts: list[list[int]] = []  # prompts of which each instance must compute all or a part, in its order
        self.coming: list[list[int]] = []  # the same, while the first part is on its way there

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        if len(self.largest_step) == 0:
            self.largest_step = cluster.instances.token_budget.copy()
            count = len(cluster.requests.input_tokens)
            self.parts, self.is_divided = np.zeros((3, count), np.int64), np.zeros(count, np.bool_)
            self.prompts = [[] for _ in range(len(cluster.instances))]
            self.coming = [[] for _ in range(len(cluster.instances))]
        if self.is_divided[request.id]:
            at_cut = cluster.requests.instance[request.id] >= 0
            return self._second_part(request.id, cluster) if at_cut else self._whole(request.id, cluster)
        ended = cluster.finished(self.ended).ids
        if len(ended):
            self.ended += len(ended)
            self.is_divided[ended] = False
            self.unfinished = self.unfinished[self.is_divided[self.unfinished]]
        self.parts[:, request.id] = self._divide(request, cluster)
        self.is_divided[request.id] = True
        self.unfinished = np.append(self.unfinished, request.id)
        first = int(self.parts[0, request.id])
        self.prompts[first].append(request.id)
        return first

    def _whole(self, r: int, cluster: Cluster) -> int:
        """Route a request that a crash took off its instance; it is not cut any more."""
        for there in (self.prompts[self.parts[0, r]], self.coming[self.parts[1, r]]):
            if r in there:
                there.remove(r)
        least = cluster.prefill.argmin(self._load_s(cluster)[cluster.prefill.ids])
        self.parts[:, r] = least, least, _NO_CUT
        self.prompts[least].append(r)
        return least

    def _second_part(self, r: int, cluster: Cluster) -> int:
        """The instance of a request after its cut; if that instance has crashed, the request stays."""
        if cluster.instances.role[self.parts[1, r]] == OFF:
            self.parts[:, r] = self.parts[0, r], self.parts[0, r], _NO_CUT
        first, second, _ = (int(part) for part in self.parts[:, r])
        if r in self.prompts[first] and first != second:
            self.prompts[first].remove(r)
            self.coming[second].append(r)
        return second

    def split_at(self, request: Request, cluster: Cluster) -> int:
        cut = int(self.parts[2, request.id])
        return 0 if cut == _NO_CUT else cut

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        _, second, cut = self.parts[:, request.id]
        at_cut = request.input_tokens + request.generated >= cut > request.input_tokens
        goes_on = at_cut and cluster.instances.role[second] != OFF
        return int(second if goes_on else cluster.requests.instance[request.id])

    # the global scheduler

    def _divide(self, request: Request, cluster: Cluster) -> tuple[int, int, int]:
        """The instances of the two parts of a request, and its cut."""
        there, prompt = cluster.instances, request.input_tokens
        load_s = np.where(there.role == OFF, np.inf, self._load_s(cluster))  # inf: it has crashed
        least = int(load_s.argmin())
        if np.count_nonzero(there.role) < 2:
            return least, least, _NO_CUT
        ids = np.array([request.id])
        output = int(self._expected(ids, cluster.requests.generated(ids), cluster)[0])
        total = prompt + output
        each_s = self._decode_s(prompt + output / 2, cluster)
        queued = np.ascontiguousarray(there.queued_tokens)
        first, second, cut, busier_s = best_pair(load_s, queued, total, there.step_times, each_s, prompt)
        alone_s = work_s(total, there.step_times, least, float(each_s[least]), prompt)
        saved_s = load_s[least] + alone_s - busier_s
        transfer_s = cut * cluster.kv_bytes_per_token / float(there.bandwidth_bytes_s[first])
        if min(cut, total - cut) < self.least_part or saved_s <= transfer_s:
            return least, least, _NO_CUT
        return first, second, cut

    def _load_s(self, cluster: Cluster) -> Floats:
        """Seconds of work that each instance has: prompts, and the tokens expected of its decodes."""
        there, ids = cluster.instances, self.unfinished
        step = int(self.largest_step.max())
        waiting_s = there.queued_tokens * there.estimate_s(step, 0, 0) / step
        if len(ids) == 0:
            return np.asarray(waiting_s, np.float64)
        prompt, generated = cluster.requests.input_tokens[ids], cluster.requests.generated(ids)
        at = prompt + generated
        end = at + self._expected(ids, generated, cluster)
        tokens = outputs_ahead(self.parts, ids, at, end, len(there))
        context = float((prompt + end).mean()) / 2
        return np.asarray(waiting_s + tokens * self._decode_s(context, cluster), np.float64)

    def _expected(self, ids: Integers, generated: Integers, cluster: Cluster) -> Floats:
        """Output tokens that are still to come."""
        by_default = np.maximum(self.output_tokens - generated, 1)
        predicted = cluster.predictions.remaining(ids, generated)
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
        """A budget of as many prompt tokens with the decodes as the limit allows."""
        there = cluster.instances
        most, running = int(self.largest_step[instance]), int(there.running[instance])
        if there.queued_tokens[instance] == 0:
            return Plan(max(most, running + self.least_chunk), "decode_first")
        contexts = cluster.requests.kv_tokens(cluster.decoding(instance)) + 1
        decodes = running, int(contexts.sum()), int(contexts.max(initial=0))
        sizes = self.least_chunk, max(most - running, self.least_chunk)
        prompts = self._lacking(instance, cluster)
        chunk = largest_chunk(there.step_times, instance, prompts, *decodes, *sizes, self.tbt_s)
        return Plan(running + chunk, "decode_first")

    def _lacking(self, instance: int, cluster: Cluster) -> Integers:
        """For each prompt that an instance must compute, in order, its available tokens and its missing ones.

        The tokens computed so far are known only as a sum; they count for the first prompts. Missing tokens of no known
        part belong to requests that are computed again.
        """
        requests = cluster.requests
        self.prompts[instance] = [
            r
            for r in self.prompts[instance]
            if np.isnan(requests.first_token_s[r]) and requests.instance[r] == instance
        ]
        self.coming[instance] = [r for r in self.coming[instance] if requests.instance[r] >= 0]
        there, lacking, done = self._progress(instance, cluster)
        arrived = [r for r in self.coming[instance] if requests.instance[r] == instance]
        if arrived:  # It goes behind what has begun and before what has not.
            begun = int((there > 0).sum())
            self.prompts[instance][begun:begun] = arrived
            self.coming[instance] = [r for r in self.coming[instance] if r not in arrived]
            there, lacking, done = self._progress(instance, cluster)
        if done < 0:
            return np.stack([np.append(0, there), np.append(-done, lacking)])
        return np.stack([there, lacking])

    def _progress(self, instance: int, cluster: Cluster) -> tuple[Integers, Integers, int]:
        """Available and missing tokens of its prompts, and the sum of those that it has computed."""
        start, end = self._part_of(self.prompts[instance], instance, cluster)
        from_start, to_end = self._part_of(self.coming[instance], instance, cluster)
        lacking = end - start
        done = int(lacking.sum() + (to_end - from_start).sum() - cluster.instances.queued_tokens[instance])
        of_each = np.clip(done - (np.cumsum(lacking) - lacking), 0, lacking)
        return start + of_each, lacking - of_each, done

    def _part_of(self, prompts: list[int], instance: int, cluster: Cluster) -> tuple[Integers, Integers]:
        """The tokens of these prompts at which an instance's part begins and ends."""
        ids = np.array(prompts, np.int64)
        first, second, cut = self.parts[:, ids]
        whole, is_cut = cluster.requests.input_tokens[ids], (first != second) & (second == instance)
        return np.where(is_cut, cut, 0), np.where(is_cut, whole, np.minimum(cut, whole))


@compiled
def largest_chunk(
    times: StepTimes,
    i: int,
    prompts: Integers,
    running: int,
    context: int,
    longest: int,
    least: int,
    most: int,
    limit_s: float,
) -> int:
    """Prompt tokens, from `least` to `most`, with which a step of these decodes keeps the limit."""
    while least < most:
        middle = (least + most) // 2
        if chunked_s(times, i, prompts, middle + 1, running, context, longest) > limit_s:
            most = middle
        else:
            least = middle + 1
    return least
