"""A policy: the KV of a call is pinned until the next call of its session, for as long as three in four have taken.

python run.py policy=examples/tool_ttl.py:ToolTtl trace=coding_agents cluster.instances=1
"""

import numpy as np

import servelab


class ToolTtl(servelab.Aggregated):
    """The TTL follows the times between calls; if it would be too long, the KV is evicted before that of others."""

    def __init__(self, share: float = 0.75, longest_s: float = 60.0) -> None:
        self.share, self.longest_s = share, longest_s
        self.ended_s, self.gaps_s = {}, []

    def admit(self, request, cluster):
        if request.session in self.ended_s:
            self.gaps_s.append(cluster.now_s - self.ended_s.pop(request.session))
        return True

    def prioritize(self, queue, cluster):
        return (cluster.requests.turn[queue] == 0) * 1.0  # those whose KV may be pinned go first

    def on_call_end(self, request, cluster):
        if request.session < 0:
            return None
        self.ended_s[request.session] = cluster.now_s
        ttl_s = float(np.quantile(self.gaps_s[-200:], self.share)) if self.gaps_s else self.longest_s
        return servelab.Retain(ttl_s) if ttl_s <= self.longest_s else servelab.Retain(rank=-1)
