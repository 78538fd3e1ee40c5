"""The best ratio of prefill to decode instances for the forecast load (DOPD: arXiv 2511.20982; code: liao4s/DOPD).

A full decode instance ends one request every output * TPOT / concurrency; a prefill instance starts one every TTFT.
The ratio of their numbers is that at which both rates are equal. Each interval a fleet of fixed size is split in this
ratio. One with instances that are off (`cluster.spare`, `cluster.on_at_start`) grows and shrinks: it has the decode
instances that the forecast load fills, and prefill instances in the ratio. Short prompts are prefilled where they
decode.

Simplified: the forecasts are of the fixed order (1, 1, 0). The concurrency of a decode instance is that of its KV
memory, as in the paper, and no more than keeps `tpot_s`. The step times are those of one instance of each pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from framework.checks import Count, Positive, Whole, checked
from framework.policy import Action, Disaggregated
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec
from policies._scaling import (
    corrections,
    decodes_where_it_is,
    forecast,
    is_remote,
    largest_batch,
    prefill_only,
    resize,
    with_local_prefills,
)

Rounding = Literal["nearest", "ceiling"]
Tpot = Literal["estimated", "observed"]


class Dopd(Disaggregated):
    """Decode instances prefill prompts of up to `local_tokens`, and all prompts while `queue` of them wait.

    Forecasts are made from up to `window` intervals of `interval_s`. TPOT is that of the step times (estimated), or
    this by the ratio of what requests that ended in the last interval had to what it should have been (observed).
    `rounding` of a fleet of fixed size: to the nearest number of prefill instances, or to the most decode instances
    that leave the ceiling of the ratio to each (ceiling, as in the paper). A fleet that grows has the ceiling.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode", "off")
    changes_roles = True

    @checked("policy.")
    def __init__(
        self,
        interval_s: Positive = 30.0,
        window: Count = 50,
        tpot_s: Positive = 0.05,
        local_tokens: Whole = 511,
        queue: Whole = 8,
        tpot: Tpot = "estimated",
        rounding: Rounding = "nearest",
    ) -> None:
        self.tick_s, self.window, self.tpot_s = interval_s, window, tpot_s
        self.local_tokens, self.queue = local_tokens, queue
        self.observes, self.rounds_up, self.grows = tpot == "observed", rounding == "ceiling", False
        self.correction = 1.0  # of TPOT
        self.arrived, self.prompt_tokens, self.ended = 0, 0, 0  # counts of this interval, and of the run
        self.history: list[tuple[float, float, float]] = []  # requests, mean prompt and mean output of each interval

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        self.grows = any(pool.role == "off" or pool.begins_on < pool.instances for pool in spec.pools)
        return with_local_prefills(super().layout(spec))

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        if request.generated == 0 and request.preemptions == 0:
            self.arrived += 1
            self.prompt_tokens += request.input_tokens
        decode = cluster.decode
        local = decode.argmin(decode.kv_tokens + decode.incoming_kv_tokens + decode.queued_tokens)
        cached = int(cluster.instances.cached_tokens(request)[local])
        if not is_remote(cluster, request.input_tokens - cached, self.local_tokens, self.queue):
            return local
        workers = prefill_only(cluster)
        return int(workers[cluster.instances.queued_tokens[workers].argmin()])

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        here, pool = decodes_where_it_is(request, cluster), cluster.decode
        return here if here >= 0 else pool.argmin(pool.kv_tokens + pool.incoming_kv_tokens)

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        done = cluster.finished(self.ended)
        self.ended += len(done.ids)
        prompt = self.prompt_tokens / self.arrived if self.arrived else np.nan
        output = float(done.output_tokens.mean()) if len(done.ids) else np.nan
        last = self.history[-1] if self.history else (0.0, np.nan, np.nan)
        prompt, output = (old if np.isnan(new) else new for new, old in zip((prompt, output), last[1:], strict=True))
        self.history = [*self.history, (float(self.arrived), prompt, output)][-self.window :]
        self.arrived = self.prompt_tokens = 0
        count, prompt, output = (forecast([x for x in column if x == x]) for column in zip(*self.history, strict=True))
        is_idle = count < 1 and not self.grows
        if is_idle or not min(prompt, output) >= 1 or not len(cluster.decode):  # All of them may have crashed.
            return ()
        if self.observes and np.any(~np.isnan(done.tpot_s)):
            self.correction = corrections(cluster, done, float(self.tick_s or math.inf))[1]
        ratio, decode_s = self._ratio(cluster, prompt, output)
        wanted = self._grown(cluster, ratio, count * decode_s) if self.grows else self._split(cluster, ratio)
        return resize(cluster, *wanted, "mixed", stop=self.grows)

    def _ratio(self, cluster: Cluster, prompt: float, output: float) -> tuple[float, float]:
        """P : D = concurrency / (output * TPOT / TTFT), and the seconds that a request takes of a decode instance."""
        pool = cluster.decode
        context = prompt + output / 2
        room = int(pool.total_blocks[0] * cluster.block_tokens / context)
        batch = largest_batch(pool, self.tpot_s / self.correction, context, min(room, int(pool.max_batch[0])))
        tpot_s = float(pool.estimate_s(0, batch, int(batch * context))[0]) * self.correction
        ttft_s = float(cluster.prefill.estimate_s(int(prompt), 0, 0)[0])
        return batch / (output * tpot_s / ttft_s), output * tpot_s / batch

    def _split(self, cluster: Cluster, ratio: float) -> tuple[int, int]:
        """The numbers of prefill and decode instances of a fleet of fixed size."""
        on = int(np.count_nonzero(cluster.instances.next_role))
        if self.rounds_up:
            return _ceiled(on, ratio, on - 1)
        prefill = min(max(round(on * (ratio / (1 + ratio))), 1), on - 1)
        return prefill, on - prefill

    def _grown(self, cluster: Cluster, ratio: float, busy_s: float) -> tuple[int, int]:
        """The same for requests of an interval that take `busy_s` seconds of decode instances, within the fleet."""
        decode = max(math.ceil(busy_s / float(self.tick_s or math.inf)), 1)
        prefill = max(math.ceil(decode * ratio), 1)
        fleet = len(cluster.instances)
        return (prefill, decode) if prefill + decode <= fleet else _ceiled(fleet, ratio, decode)


def _ceiled(instances: int, ratio: float, most: int) -> tuple[int, int]:
    """The most decode instances, up to `most`, that leave the ceiling of the ratio, at least one, and the others."""
    fit = [d for d in range(1, most + 1) if d + max(math.ceil(d * ratio), 1) <= instances]
    decode = max(fit, default=1)
    return instances - decode, decode
