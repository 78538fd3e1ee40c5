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


class Grid(NamedTuple):
    """Tokens ahead at which load is projected, and what each counts for; shape (G,)."""

    horizon: Floats
    weights: Floats


class Movable(NamedTuple):
    """Requests that decode on overloaded instances, as columns: whether each may move, where it is in the pool, its KV
    tokens, output tokens expected of it, and what a move costs.
    """

    may_move: Flags
    owners: Integers
    kv: Floats
    remaining: Floats
    price: Floats


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
        self.horizon = np.arange(0, horizon_tokens + 1, _GRID_TOKENS, dtype=np.float64)
        self.weights = discount ** (self.horizon / _DISCOUNT_TOKENS)
        self.imbalance = imbalance
        self.headroom = headroom
        self.amortisation = amortisation
        self.transfer_overhead_s = transfer_overhead_s
        self.transfer_weight = transfer_weight
        self.moves = moves
        self.cooldown_s = cooldown_s
        self.limit: Floats | None = None  # KV tokens of each decode instance, once the cluster is known
        self.moved_at_s: Floats = np.zeros(0)  # of each request, -inf: never

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        pool = cluster.decode
        ids, owners, settled = cluster.residents(pool)
        if not settled.any():
            return ()
        generated = cluster.requests.generated(ids)
        tokens = cluster.requests.input_tokens[ids] + generated
        remaining = cluster.predictions.remaining(ids, generated)
        projected = projection(tokens, remaining, owners, self.horizon, len(pool))
        load = projected @ self.weights
        limit = self._limit(cluster)
        overloaded = exceeding(load, (1.0 + self.imbalance) * _mean(load), projected, limit)
        if not overloaded.any():
            return ()
        movable = np.flatnonzero(settled & overloaded[owners])
        movable = movable[self._cooled(ids[movable], cluster)]
        ids, owners, remaining = ids[movable], owners[movable], remaining[movable]
        kv = (tokens[movable] - 1).astype(np.float64)
        remaining[np.isnan(remaining)] = np.inf  # nothing is known: it goes on for ever
        transfer_s = kv * cluster.kv_bytes_per_token / pool.bandwidth_bytes_s[owners] + self.transfer_overhead_s
        pays = remaining * pool.step_s()[owners] >= self.amortisation * transfer_s
        requests = Movable(pays, owners, kv, remaining, transfer_s * self.transfer_weight)
        grid = Grid(self.horizon, self.weights)
        actions = []
        order = np.argsort(-load, kind="stable")
        for source in order[overloaded[order]]:
            for _ in range(self.moves):
                most = (1.0 - self.imbalance) * _mean(load)
                row, target = move_best(requests, grid, source, load, most, projected, limit)
                if row < 0:
                    break
                load = projected @ self.weights
                self.moved_at_s[ids[row]] = cluster.now_s
                actions.append(Migrate(int(ids[row]), int(pool.ids[target])))
        return actions

    def _limit(self, cluster: Cluster) -> Floats:
        """KV tokens that each decode instance has room for, less some."""
        if self.limit is None:
            blocks = cluster.decode.total_blocks
            self.limit = np.asarray((1.0 - self.headroom) * blocks * cluster.block_tokens, np.float64)
        return self.limit

    def _cooled(self, ids: Integers, cluster: Cluster) -> Flags:
        """Which requests have not been moved lately."""
        if len(self.moved_at_s) == 0:
            self.moved_at_s = np.full(len(cluster.requests.arrival_s), -np.inf)
        return cluster.now_s - self.moved_at_s[ids] >= self.cooldown_s


def _mean(values: Floats) -> float:
    return float(values.sum()) / len(values)


@compiled
def projection(tokens: Integers, remaining: Floats, owners: Integers, horizon: Floats, instances: int) -> Floats:
    """KV tokens of each instance at each point of the horizon, (instances, G), if each of its requests, which has so
    many tokens, goes on to generate `remaining` ones; NaN: for ever.
    """
    projected = np.zeros((instances, len(horizon)))
    for q in range(len(tokens)):
        kv = float(tokens[q] - 1)
        for g in range(len(horizon)):
            if not remaining[q] <= horizon[g]:
                projected[owners[q], g] += kv + horizon[g]
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
def move_best(
    requests: Movable, grid: Grid, source: int, load: Floats, most: float, projected: Floats, limit: Floats
) -> tuple[int, int]:
    """Move the request of `source` to the instance whose load is below `most`, of all such pairs the one that lowers
    the variance of the loads most, its price deducted: it may not move again, and `projected` follows. The pair;
    (-1, -1) if none does.

    Moving weight w from a to b changes the sum of squares by 2 w (w + load_b - load_a); the mean stays.
    """
    best, best_row, best_target = 0.0, -1, -1
    for target in range(len(load)):
        if load[target] >= most:
            continue
        gap = load[source] - (projected[target] * grid.weights).sum()
        for row in range(len(requests.owners)):
            if not requests.may_move[row] or requests.owners[row] != source:
                continue
            weight = 0.0
            for g in range(len(grid.weights)):
                weight += _share(requests, row, grid.horizon[g]) * grid.weights[g]
            gain = 2.0 * weight * (gap - weight) / len(projected) - requests.price[row]
            if gain > best and _has_room(requests, row, grid.horizon, projected[target], limit[target]):
                best, best_row, best_target = gain, row, target
    if best_row >= 0:
        requests.may_move[best_row] = False
        for g in range(len(grid.horizon)):
            share = _share(requests, best_row, grid.horizon[g])
            projected[source, g] -= share
            projected[best_target, g] += share
    return best_row, best_target


@compiled
def _share(requests: Movable, row: int, ahead: float) -> float:
    """KV tokens that a request is projected to hold so many tokens ahead."""
    return requests.kv[row] + ahead if requests.remaining[row] > ahead else 0.0


@compiled
def _has_room(requests: Movable, row: int, horizon: Floats, projected: Floats, limit: float) -> bool:
    """Whether a request fits into what an instance is projected to hold, at each point of the horizon."""
    fits = True
    for g in range(len(horizon)):
        fits = fits and projected[g] + _share(requests, row, horizon[g]) <= limit
    return fits
