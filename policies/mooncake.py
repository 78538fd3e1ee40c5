"""A scheduler around the pool of KV prefixes (Mooncake: Qin et al., FAST 2025, section 6; arXiv 2407.00079).

The Conductor sends a prompt to the instance with the least TTFT (Algorithm 1): queue, prefill of the uncached part, and
the copy of a prefix if another instance has much more of it. If TTFT or TBT would be too late it rejects (arXiv,
section 7).

Simplified: the queue is the sum of the whole prefills in it, as in Algorithm 1, and a copy finds an idle link. With
`estimate=left` a prefill under way counts by its tokens that are left, and a copy begins when those before it from the
same instance should be over; KV on its way to decode instances, which shares that link, still counts nothing. KV leaves
when a prompt is computed, if `engine.layerwise_tokens` does not say that it leaves layer by layer, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from framework.checks import Count, Positive, Whole, checked
from framework.codes import DECODE, PREFILL
from framework.compiler.decorators import compiled, either
from framework.policy import Disaggregated, decision
from framework.policy.view import Cluster, Floats, Request, View
from framework.replay.lookups import cached_tokens, callable_with, instance_of, now_s, prefill_s, request_of, step_s
from framework.system.cluster import ClusterSpec
from policies._decode_load import EXPECTED_TBT, DecodeLoad
from policies._placed import (
    Placement,
    cached_on,
    confirm,
    copied_s,
    done_s,
    instances_in,
    is_confirmed,
    is_full,
    keep,
    last_confirmed,
    left_s,
    note_cached,
    nothing_placed,
    remember,
    remembered,
    send,
)

Admission = Literal["none", "slo", "baseline", "early", "predicted"]


# --- the instance of a prompt, in compiled code -----------------------------------------------------------------------


Routing = Literal["random", "load", "local", "global"]
Estimate = Literal["whole", "left"]

# Settings among the numbers of a policy. `_LONGER`: as `kvcache_balancing_threshold`, 0: nothing is copied; `_DRAWN`:
# the instance that was drawn at random, -1: it is chosen by cost; `_BY_LEFT`: `estimate=left`.
_TTFT_LIMIT_S, _TBT_LIMIT_S, _LONGER, _BY_QUEUE, _CHUNK_TOKENS, _BYTES_PER_TOKEN, _DRAWN, _BY_LEFT = range(8)
_LATE = ("", "ttft", "tbt")


@either()
def best_placement(engine: Any, numbers: Floats, r: int) -> Placement:
    """The best placement by Algorithm 1, lines 1 to 20. The longest prefix is copied if it is more than `_LONGER` times
    as long as the instance's own.
    """
    present_s, prompt = now_s(engine), int(request_of(engine, r).input_tokens)
    best, longest = -1, -1
    for i in range(instances_in(numbers)):
        inst = instance_of(engine, i)
        if inst.role & PREFILL:
            keep(numbers, i, inst.queued + inst.prefilling, present_s)
            own = cached_tokens(engine, i, r)
            note_cached(numbers, i, own)
            if own > longest:
                best, longest = i, own
    found, least = Placement(-1, -1, 0.0, 0.0, 0.0, 0), np.inf
    computed, pool, alone_s = -1, -1, 0.0
    for i in range(instances_in(numbers)):
        inst = instance_of(engine, i)
        if inst.role & PREFILL:
            prefix, source, transfer_s = cached_on(numbers, i), -1, 0.0
            if numbers[_LONGER] > 0.0 and longest > numbers[_LONGER] * prefix:  # Its own prefix may be 0.
                slower = min(inst.bandwidth_bytes_s, instance_of(engine, best).bandwidth_bytes_s)
                transfer_s = _before_s(numbers, best, present_s)
                transfer_s += (longest - prefix) * numbers[_BYTES_PER_TOKEN] / slower
                prefix, source = longest, best
            if prefix != computed or inst.pool != pool:  # The result for the instance before is reused once.
                alone_s = prefill_s(engine, i, prefix, prompt, int(numbers[_CHUNK_TOKENS]))
                computed, pool = prefix, inst.pool
            queue_s = left_s(numbers, i)
            if numbers[_BY_LEFT]:
                queue_s -= done_s(numbers, i, inst.prefilling, inst.queued_tokens, present_s)
            ttft_s = queue_s + transfer_s + alone_s
            cost = queue_s if numbers[_BY_QUEUE] else ttft_s
            if i == numbers[_DRAWN] or (numbers[_DRAWN] < 0 and (found.instance < 0 or cost < least)):
                found = Placement(i, source, ttft_s, alone_s, present_s + transfer_s, prompt - prefix)
                least = cost
    return found


@either()
def _before_s(numbers: Floats, source: int, present_s: float) -> float:
    """Seconds until a copy from this instance begins."""
    return max(copied_s(numbers, source) - present_s, 0.0) if numbers[_BY_LEFT] else 0.0


@either()
def tbt_s(engine: Any, instances: int, prompt: int) -> float:
    """Seconds of a decode step on the instance with the least KV, with a prompt of `prompt` tokens."""
    best, least = -1, 0
    for i in range(instances):
        inst = instance_of(engine, i)
        held = inst.kv_tokens + inst.incoming_kv_tokens
        if inst.role & DECODE and (best < 0 or held < least):
            best, least = i, held
    there = instance_of(engine, best)
    return step_s(engine, best, 0, there.running + there.incoming + 1, least + prompt)


@compiled
def judged(engine: Any, numbers: Floats, r: int) -> int:
    """Place r; return the number of the limit, in `_LATE`, that it would break, or 0 with its placement confirmed."""
    placement = best_placement(engine, numbers, r)
    remember(numbers, r, placement)
    if placement.ttft_s > numbers[_TTFT_LIMIT_S]:
        return 1
    prompt, limit_s = request_of(engine, r).input_tokens, numbers[_TBT_LIMIT_S]
    if limit_s < np.inf and tbt_s(engine, instances_in(numbers), prompt) > limit_s:
        return 2
    confirm(numbers, r)
    return 0


@either()
def sent_to(engine: Any, numbers: Floats, r: int) -> int:
    """The instance that prefills r: as placed at its admission, if nothing was placed since.

    It is placed again if its instance has crashed.
    """
    if not is_confirmed(numbers, r) or instance_of(engine, remembered(numbers, r).instance).role & PREFILL == 0:
        remember(numbers, r, best_placement(engine, numbers, r))
        confirm(numbers, r)
    for until_s in (now_s(engine), np.inf):  # then also those on their way, some of which a crash may have lost
        if is_full(numbers):
            for i in range(instances_in(numbers)):
                inst = instance_of(engine, i)
                keep(numbers, i, inst.queued + inst.prefilling, until_s)
    placement = remembered(numbers, r)
    send(numbers, placement, int(request_of(engine, r).input_tokens))
    return placement.instance


@compiled
def sent_from_python(engine: Any, numbers: Floats, r: int) -> int:
    """Choose for hooks in Python."""
    return sent_to(engine, numbers, r)


@decision(observes=True)
def as_placed(request: int, view: View, params: Floats, state: Floats) -> int:
    """The instance of the best placement."""
    return sent_to(view.engine, params, request)


@decision(observes=False)
def source_of_prefix(request: int, view: View, params: Floats, state: Floats) -> int:
    """The instance whose prefix is sent to the request's instance."""
    return remembered(params, request).source


