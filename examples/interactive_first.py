"""A policy: if no seat is free for an urgent request, the least urgent running request is suspended until one is.

python run.py policy=examples/interactive_first.py:InteractiveFirst trace=mine.csv   # with a column `priority`
"""

import servelab


class InteractiveFirst(servelab.Aggregated):
    """A request with a larger `priority` is more urgent. A suspended request loses its KV and is recomputed
    when it resumes.
    """

    def prioritize(self, queue, cluster):
        return -cluster.requests.priority[queue]

    def decide(self, instance, cluster):
        """Preempt one for each that waits without a seat and is more urgent; else fill the seats that are free."""
        priority, waiting = cluster.requests.priority, cluster.queued(instance)
        running = sorted([*cluster.decoding(instance), *cluster.prefilling(instance)], key=lambda r: priority[r])
        seats = int(cluster.instances.max_batch[instance]) - len(running)
        lacking = sorted(waiting, key=lambda r: -priority[r])[seats:]
        pairs = zip(lacking, running, strict=False)
        if aside := [servelab.Preempt(r) for urgent, r in pairs if priority[r] < priority[urgent]]:
            return aside
        there = cluster.suspended[cluster.requests.instance[cluster.suspended] == instance]
        return [servelab.Resume(r) for r in sorted(there, key=lambda r: -priority[r])[: max(0, seats - len(waiting))]]
