"""A policy: the KV of a call may leave GPU memory, and is loaded from its tier before the next call is due.

python run.py policy=examples/tool_prefetch.py:ToolPrefetch trace=coding_agents cluster.instances=1 \
  engine.prefix_stores=vllm_offload
"""

import numpy as np

import servelab


class ToolPrefetch(servelab.Aggregated):
    """Loads `ahead_s` before the time after which only that share of calls has come; tools that are quicker keep KV."""

    def __init__(self, share: float = 0.1, ahead_s: float = 1.0) -> None:
        self.share, self.ahead_s = share, ahead_s
        self.ended_s, self.gaps_s = {}, []

    def admit(self, request, cluster):
        if request.session in self.ended_s:
            self.gaps_s.append(cluster.now_s - self.ended_s.pop(request.session))
        return True

    def prioritize(self, queue, cluster):
        return (cluster.requests.turn[queue] == 0) * 1.0  # programs under way go first

    def on_call_end(self, request, cluster):
        if request.session < 0:
            return None
        self.ended_s[request.session] = cluster.now_s
        due_s = float(np.quantile(self.gaps_s[-200:], self.share)) if self.gaps_s else 0.0
        return servelab.Retain(rank=-8, prefetch_s=due_s - self.ahead_s) if due_s > self.ahead_s else None
