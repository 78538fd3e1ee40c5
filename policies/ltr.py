"""Shortest predicted output first, and no one waits for ever (LTR: Fu et al., NeurIPS 2024, arXiv 2408.15792).

Learning to rank: a model predicts which of two requests has the longer output. At each step the requests with the
shortest predicted outputs form the batch; others leave it, with their KV, or wait. A request that has not run for
`patience_s` is promoted (section 4.3): it goes before all that are not, in the order of arrival, until it has got
`quantum_tokens`.

The rank is that of the first prediction, which does not fall as tokens come: `trail` goes by what is left, and protects
requests by their progress. Only the order of predictions matters, as for the paper's model.

Simplified: predictions are those of `predictor=`. The paper counts steps; its artifact promotes after 200, some 5 s,
and keeps the promotion for 10. In a lasting overload a patience of 5 s promotes nearly all, which undoes the order, so
that the default is longer. Batches are updated whenever something changes on an instance. KV is swapped when room is
lacking, the longest prediction first. A prompt under way is not preempted. Steps are those of `chunked`. Without a
predictor requests run in the order of their arrival.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, checked
from framework.engine.setup.config import Batching
from framework.policy import Cluster
from framework.policy.rules import PREFILL_RULES, rule
from policies._ranked_batches import RankedBatches

Integers = NDArray[np.int64]
_FIRST = -1.0  # level of those that are promoted; of others it is the predicted output


class Ltr(RankedBatches):
    """`patience_s` (None: for ever) without a step promotes a request, for `quantum_tokens`; `routing` spreads them."""

    batching_mode: ClassVar[Batching | None] = "decode_first"

    @checked("policy.")
    def __init__(
        self, patience_s: Positive | None = 30.0, quantum_tokens: Count = 10, routing: str = "least_queued"
    ) -> None:
        self.patience_s = np.inf if patience_s is None else patience_s
        self.quantum_tokens = quantum_tokens
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        self._place = cluster.requests.arrival_s
        count = len(self._place)
        self._rank = np.full(count, np.nan)  # first predicted output of each request
        self._level = np.zeros(count)
        self._ran_s = np.full(count, -np.inf)  # when each was last seen running
        self._until = np.full(count, -1, np.int64)  # tokens with which a promotion ends; -1: none

    def prioritize(self, queue: Integers, cluster: Cluster) -> NDArray[np.float64]:
        self._set_levels(queue, cluster)
        return super().prioritize(queue, cluster)

    def _look(self, instance: int, cluster: Cluster, waiting: Integers, running: Integers) -> None:
        """End the promotions of those that have got their tokens, and promote those that have waited too long."""
        self._ran_s[running] = cluster.now_s
        self._until[running[cluster.requests.generated(running) >= self._until[running]]] = -1
        waited_s = cluster.now_s - np.maximum(self._ran_s[waiting], self._place[waiting])
        late = waiting[(self._until[waiting] < 0) & (waited_s >= self.patience_s)]
        self._until[late] = cluster.requests.generated(late) + self.quantum_tokens
        self._set_levels(np.concatenate([waiting, running]), cluster)

    def _set_levels(self, ids: Integers, cluster: Cluster) -> None:
        new = ids[np.isnan(self._rank[ids])]
        if len(new):
            self._rank[new] = cluster.requests.generated(new) + np.nan_to_num(cluster.remaining_tokens(new))
        self._level[ids] = np.where(self._until[ids] >= 0, _FIRST, self._rank[ids])
