"""A policy: skip-join multi-level feedback queue. Requests with the least service go first; suspended ones keep
their KV.

python run.py policy=examples/mlfq.py:SkipJoinMlfq policy.quantum_tokens=512 engine.max_batch=16
"""

import numpy as np

import servelab


class SkipJoinMlfq(servelab.Aggregated):
    """Each level has twice the quantum of the one above. A prompt counts at once, so that a long one skips levels; a
    generated token counts as `decode_tokens` of a prompt.
    """

    dynamic_keys = True

    def __init__(self, quantum_tokens: int = 512, decode_tokens: int = 16, period_s: float = 0.25) -> None:
        self.quantum_tokens, self.decode_tokens, self.tick_s = quantum_tokens, decode_tokens, period_s

    def prioritize(self, queue, cluster):
        cost = cluster.requests.input_tokens[queue] + self.decode_tokens * cluster.requests.generated(queue)
        return np.floor(np.log2(np.maximum(cost / self.quantum_tokens, 1.0)))

    def decide(self, instance, cluster):
        """The seats go to the highest levels, and within a level to the first arrivals."""
        aside = cluster.suspended[cluster.requests.instance[cluster.suspended] == instance]
        queued, running = cluster.queued(instance), cluster.decoding(instance)
        everyone = np.concatenate([queued, running, aside])
        ranked = everyone[np.lexsort([everyone, self.prioritize(everyone, cluster)])]
        seats = int(cluster.instances.max_batch[instance] - cluster.instances.prefilling[instance])
        batch = set(ranked[:seats].tolist())
        leaving = [servelab.Preempt(r, "kv") for r in running if r not in batch]
        return leaving + [servelab.Resume(r) for r in aside if r in batch]

    def on_tick(self, cluster):
        return [action for i in cluster.instances.ids for action in self.decide(i, cluster)]
