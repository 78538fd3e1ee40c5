"""Adaptive decode rescheduling (ARES, arXiv 2510.13668; revised as STAR, HPDC 2026).

Requests are placed once at the end of their prefill, but outputs diverge and decode instances drift apart. A periodic
rescheduler compares their present and predicted load and moves requests from overloaded to underloaded instances while
they go on decoding, where the move pays for its transfer. The papers' abstracts fix this mechanism; the formulas below
(horizon-weighted projected load, variance gain) and all parameters are a reconstruction consistent with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.errors import require_at_least, require_count, require_number, require_positive, require_share
from framework.policy import Action, Disaggregated, Migrate
from framework.policy.rules import DECODE_RULES, PREFILL_RULES, rule
from framework.policy.view import Cluster

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_GRID_TOKENS = 64  # spacing of the horizon at which load is projected: a second or two of decoding
_MOST_HORIZON_TOKENS = 10_000_000
_DISCOUNT_TOKENS = 256


class Residents(NamedTuple):
    """Requests of the decode pool as columns: position in the pool, whether it stays there, tokens that it has, output
    tokens expected of it, NaN: nothing is known, and when it was moved last, -inf: never.
    """

    owners: Integers
    settled: Flags
    tokens: Integers
    remaining: Floats
    moved_at_s: Floats


# Those that decode on overloaded instances, as an array of shape (K, 6): row among the residents, whether it may move,
# 1 or 0, position in the pool, KV tokens, output tokens expected of it, and what a move costs.
_ROW, _MAY_MOVE, _OWNER, _KV, _REMAINING, _PRICE = range(6)


class Ares(Disaggregated):
    """Every `period_s` (None: never), move at most `moves` requests off each overloaded decode instance.

    Load is W = sum over tau = 0, 64, ... `horizon_tokens` of `discount`^(tau / 256) times the KV tokens projected tau
    steps ahead; a horizon of 0 looks at the present load alone. Requests in transit count where they are going. An
    instance is overloaded above (1 + `imbalance`) times the mean, or when its projection comes within `headroom` of its
    KV memory; underloaded below (1 - `imbalance`) times the mean. A request moves only if it is expected to decode for
    `amortisation` times its transfer (bytes over the link plus `transfer_overhead_s`), lowers the variance of W by more
    than `transfer_weight` times that time, fits the target's projection, and has not been moved within `cooldown_s`.

    The horizon is short because placement goes on meanwhile: what an instance will lack later, new requests fill.
    """

    def __init__(
        self,
        routing: str = "least_queued",
        placement: str = "least_kv",
        period_s: float | None = 1.0,
        horizon_tokens: int = 512,
        discount: float = 0.9,
        imbalance: float = 0.1,
        headroom: float = 0.05,
        amortisation: float = 3.0,
        transfer_overhead_s: float = 0.01,
        transfer_weight: float = 0.0,
        moves: int = 1,
        cooldown_s: float = 5.0,
    ) -> None:
        if period_s is not None:
            require_positive("policy.period_s", period_s)
        require_count("policy.moves", moves)
        require_share("policy.discount", discount)
        for name, value in (
            *(("imbalance", imbalance), ("headroom", headroom)),
            *(("amortisation", amortisation), ("transfer_overhead_s", transfer_overhead_s)),
            *(("transfer_weight", transfer_weight), ("cooldown_s", cooldown_s)),
        ):
            require_at_least(f"policy.{name}", value, 0)
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.route_decode = rule("policy.placement", placement, DECODE_RULES)
        self.tick_s = period_s
        require_number("policy.horizon_tokens", horizon_tokens, 0, _MOST_HORIZON_TOKENS)
        horizon = np.arange(0, horizon_tokens + 1, _GRID_TOKENS, dtype=np.float64)
        self.weights = discount ** (horizon / _DISCOUNT_TOKENS)
        self.imbalance = imbalance
        self.headroom = headroom
        self.transfer = np.array([transfer_overhead_s, amortisation, transfer_weight], np.float64)
        self.moves = moves
        self.cooldown_s = cooldown_s
        self.limit: Floats | None = None  # KV tokens of each decode instance, once the cluster is known
        self.moved_at_s: Floats = np.zeros(0)  # of each request, -inf: never

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        pool = cluster.decode
        ids, owners, settled = cluster.residents(pool)
        if np.count_nonzero(settled) == 0:
            return ()
        generated = cluster.requests.generated(ids)
        tokens = cluster.requests.input_tokens[ids] + generated
        remaining = cluster.predictions.remaining(ids, generated)
        projected = projection(tokens, remaining, owners, len(self.weights), len(pool))
        load = projected @ self.weights
        limit = self._limit(cluster)
        overloaded = exceeding(load, (1.0 + self.imbalance) * _mean(load), projected, limit)
        sources = np.flatnonzero(overloaded).tolist()
        if not sources:
            return ()
        now_s, moved_at_s = cluster.now_s, self._moved_at_s(cluster)
        residents = Residents(owners, settled, tokens, remaining, moved_at_s.take(ids))
        requests = movable(residents, overloaded, now_s, self.cooldown_s)
        price(requests, self.transfer, cluster.kv_bytes_per_token, pool.bandwidth_bytes_s, pool.step_s())
        actions = []
        for source in sorted(sources, key=(-load).tolist().__getitem__):
            for _ in range(self.moves):
                most = (1.0 - self.imbalance) * _mean(load)
                row, target = move_best(requests, self.weights, source, load, most, projected, limit)
                if row < 0:
                    break
                load = projected @ self.weights
                moved_at_s[ids[row]] = now_s
                actions.append(Migrate(int(ids[row]), int(pool.ids[target])))
        return actions

    def _limit(self, cluster: Cluster) -> Floats:
        """KV tokens that each decode instance has room for, less some."""
        if self.limit is None:
            blocks = cluster.decode.total_blocks
            self.limit = np.asarray((1.0 - self.headroom) * blocks * cluster.block_tokens, np.float64)
        return self.limit

    def _moved_at_s(self, cluster: Cluster) -> Floats:
        """When each request of the run was moved last."""
        if len(self.moved_at_s) == 0:
            self.moved_at_s = np.full(len(cluster.requests.arrival_s), -np.inf)
        return self.moved_at_s


def _mean(values: Floats) -> float:
    return float(np.add.reduce(values)) / len(values)


@compiled
def projection(tokens: Integers, remaining: Floats, owners: Integers, points: int, instances: int) -> Floats:
    """KV tokens of each instance at each point of the horizon, (instances, points), if each of its requests, which has
    so many tokens, goes on to generate `remaining` ones; NaN: for ever.

    A request is noted at the last point that it reaches, and counts there and before: sums of whole numbers.
    """
    projected, count = np.zeros((instances, points)), np.zeros((instances, points))
    for q in range(len(tokens)):
        reached = points
        if remaining[q] <= (points - 1) * _GRID_TOKENS:
            reached = int(np.ceil(remaining[q] / _GRID_TOKENS))
        if reached > 0:
            projected[owners[q], reached - 1] += tokens[q] - 1
            count[owners[q], reached - 1] += 1.0
    for i in range(instances):
        for g in range(points - 2, -1, -1):
            projected[i, g] += projected[i, g + 1]
            count[i, g] += count[i, g + 1]
        for g in range(points):
            projected[i, g] += count[i, g] * (g * _GRID_TOKENS)
    return projected


@compiled
def exceeding(load: Floats, most: float, projected: Floats, limit: Floats) -> Flags:
    """Which instances have a load above `most`, or are projected to hold more than their limit."""
    found = load > most
    for i in range(len(load)):
        for g in range(projected.shape[1]):
            if projected[i, g] > limit[i]:
                found[i] = True
    return found


@compiled
def movable(residents: Residents, overloaded: Flags, now_s: float, cooldown_s: float) -> Floats:
    """Those that decode on overloaded instances and have not been moved lately, without prices; shape (K, 6)."""
    found, count = np.empty((len(residents.owners), 6)), 0
    for row in range(len(found)):
        owner = residents.owners[row]
        if residents.settled[row] and overloaded[owner] and now_s - residents.moved_at_s[row] >= cooldown_s:
            request = found[count]
            request[_ROW], request[_MAY_MOVE], request[_OWNER] = row, 1.0, owner
            request[_KV], request[_REMAINING] = residents.tokens[row] - 1, residents.remaining[row]
            if np.isnan(request[_REMAINING]):
                request[_REMAINING] = np.inf  # nothing is known: it goes on for ever
            count += 1
    return found[:count]


@compiled
def price(
    requests: Floats, transfer: Floats, bytes_per_token: float, bandwidth_bytes_s: Floats, step_s: Floats
) -> None:
    """What moving each of them costs, and whether that pays.

    `transfer`: seconds of a transfer beside its bytes, for how many times its transfer a request that moves is expected
    to decode, and what a second of it counts.
    """
    overhead_s, amortisation, weight = transfer
    for request in requests:
        owner = int(request[_OWNER])
        transfer_s = request[_KV] * bytes_per_token / bandwidth_bytes_s[owner] + overhead_s
        request[_MAY_MOVE] = 1.0 if request[_REMAINING] * step_s[owner] >= amortisation * transfer_s else 0.0
        request[_PRICE] = transfer_s * weight


@compiled
def move_best(
    requests: Floats, weights: Floats, source: int, load: Floats, most: float, projected: Floats, limit: Floats
) -> tuple[int, int]:
    """Move the request of `source` to the instance whose load is below `most`, of all such pairs the one that lowers
    the variance of the loads most, its price deducted: it may not move again, and `projected` follows. Its row among
    the residents, and where it goes; (-1, -1) if none does.

    Moving weight w from a to b changes the sum of squares by 2 w (w + load_b - load_a); the mean stays.
    """
    here, weight = np.empty(len(requests), np.int64), np.empty(len(requests))
    count = 0
    for k in range(len(requests)):
        if requests[k, _MAY_MOVE] and requests[k, _OWNER] == source:
            here[count], weight[count] = k, 0.0
            for g in range(len(weights)):
                weight[count] += _share(requests[k], g) * weights[g]
            count += 1
    best, best_k, best_target = 0.0, -1, -1
    for target in range(len(load)):
        if load[target] >= most:
            continue
        there = 0.0
        for g in range(len(weights)):
            there += projected[target, g] * weights[g]
        gap = load[source] - there
        for j in range(count):
            gain = 2.0 * weight[j] * (gap - weight[j]) / len(projected) - requests[here[j], _PRICE]
            if gain > best and _has_room(requests[here[j]], projected[target], limit[target]):
                best, best_k, best_target = gain, here[j], target
    if best_k < 0:
        return -1, -1
    requests[best_k, _MAY_MOVE] = 0.0
    for g in range(len(weights)):
        share = _share(requests[best_k], g)
        projected[source, g] -= share
        projected[best_target, g] += share
    return int(requests[best_k, _ROW]), best_target


@compiled
def _share(request: Floats, point: int) -> float:
    """KV tokens that a request is projected to hold at a point of the horizon."""
    ahead = float(point * _GRID_TOKENS)
    held: float = request[_KV] + ahead if request[_REMAINING] > ahead else 0.0
    return held


@compiled
def _has_room(request: Floats, projected: Floats, limit: float) -> bool:
    """Whether a request fits into what an instance is projected to hold, at each point of the horizon."""
    fits = True
    for g in range(len(projected)):
        fits = fits and projected[g] + _share(request, g) <= limit
    return fits
