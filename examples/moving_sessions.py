"""A policy: calls of a session follow its KV, and the KV moves while a tool runs if its instance has too much to do.

python run.py policy=examples/moving_sessions.py:MovingSessions trace=coding_agents cluster.instances=4
"""

import servelab


class MovingSessions(servelab.Aggregated):
    """A session moves where its instance has `slack` times as many requests as the mean of all, and `least` more."""

    def __init__(self, slack: float = 1.25, least: int = 2) -> None:
        self.slack, self.least = slack, least
        self.home = {}

    def requests(self, cluster):
        there = cluster.instances
        return there.queued + there.prefilling + there.running

    def route_prefill(self, request, cluster):
        first = int(self.requests(cluster).argmin())
        return self.home.setdefault(request.session, first) if request.session >= 0 else first

    def on_call_end(self, request, cluster):
        if request.session < 0:
            return None
        load = self.requests(cluster)
        here, other = self.home[request.session], int(load.argmin())
        if load[here] <= max(self.slack * load.mean(), load.mean() + self.least):
            return None
        self.home[request.session] = other
        return servelab.Retain(move_to=other)
