"""Routers that see old reports: one that goes to the emptiest instance sends everybody to it until the next report.

python examples/herding.py
"""

import numpy as np

import servelab
from framework.policy import prefill_round_robin

AGES_S = (0.0, 0.5, 1.0, 5.0)


class Fewest(servelab.Aggregated):
    """The instance that last reported the fewest requests."""

    batching_mode = "unified"

    def route_prefill(self, request, cluster):
        return cluster.prefill.argmin(self.requests(cluster.prefill))

    def requests(self, pool):
        return pool.queued + pool.prefilling + pool.running


class TwoChoices(Fewest):
    """Of two instances at random, the one that last reported fewer requests."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def route_prefill(self, request, cluster):
        two = self.rng.permutation(len(cluster.prefill))[:2]
        return int(cluster.prefill.ids[min(two, key=lambda k: self.requests(cluster.prefill)[k])])


class OwnCounts(Fewest):
    """The instance with the fewest requests that the router has sent there and that have not finished."""

    def prepare(self, cluster):
        self.sent = np.zeros(len(cluster.instances), np.int64)

    def route_prefill(self, request, cluster):
        chosen = cluster.prefill.argmin(self.sent[cluster.prefill.ids])
        self.sent[chosen] += 1
        return chosen

    def on_finish(self, request, cluster):
        self.sent[request.prefill_instance] -= 1
        return ()


class Turns(Fewest):
    """One instance after the other."""

    route_prefill = prefill_round_robin


def run(policy, every_s, limit=6000):
    """Attainment, and P99 TTFT in seconds, of a policy whose instances report every so many seconds."""
    settings = {"rate": 100, "limit": limit, "cluster__instances": 8, "engine__views__every_s": every_s}
    found = servelab.run(policy, "azure_conv", **settings)
    return found.summary["slo_attainment"], found.requests["ttft_s"].quantile(0.99)


if __name__ == "__main__":
    for name, make in {
        "fewest requests": Fewest,
        "policy=lmetric": lambda: "lmetric",
        "two choices": TwoChoices,
        "own counts": OwnCounts,
        "round robin": Turns,
    }.items():
        found = [run(make(), every_s) for every_s in AGES_S]
        print(f"{name:16}", *(f"{met:8.1%}{ttft_s:7.2f} s" for met, ttft_s in found))
