"""The best ratio of prefill to decode instances for the forecast load (DOPD: arXiv 2511.20982).

A full decode instance ends one request every output * TPOT / concurrency; a prefill instance starts one every TTFT.
Each interval the fleet is split so that both rates are equal. Short prompts are prefilled where they decode.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from framework.checks import Count, Positive, Whole, checked
from framework.policy import Action, Disaggregated
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec
from policies._scaling import (
    decodes_where_it_is,
    forecast,
    is_remote,
    largest_batch,
    prefill_only,
    resize,
    with_local_prefills,
)


class Dopd(Disaggregated):
    """Decode instances prefill prompts of up to `local_tokens`, and all prompts while `queue` of them wait.

    Forecasts are made from up to `window` intervals of `interval_s`.
    """

    changes_roles = True

    @checked("policy.")
    def __init__(
        self,
        interval_s: Positive = 30.0,
        window: Count = 50,
        tpot_s: Positive = 0.05,
        local_tokens: Whole = 511,
        queue: Whole = 8,
    ) -> None:
        self.tick_s, self.window, self.tpot_s = interval_s, window, tpot_s
        self.local_tokens, self.queue = local_tokens, queue
        self.arrived, self.prompt_tokens, self.ended = 0, 0, 0  # counts of this interval, and of the run
        self.history: list[tuple[float, float, float]] = []  # requests, mean prompt and mean output of each interval

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
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
        if count < 1 or prompt < 1 or output < 1 or not len(cluster.decode):  # All of them may have crashed.
            return ()
        on = int(np.count_nonzero(cluster.instances.next_role))
        prefill = min(max(round(on * self._share(cluster, prompt, output)), 1), on - 1)
        return resize(cluster, prefill, on - prefill, "mixed", stop=False)

    def _share(self, cluster: Cluster, prompt: float, output: float) -> float:
        """The share of the fleet that should prefill: P : D = concurrency / (output * TPOT / TTFT)."""
        pool = cluster.decode
        context = prompt + output / 2
        room = int(pool.total_blocks[0] * cluster.block_tokens / context)
        batch = largest_batch(pool, self.tpot_s, context, min(room, int(pool.max_batch[0])))
        tpot_s = float(pool.estimate_s(0, batch, int(batch * context))[0])
        ttft_s = float(cluster.prefill.estimate_s(int(prompt), 0, 0)[0])
        ratio = batch / (output * tpot_s / ttft_s)
        return ratio / (1 + ratio)
