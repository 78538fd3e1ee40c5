"""Adaptive decode rescheduling (ARES, arXiv 2510.13668; revised as STAR, HPDC 2026).

Requests are placed once at the end of their prefill, but outputs diverge and decode instances drift apart. A periodic
rescheduler compares their present and predicted load and moves requests from overloaded to underloaded instances while
they go on decoding, where the move pays for its transfer. The papers' abstracts fix this mechanism; the formulas below
(horizon-weighted projected load, variance gain) and all parameters are a reconstruction consistent with them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.errors import require_at_least, require_count, require_positive, require_share
from framework.policy import Action, Disaggregated, Migrate
from framework.policy.rules import DECODE_RULES, PREFILL_RULES, rule
from framework.policy.view import Cluster

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_GRID_TOKENS = 64  # spacing of the horizon at which load is projected: a second or two of decoding
_DISCOUNT_TOKENS = 256


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
            *(("horizon_tokens", horizon_tokens), ("imbalance", imbalance), ("headroom", headroom)),
            *(("amortisation", amortisation), ("transfer_overhead_s", transfer_overhead_s)),
            *(("transfer_weight", transfer_weight), ("cooldown_s", cooldown_s)),
        ):
            require_at_least(f"policy.{name}", value, 0)
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.route_decode = rule("policy.placement", placement, DECODE_RULES)
        self.tick_s = period_s
        self.horizon = np.arange(0, horizon_tokens + 1, _GRID_TOKENS, dtype=np.float64)
        self.weights = discount ** (self.horizon / _DISCOUNT_TOKENS)
        self.imbalance = imbalance
        self.headroom = headroom
        self.amortisation = amortisation
        self.transfer_overhead_s = transfer_overhead_s
        self.transfer_weight = transfer_weight
        self.moves = moves
        self.cooldown_s = cooldown_s
        self.moved_at_s: dict[int, float] = {}

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        pool = cluster.decode
        ids, owners, settled = residents(cluster)
        if not settled.any():
            return ()
        kv = (cluster.requests.input_tokens[ids] + cluster.requests.generated(ids) - 1).astype(np.float64)
        remaining = cluster.remaining_tokens(ids)
        remaining = np.where(np.isnan(remaining), np.inf, remaining)  # nothing is known: it goes on for ever
        shares = np.where(remaining[:, None] > self.horizon, kv[:, None] + self.horizon, 0.0)
        projected = total(shares, owners, len(pool))
        load = projected @ self.weights
        limit = np.asarray((1.0 - self.headroom) * pool.total_blocks * cluster.block_tokens, np.float64)
        overloaded = (load > (1.0 + self.imbalance) * load.mean()) | (projected.max(axis=1) > limit)
        if not overloaded.any():
            return ()
        transfer_s = kv * cluster.kv_bytes_per_token / pool.bandwidth_bytes_s[owners] + self.transfer_overhead_s
        price = transfer_s * self.transfer_weight
        movable = np.flatnonzero(settled & self._cooled(ids, cluster.now_s))
        pays = remaining[movable] * pool.step_s()[owners[movable]] >= self.amortisation * transfer_s[movable]
        movable = movable[pays]
        actions = []
        for source in np.argsort(-load, kind="stable"):
            candidates = movable[owners[movable] == source]
            for _ in range(self.moves if overloaded[source] else 0):
                targets = np.flatnonzero(load < (1.0 - self.imbalance) * load.mean())
                row, target = best_move(
                    candidates, targets, shares, self.weights, price, projected, load[source], limit
                )
                if row < 0:
                    break
                candidates = candidates[candidates != row]
                projected[source] -= shares[row]
                projected[target] += shares[row]
                load = projected @ self.weights
                self.moved_at_s[int(ids[row])] = cluster.now_s
                actions.append(Migrate(int(ids[row]), int(pool.ids[target])))
        return actions

    def _cooled(self, ids: Integers, now_s: float) -> Flags:
        """Which requests have not been moved lately; forgets those for which that no longer matters."""
        recent = {r: at_s for r, at_s in self.moved_at_s.items() if now_s - at_s < self.cooldown_s}
        self.moved_at_s = recent
        return ~np.isin(ids, list(recent))


def residents(cluster: Cluster) -> tuple[Integers, Integers, Flags]:
    """Requests with KV on the decode pool or on its way there: ids, each one's position in the pool, who is to stay.

    One that is on its way, from its prefill or in a migration, belongs where it is going.
    """
    pool, destination = cluster.decode, cluster.requests.destination
    decoding, owners = cluster.decoding_on(pool)
    arriving = np.setdiff1d(np.flatnonzero(destination >= 0), decoding)
    ids = np.concatenate([decoding, arriving])
    owners = np.concatenate([owners, np.zeros(len(arriving), np.int64)])
    settled = destination[ids] < 0
    return ids, np.where(settled, owners, np.searchsorted(pool.ids, destination[ids])), settled


@compiled
def total(shares: Floats, owners: Integers, instances: int) -> Floats:
    """KV tokens of each instance at each point of the horizon, (instances, G), from those of each request, (n, G)."""
    projected = np.zeros((instances, shares.shape[1]))
    for q in range(len(shares)):
        projected[owners[q]] += shares[q]
    return projected


@compiled
def best_move(
    candidates: Integers,
    targets: Integers,
    shares: Floats,
    weights: Floats,
    price: Floats,
    projected: Floats,
    source_load: float,
    limit: Floats,
) -> tuple[int, int]:
    """The (request, target) that lowers the variance of the loads most, its price deducted; (-1, -1) if none does.

    Moving weight w from a to b changes the sum of squares by 2 w (w + load_b - load_a); the mean stays.
    """
    best, best_row, best_target = 0.0, -1, -1
    for target in targets:
        gap = source_load - (projected[target] * weights).sum()
        for row in candidates:
            weight = (shares[row] * weights).sum()
            gain = 2.0 * weight * (gap - weight) / len(projected) - price[row]
            if gain > best and np.all(projected[target] + shares[row] <= limit[target]):
                best, best_row, best_target = gain, row, target
    return best_row, best_target
