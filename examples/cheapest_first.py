"""A policy: an autoscaler of node pools. What is on from the start stays on, and the cheapest pool grows first.

python examples/cheapest_first.py
"""

from autoscaler import Autoscaler
from diurnal import load

import servelab


class CheapestFirst(Autoscaler):
    """As many instances as `Autoscaler` wants, by the price of their GPUs."""

    def on_tick(self, cluster):
        (wanted,) = super().on_tick(cluster)
        scaled = [pool for pool in cluster.spec.pools if pool.begins_on < pool.instances]
        left = wanted.instances - sum(pool.instances for pool in cluster.spec.pools if pool not in scaled)
        actions = []
        for pool in sorted(scaled, key=lambda pool: pool.gpu.usd_per_hour):
            count = min(max(left, 0), pool.instances)
            actions.append(servelab.Scale(pool.name, count))
            left -= count
        return actions


def run(reserved):
    """With so many reserved instances of seven: the share of requests within their SLO, GPU-hours and USD of pools."""
    pools = {"cluster": "node_pools", "cluster__pools__on_demand__instances": 7 - reserved, "engine__start": "node"}
    pools |= {"cluster__pools__reserved__instances": reserved, "cluster__pools__reserved__usd_per_hour": 1.99}
    summary = servelab.run(CheapestFirst(64, calm_s=60.0), load(), slo__ttft_s=2.0, **pools).summary
    return summary["slo_attainment"], summary["cost_usd"], summary["fleet"]


if __name__ == "__main__":
    for count in (1, 2, 3, 4, 5, 6):
        attained, cost_usd, fleet = run(count)
        costs = ", ".join(f"{row['pool']} {row['gpu_hours']:.2f} GPU-hours" for row in fleet)
        print(f"{count} reserved{attained:8.1%}  ${cost_usd:.2f}: {costs}")
