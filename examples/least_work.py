"""A policy: each prompt goes where it would be computed soonest, and short prompts go first.

python run.py policy=examples/least_work.py:LeastWork policy.patience_s=5
"""

import servelab


class LeastWork(servelab.Aggregated):
    """`patience_s`: a prompt that would wait longer than this on every instance is rejected."""

    def __init__(self, patience_s: float = 30.0) -> None:
        self.patience_s = patience_s

    def admit(self, request, cluster):
        return True if self.waits_s(request, cluster).min() <= self.patience_s else "too busy"

    def route_prefill(self, request, cluster):
        return cluster.prefill.argmin(self.waits_s(request, cluster))

    def prioritize(self, queue, cluster):
        return cluster.requests.input_tokens[queue]

    def waits_s(self, request, cluster):
        """Seconds until each instance could finish the prompt, at the speed of a prefill of this prompt alone."""
        pool = cluster.prefill
        return (1 + pool.queued_tokens / request.input_tokens) * pool.prefill_s(request)
