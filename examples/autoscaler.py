"""A policy: an autoscaler. Instances follow the requests in the fleet, and leave only after a calm time.

python run.py policy=examples/autoscaler.py:Autoscaler policy.requests=8 cluster.instances=8 cluster.on_at_start=1 \\
  engine/start=process
"""

import math

import servelab


class Autoscaler(servelab.Aggregated):
    """Every `period_s` as many instances as serve `requests` each; fewer only once fewer were enough for `calm_s`.

    The defaults are those of the horizontal autoscaler of Kubernetes: 15 s, and 300 s before a fleet shrinks.
    """

    changes_roles = True

    def __init__(self, requests: float = 8.0, period_s: float = 15.0, calm_s: float = 300.0) -> None:
        self.requests, self.tick_s, self.calm_s = requests, period_s, calm_s

    def prepare(self, cluster):
        self.wanted = []  # times, and how many instances were wanted then

    def on_tick(self, cluster):
        there, now_s = cluster.instances, cluster.now_s
        present = int((there.queued + there.prefilling + there.running).sum())
        self.wanted = [(at_s, count) for at_s, count in self.wanted if at_s > now_s - self.calm_s]
        self.wanted.append((now_s, math.ceil(present / self.requests)))
        most = max(count for _, count in self.wanted)
        return [servelab.Scale("mixed", min(max(most, 1), len(there)))]
