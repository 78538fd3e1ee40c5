"""A policy: the queue is ordered by the weighted service that each tenant has received so far (VTC).

python run.py policy=examples/fair_share.py:FairShare trace=azure_conv 'trace.tenants={a: 0.9, b: 0.1}' trace.rate=60
"""

import numpy as np

import servelab


class FairShare(servelab.Aggregated):
    """Service: prompt tokens + 2 x output tokens. A tenant that comes back is lifted to the least of those waiting."""

    dynamic_keys = True

    def prepare(self, cluster):
        self.counted, self.service = np.zeros((2, len(cluster.requests.tenant)))  # of each request; of each tenant

    def count(self, cluster, *ended):
        for i in cluster.instances.ids:
            ids = np.concatenate([cluster.decoding(i), cluster.prefilling(i), np.array(ended, int)])
            now = cluster.requests.input_tokens[ids] + 2 * cluster.requests.generated(ids)
            np.add.at(self.service, cluster.requests.tenant[ids], now - self.counted[ids])
            self.counted[ids] = now

    def on_finish(self, request, cluster):
        self.count(cluster, request.id)
        return ()

    def admit(self, request, cluster):
        self.count(cluster)
        waiting = cluster.requests.tenant[np.concatenate([cluster.queued(i) for i in cluster.instances.ids])]
        if len(waiting) and request.tenant not in waiting:
            self.service[request.tenant] = max(self.service[request.tenant], self.service[waiting].min())
        return True

    def prioritize(self, queue, cluster):
        self.count(cluster)
        tenant, tokens = cluster.requests.tenant[queue], cluster.requests.input_tokens[queue]
        return self.service[tenant] + ((tenant[:, None] == tenant) & (queue[:, None] > queue)) @ tokens  # those ahead
