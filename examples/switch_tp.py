"""Sixteen GPUs that change their tensor parallelism with the load: TP4 for chats, TP8 for long documents.

There is a pool of each. Half of the GPUs change at a time: instances of one pool finish what they have and go off, then
one or two of the other start, which costs the time to load the weights.

python examples/switch_tp.py
"""

import numpy as np
import polars as pl

import servelab

PHASE_S, GPUS, AT_ONCE = 600.0, 16, 8


class SwitchTp(servelab.Aggregated):
    """The pool of TP8 while the prompts of the last tick are longer than `long_tokens` on average."""

    changes_roles, tick_s, long_tokens = True, 10.0, 10_000

    def __init__(self):
        self.wanted, self.seen = "tp4", []

    def route_prefill(self, request, cluster):
        self.seen.append(request.input_tokens)
        pool = cluster.prefill
        return pool.argmin(pool.queued_tokens / request.input_tokens * pool.prefill_s(request) + pool.running / 100)

    def on_tick(self, cluster):
        if self.seen:
            self.wanted, self.seen = "tp8" if np.mean(self.seen) > self.long_tokens else "tp4", []
        old = "tp4" if self.wanted == "tp8" else "tp8"
        tp = {pool.name: pool.parallelism.tp for pool in cluster.spec.pools}
        stays = {name: int((cluster.pool(name).next_role > 0).sum()) for name in tp}
        leaves = {name: int((cluster.pool(name).draining_role > 0).sum()) for name in tp}
        used = sum(max(stays[name], leaves[name]) * tp[name] for name in tp)
        if used <= GPUS - AT_ONCE:
            return [servelab.Scale(self.wanted, stays[self.wanted] + AT_ONCE // tp[self.wanted])]
        if stays[old] and leaves[old] == stays[old] and leaves[self.wanted] == stays[self.wanted]:
            return [servelab.Scale(old, stays[old] - AT_ONCE // tp[old])]
        return ()


def load():
    """A trace: 30 chats a second, then a document of some 45,000 tokens each 5 s, then chats again."""
    rng, parts = np.random.default_rng(3), []
    for phase, (rate_rps, tokens) in enumerate([(30.0, 1000), (0.2, 45_000), (30.0, 1000)]):
        at_s = PHASE_S * phase + np.sort(rng.uniform(0, PHASE_S, int(rate_rps * PHASE_S)))
        prompts = rng.normal(tokens, tokens / 8, len(at_s)).clip(10).astype(int)
        outputs = rng.exponential(250, len(at_s)).clip(2, 2000).astype(int)
        parts.append(pl.DataFrame({"arrival_s": at_s, "input_tokens": prompts, "output_tokens": outputs}))
    return pl.concat(parts)


def run(policy, **settings):
    """The shares of good requests by phase, and GPU-hours."""
    found = servelab.run(policy, load(), model="llama3_70b", slo__ttft_s=4.0, **settings)
    phase = (found.requests["arrival_s"] / PHASE_S).cast(int)
    return [found.requests["good"].filter(phase == k).mean() for k in range(3)], found.summary["gpu_hours"]


if __name__ == "__main__":
    pools = {"cluster.pools.reserved": None, "+cluster.pools.tp4": {"instances": 4, "tp": 4}, "cluster": "node_pools"}
    pools |= {"cluster.pools.on_demand": None, "+cluster.pools.tp8": {"instances": 2, "tp": 8, "on_at_start": 0}}
    for name, policy, settings in (
        ("four of TP4", "chunked", {"cluster.instances": 4, "cluster.tp": 4}),
        ("two of TP8", "chunked", {"cluster.instances": 2, "cluster.tp": 8}),
        ("change, weights from the host", SwitchTp(), {**pools, "engine/start": "host"}),
        ("change, weights from a disk", SwitchTp(), {**pools, "engine/start": "process"}),
    ):
        shares, gpu_hours = run(policy, **settings)
        print(f"{name:32}{shares[0]:8.1%}{shares[1]:8.1%}{shares[2]:8.1%}{gpu_hours:7.2f} GPU-hours")
