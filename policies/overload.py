"""How slow the decode pool is, and how slow it will be (Mooncake: arXiv 2407.00079, section 7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from framework.views import Cluster, Request


class DecodeLoad:
    """Mean time between tokens of the decode pool, at present or later, if each request decodes for `decode_s`."""

    def __init__(self, decode_s: float) -> None:
        self.decode_s = decode_s
        self.coming: dict[int, tuple[float, int]] = {}  # requests not yet prefilled: when they will be, prompt tokens
        self.since_s: NDArray[np.float64] = np.zeros(0)  # by request, from when on it decodes

    def expect(self, request: Request, ready_s: float) -> None:
        """The request has been admitted, and will be prefilled at `ready_s`."""
        self.coming[request.id] = ready_s, request.input_tokens

    def begin(self, request: Request, cluster: Cluster) -> None:
        """The request has been prefilled and decodes from now on."""
        if len(self.since_s) == 0:
            self.since_s = np.zeros(len(cluster.requests.arrival_s))
        self.coming.pop(request.id, None)
        self.since_s[request.id] = cluster.now_s

    def now_s(self, cluster: Cluster) -> float:
        """Seconds of a step of what decodes, or is on its way there, spread evenly over the pool."""
        pool = cluster.decode
        count = int(pool.running.sum() + pool.incoming.sum())
        return self._step_s(cluster, count, int(pool.kv_tokens.sum() + pool.incoming_kv_tokens.sum()))

    def then_s(self, cluster: Cluster, time_s: float) -> float:
        """The same at a later time: those older than `decode_s` have left, those prefilled by then have come."""
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
        """Requests of a single token end with their prefill, and nobody says so."""
        while self.coming:
            first = next(iter(self.coming))
            if self.coming[first][0] >= time_s:
                break
            del self.coming[first]

    def _step_s(self, cluster: Cluster, count: int, tokens: int) -> float:
        size = len(cluster.decode)
        batch = -(-count // size)
        return float(cluster.decode.estimate_s(0, batch, tokens // size).max()) if count else 0.0


def _never(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    return 0.0


def _of_least_loaded(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    """That of the decode instance that holds least, with this request."""
    pool = cluster.decode
    held = pool.kv_tokens + pool.incoming_kv_tokens
    least = int(held.argmin())
    batch = int(pool.running[least] + pool.incoming[least]) + 1
    return float(pool.estimate_s(0, batch, int(held[least]) + request.input_tokens)[least])


def _of_pool(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    return load.now_s(cluster)


def _of_pool_then(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    return load.then_s(cluster, cluster.now_s + ttft_s)


ExpectedTbt = Callable[[DecodeLoad, Request, Cluster, float], float]
EXPECTED_TBT: dict[str, ExpectedTbt] = {
    "none": _never,
    "slo": _of_least_loaded,
    "baseline": _of_pool,
    "early": _of_pool,
    "predicted": _of_pool_then,
}
