"""A policy: prompts go where a request has the most free KV, and some KV stays free for requests of a priority.

python run.py policy=examples/freest.py:Freest policy.reserve=0.3 trace=mine.csv   # with a column `priority`
"""

import numpy as np

import servelab


class Freest(servelab.Aggregated):
    """`reserve`: share of KV that priority 0 leaves free; the latest who would take it are suspended until it fits."""

    def __init__(self, reserve: float = 0.2, block_tokens: int = 16, period_s: float = 0.1) -> None:
        self.reserve, self.block_tokens, self.tick_s = reserve, block_tokens, period_s

    def present(self, i, cluster):
        """Requests of an instance in the order in which they keep their room, and the KV blocks of each."""
        aside = cluster.suspended[cluster.requests.instance[cluster.suspended] == i]
        ids = np.concatenate([cluster.decoding(i), cluster.prefilling(i), aside, cluster.queued(i)])
        return ids, (cluster.requests.input_tokens[ids] + cluster.requests.generated(ids)) // self.block_tokens + 1

    def route_prefill(self, request, cluster):
        pool = cluster.prefill
        free = pool.total_blocks * (1 - self.reserve * (request.priority <= 0))
        free -= [self.present(i, cluster)[1].sum() for i in pool.ids]
        return pool.argmin(-free / np.maximum(pool.running + pool.prefilling, 1))

    def prioritize(self, queue, cluster):
        return -cluster.requests.priority[queue]

    def decide(self, instance, cluster):
        ids, blocks = self.present(instance, cluster)
        low, most = cluster.requests.priority[ids] <= 0, (1 - self.reserve) * cluster.instances.total_blocks[instance]
        ids, fits = ids[low], blocks[low].cumsum() <= most
        fits[:1], aside = True, np.isin(ids, cluster.suspended)  # The first goes on to its end, whatever its size.
        return [servelab.Resume(r) for r in ids[fits & aside]] + [servelab.Preempt(r) for r in ids[~fits & ~aside]]

    def on_tick(self, cluster):
        return [action for i in cluster.prefill.ids for action in self.decide(i, cluster)]
