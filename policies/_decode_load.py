"""The mean time between tokens of a decode pool, now and as it is expected (Mooncake: arXiv 2407.00079, section 7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from framework.policy.view import Cluster, Request


class DecodeLoad:
    """Mean time between tokens of the decode pool, now or later, if each request decodes for `decode_s`."""

    def __init__(self, decode_s: float) -> None:
        self.decode_s = decode_s
        # requests not yet prefilled: the time when they will be, prompt tokens
        self.coming: dict[int, tuple[float, int]] = {}
        self.since_s: NDArray[np.float64] = np.zeros(0)  # time from which each request decodes

    def expect(self, request: Request, ready_s: float) -> None:
        """Note that the request has been admitted, and will be prefilled at `ready_s`."""
        self.coming[request.id] = ready_s, request.input_tokens

    def begin(self, request: Request, cluster: Cluster) -> None:
        """Note that the request has been prefilled and decodes from now on."""
        if len(self.since_s) == 0:
            self.since_s = np.zeros(len(cluster.requests.arrival_s))
        self.coming.pop(request.id, None)
        self.since_s[request.id] = cluster.now_s

    def now_s(self, cluster: Cluster) -> float:
        """Seconds of a step of all requests that decode, or are on their way there, spread evenly over the pool."""
        pool = cluster.decode
        count = int(pool.running.sum() + pool.incoming.sum())
        return self._step_s(cluster, count, int(pool.kv_tokens.sum() + pool.incoming_kv_tokens.sum()))

    def then_s(self, cluster: Cluster, time_s: float) -> float:
        """The load at a later time: requests older than `decode_s` have left, those prefilled by then have come."""
        pool = cluster.decode
        ids, _ = cluster.decoding_on(pool)
        if len(ids):
            ids = ids[self.since_s[ids] > time_s - self.decode_s]
        self._forget_before(cluster.now_s - self.decode_s)
        ready = [tokens for ready_s, tokens in self.coming.values() if time_s - self.decode_s < ready_s <= time_s]
        count, held = len(ids) + len(ready), int(cluster.requests.kv_tokens(ids).sum()) + sum(ready)
        if time_s < cluster.now_s + self.decode_s:
            count, held = count + int(pool.incoming.sum()), held + int(pool.incoming_kv_tokens.sum())
        return self._step_s(cluster, count, held)

    def _forget_before(self, time_s: float) -> None:
        """Requests of a single token end with their prefill, and no hook reports it."""
        while self.coming:
            first = next(iter(self.coming))
            if self.coming[first][0] >= time_s:
                break
            del self.coming[first]

    def _step_s(self, cluster: Cluster, count: int, tokens: int) -> float:
        size = len(cluster.decode)
        batch = -(-count // size)
        return float(cluster.decode.estimate_s(0, batch, tokens // size).max()) if count else 0.0


def _of_pool(load: DecodeLoad, cluster: Cluster, ttft_s: float) -> float:
    return load.now_s(cluster)


def _of_pool_then(load: DecodeLoad, cluster: Cluster, ttft_s: float) -> float:
    return load.then_s(cluster, cluster.now_s + ttft_s)


# Of the whole decode pool, after a prompt has been prefilled or before that.
EXPECTED_TBT: dict[str, Callable[[DecodeLoad, Cluster, float], float]] = {
    "baseline": _of_pool,
    "early": _of_pool,
    "predicted": _of_pool_then,
}
