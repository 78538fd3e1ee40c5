"""A policy for crashes: prompts without a first token pass the requests that a crash took off their instance.

python examples/failover.py   # what it saves
"""

import numpy as np
import polars as pl

import servelab


class Failover(servelab.Aggregated):
    """A dropped request has its old place in a queue by itself, ahead of newer prompts, though it has had tokens."""

    dynamic_keys = True

    def prioritize(self, queue, cluster):
        return np.where(cluster.requests.generated(queue) > 0, 1.0, 0.0)


def goodput_rps(policy, instances, seed, **faults):
    """That of a minute with 42 requests/s, which three instances can just serve."""
    rng = np.random.default_rng(seed)
    lengths = {"input_tokens": rng.integers(1000, 3000, 2520), "output_tokens": rng.integers(100, 300, 2520)}
    rows = pl.DataFrame({"arrival_s": np.sort(rng.uniform(0.0, 60.0, 2520)), **lengths})
    return servelab.run(policy, rows, cluster__instances=instances, slo__ttft_s=0.5, **faults).summary["goodput_rps"]


if __name__ == "__main__":
    crash = {"engine__faults": "crash", "engine__faults__crashes": "[{instance: 0, at_s: 20.0, down_s: 600.0}]"}
    for seed in range(2):
        three, four = goodput_rps(Failover(), 3, seed), goodput_rps(Failover(), 4, seed, **crash)
        plain = goodput_rps("chunked", 4, seed, **crash)
        print(f"three {three:.2f} req/s; four, one of which crashes: {four:.2f}, with chunked {plain:.2f}")