# --- the policy -------------------------------------------------------------------------------------------------------


class Mooncake(Disaggregated):
    """`routing` is random, load (the shortest queue), local (least TTFT, by each instance's own cache) or global.

    global also copies: the longest prefix of any instance goes to one whose own is shorter by a factor above
    `kvcache_balancing_threshold`. `admission` compares expected TTFT and TBT with `ttft_s` and `tbt_s` (None: no
    limit): none; slo (of the chosen instances); or by the mean TBT of the decode pool: baseline (after a prompt has
    been prefilled), early (before that), predicted (before, with the TBT expected then if each decode lasts
    `decode_s`). `estimate` of TTFT: see above.
    """

    route_prefill: Any = as_placed

    @checked("policy.")
    def __init__(
        self,
        routing: Routing = "global",
        kvcache_balancing_threshold: Positive = 2.0,
        admission: Admission = "slo",
        ttft_s: Positive | None = 2.0,
        tbt_s: Positive | None = 0.05,
        decode_s: Positive = 10.0,
        chunk_tokens: Count = 1000,
        estimate: Estimate = "whole",
        seed: Whole = 0,
    ) -> None:
        self.routing, self.admission = routing, admission
        self.tbt_s = np.inf if tbt_s is None else tbt_s
        self.random = np.random.default_rng(seed)
        self.decode_load = DecodeLoad(decode_s)
        self.chunk_tokens = chunk_tokens
        self.settings = {
            _TTFT_LIMIT_S: np.inf if ttft_s is None else ttft_s,
            _TBT_LIMIT_S: self.tbt_s if admission == "slo" else np.inf,
            _LONGER: kvcache_balancing_threshold if routing == "global" else 0.0,
            _BY_QUEUE: float(routing == "load"),
            _CHUNK_TOKENS: chunk_tokens,
            _DRAWN: -1.0,
            _BY_LEFT: float(estimate == "left"),
        }
        self.by_pool = admission in ("early", "predicted")
        if admission != "none":
            by_cost = self._admit_by_pool if self.by_pool else self._admit
            vars(self)["admit"] = self._admit_at_random if routing == "random" else by_cost
        if routing == "global":
            vars(self)["fetch_prefix"] = source_of_prefix
        if routing == "random" or admission == "predicted":
            vars(self)["route_prefill"] = self._route_prefill
        if admission in ("baseline", "predicted"):
            vars(self)["route_decode"] = self._route_decode

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        """The pools, with prompts prefilled in chunks; those of several requests share one step."""
        pools = [
            replace(pool, batching=pool.batching or "decode_first", token_budget=pool.token_budget or self.chunk_tokens)
            if pool.role == "prefill"
            else pool
            for pool in spec.pools
        ]
        return super().layout(replace(spec, pools=tuple(pools)))

    def prepare(self, cluster: Cluster) -> None:
        settings = self.settings | {_BYTES_PER_TOKEN: cluster.kv_bytes_per_token}
        self.numbers = nothing_placed(settings, len(cluster.instances), len(cluster.requests.arrival_s))
        self.compiled_params = self.numbers
        self.engine = cluster.view.engine
        self.judged, self.sent_to = callable_with(self.engine, judged), callable_with(self.engine, sent_from_python)

    def _admit(self, request: Request, cluster: Cluster) -> bool | str:
        late = self.judged(self.engine, self.numbers, request.id)
        return _LATE[late] if late else True

    def _admit_by_pool(self, request: Request, cluster: Cluster) -> bool | str:
        before = last_confirmed(self.numbers)
        admitted = self._admit(request, cluster)
        if admitted is True and self._is_late(cluster, remembered(self.numbers, request.id).ttft_s):
            confirm(self.numbers, before)
            return "tbt"
        return admitted

    def _admit_at_random(self, request: Request, cluster: Cluster) -> bool | str:
        self._draw(cluster)
        return self._admit_by_pool(request, cluster) if self.by_pool else self._admit(request, cluster)

    def _draw(self, cluster: Cluster) -> None:
        pool = cluster.prefill
        self.numbers[_DRAWN] = pool.ids[self.random.random(len(pool)).argmin()]

    def _is_late(self, cluster: Cluster, ttft_s: float) -> bool:
        return EXPECTED_TBT[self.admission](self.decode_load, cluster, ttft_s) > self.tbt_s

    def _route_prefill(self, request: Request, cluster: Cluster) -> int:
        if self.routing == "random" and not is_confirmed(self.numbers, request.id):
            self._draw(cluster)
        instance = self.sent_to(self.engine, self.numbers, request.id)
        self.decode_load.expect(request, cluster.now_s + float(remembered(self.numbers, request.id).ttft_s))
        return int(instance)

    def _route_decode(self, request: Request, cluster: Cluster) -> int | str:
        pool = cluster.decode
        if self.admission == "baseline" and request.generated == 1 and self._is_late(cluster, 0.0):
            return "tbt"
        self.decode_load.begin(request, cluster)
        return pool.argmin(pool.kv_tokens + pool.incoming_kv_tokens)
