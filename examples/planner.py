"""A planner that takes completed requests for demand keeps a fleet small (ai-dynamo/dynamo#10528), and two that do not.

Requests come as a sine from 1 to 24 a second, 8,000 tokens in and 1,000 out, on up to ten instances of two H200 each.

python examples/planner.py
"""

import math

import numpy as np
import polars as pl

import servelab
from policies._scaling import largest_batch, resize
from policies.dynamo import Dynamo

PERIOD_S, LEAST_RPS, MOST_RPS, INPUT, OUTPUT, TTFT_S, TPOT_S = 900.0, 1.0, 24.0, 8000, 1000, 3.0, 0.035


class ByArrivals(Dynamo):
    """The SLA planner as documented; all prompts wait for a prefill worker."""

    def __init__(self, interval_s):
        limits = {"ttft_s": TTFT_S, "itl_s": TPOT_S}
        super().__init__(planner="sla", interval_s=interval_s, planning=limits, local_tokens=0, queue=10**6)

    def demand(self, arrived, cluster):
        return arrived

    def on_tick(self, cluster):
        demand = self.demand(self.arrived, cluster)
        self.prompt_tokens, self.arrived = INPUT * demand, demand
        return super().on_tick(cluster)


class ByCompletions(ByArrivals):
    """A fleet that is too small completes no more than it can, so it stays as it is."""

    def demand(self, arrived, cluster):
        return len(cluster.finished(self.ended).ids)


class ByQueue(ByArrivals):
    """What waits is to be worked off within an interval."""

    def demand(self, arrived, cluster):
        return arrived + int(cluster.instances.queued.sum())


class Ahead(ByArrivals):
    """The rate of when a start will be over, by the trend of the last two intervals, and a quarter more."""

    before, ahead_s, spare = 0.0, 60.0, 1.25

    def on_tick(self, cluster):
        rate, self.arrived, self.prompt_tokens = self.arrived / self.tick_s, 0, 0
        trend, self.before = (rate - self.before) / self.tick_s, rate
        ahead, waiting = self.spare * (rate + max(trend, 0.0) * self.ahead_s), cluster.instances.queued.sum()
        prefill_s = cluster.prefill.estimate_s(INPUT, 0, 0)[0]
        pool, context = cluster.decode, INPUT + OUTPUT // 2
        batch = largest_batch(pool, TPOT_S, context, int(pool.max_batch[0]))
        decode_s = pool.estimate_s(0, batch, batch * context)[0] * OUTPUT / batch
        prefills = math.ceil((ahead + waiting / self.ahead_s) * prefill_s)
        return resize(cluster, prefills, math.ceil(ahead * decode_s), "mixed", stop=True)


def load(periods=2):
    """A trace of so many periods of the sine, from its least rate on."""
    rng = np.random.default_rng(7)
    at_s = np.sort(rng.uniform(0.0, periods * PERIOD_S, int(MOST_RPS * periods * PERIOD_S)))
    share = (LEAST_RPS + (MOST_RPS - LEAST_RPS) * np.sin(np.pi * at_s / PERIOD_S) ** 2) / MOST_RPS
    arrival_s = at_s[rng.uniform(size=len(at_s)) < share]
    return pl.DataFrame({"arrival_s": arrival_s, "input_tokens": INPUT, "output_tokens": OUTPUT})


def run(policy, requests):
    """The summary of a run that begins with one instance of each kind; a start takes 49 s."""
    fleet = {"cluster.prefill": 5, "cluster.decode": 5, "cluster.tp": 2, "engine/start": "process"}
    begins = {"cluster.prefill_on_at_start": 1, "cluster.decode_on_at_start": 1}
    limits = {"slo.ttft_s": TTFT_S, "slo.tpot_s": TPOT_S}
    return servelab.run(policy, requests, model="qwen3_30b", gpu="h200", **fleet, **begins, **limits).summary


if __name__ == "__main__":
    planners = [(ByCompletions, 180.0), (ByArrivals, 180.0), (ByArrivals, 30.0), (ByQueue, 30.0), (Ahead, 30.0)]
    for planner, interval_s in [*planners, (Ahead, 15.0)]:
        found = run(planner(interval_s), load())
        figures = f"{found['goodput_rps']:7.2f} req/s{found['slo_attainment']:8.1%}{found['gpu_hours']:7.2f} GPU-hours"
        print(f"{planner.__name__:14}{interval_s:4.0f} s{figures}{found['reversals']:4} reversals")
