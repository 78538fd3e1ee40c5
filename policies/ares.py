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

# Settings among the numbers that compiled functions read.
_IMBALANCE, _COOLDOWN_S, _OVERHEAD_S, _AMORTISATION, _TRANSFER_WEIGHT, _BYTES_PER_TOKEN, _MOVES = range(7)


class Residents(NamedTuple):
    """Requests of the decode pool as columns: number, position in the pool, whether it stays there, output tokens that
    it has, and those still expected of it, NaN: nothing is known.
    """

    ids: Integers
    owners: Integers
    settled: Flags
    generated: Integers
    remaining: Floats


class Run(NamedTuple):
    """What holds for a whole run: prompt tokens of all requests, and when each was moved last, -inf: never; KV tokens
    that each decode instance has room for, less some, and bytes per second of its network; the settings; the weight of
    each point of the horizon.
    """

    input_tokens: Integers
    moved_at_s: Floats
    limit: Floats
    bandwidth_bytes_s: Floats
    settings: Floats
    weights: Floats


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
        self.headroom = headroom
        self.settings = {
            _IMBALANCE: imbalance,
            _COOLDOWN_S: cooldown_s,
            _OVERHEAD_S: transfer_overhead_s,
            _AMORTISATION: amortisation,
            _TRANSFER_WEIGHT: transfer_weight,
            _MOVES: moves,
        }

    def prepare(self, cluster: Cluster) -> None:
        pool, settings = cluster.decode, self.settings | {_BYTES_PER_TOKEN: cluster.kv_bytes_per_token}
        self.run = Run(
            input_tokens=cluster.requests.input_tokens,
            moved_at_s=np.full(len(cluster.requests.arrival_s), -np.inf),
            limit=np.asarray((1.0 - self.headroom) * pool.total_blocks * cluster.block_tokens, np.float64),
            bandwidth_bytes_s=pool.bandwidth_bytes_s,
            settings=np.array([settings[number] for number in range(len(settings))], np.float64),
            weights=self.weights,
        )
        self.found = np.empty((len(pool) * int(self.settings[_MOVES]), 2), np.int64)

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        pool = cluster.decode
        ids, owners, settled = cluster.residents(pool)
        if np.count_nonzero(settled) == 0:
            return ()
        generated = cluster.requests.generated(ids)
        remaining = cluster.predictions.remaining(ids, generated)
        residents = Residents(ids, owners, settled, generated, remaining)
        count = rebalance(residents, pool.step_s(), cluster.now_s, self.run, self.found)
        return [Migrate(request, pool.ids[target]) for request, target in self.found[:count].tolist()]


@compiled
def rebalance(residents: Residents, step_s: Floats, now_s: float, run: Run, found: Integers) -> int:
    """Move requests off the overloaded instances, from the most loaded one on: those to be moved, and the positions of
    where they go, are written to `found`; how many there are.

    `step_s`: of each instance's next decode step.
    """
    tokens = run.input_tokens[residents.ids] + residents.generated
    projected = projection(tokens, residents.remaining, residents.owners, len(run.weights), len(run.limit))
    load = weighted(projected, run.weights)
    overloaded = exceeding(load, (1.0 + run.settings[_IMBALANCE]) * load.mean(), projected, run.limit)
    if not overloaded.any():
        return 0
    requests = movable(residents, tokens, overloaded, now_s, run)
    price(requests, run, step_s)
    count = 0
    for source in np.argsort(-load, kind="mergesort"):  # which keeps the order of equal ones
        moves = run.settings[_MOVES] if overloaded[source] else 0
        while moves > 0:
            most = (1.0 - run.settings[_IMBALANCE]) * load.mean()
            row, target = move_best(requests, run.weights, source, load, most, projected, run.limit)
            if row < 0:
                break
            load = weighted(projected, run.weights)
            run.moved_at_s[residents.ids[row]] = now_s
            found[count, 0], found[count, 1] = residents.ids[row], target
            count, moves = count + 1, moves - 1
    return count


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
def weighted(projected: Floats, weights: Floats) -> Floats:
    """The load of each instance. Added up in order: sums of a library's product differ from machine to machine."""
    load = np.zeros(len(projected))
    for i in range(len(projected)):
        for g in range(len(weights)):
            load[i] += projected[i, g] * weights[g]
    return load


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
def movable(residents: Residents, tokens: Integers, overloaded: Flags, now_s: float, run: Run) -> Floats:
    """Those that decode on overloaded instances and have not been moved lately, without prices; shape (K, 6)."""
    found, count = np.empty((len(tokens), 6)), 0
    for row in range(len(tokens)):
        owner = residents.owners[row]
        rested_s = now_s - run.moved_at_s[residents.ids[row]]
        if residents.settled[row] and overloaded[owner] and rested_s >= run.settings[_COOLDOWN_S]:
            left = residents.remaining[row]
            found[count, _ROW], found[count, _MAY_MOVE], found[count, _OWNER] = row, 1.0, owner
            found[count, _KV] = tokens[row] - 1
            found[count, _REMAINING] = np.inf if np.isnan(left) else left  # nothing is known: it goes on for ever
            count += 1
    return found[:count]


@compiled
def price(requests: Floats, run: Run, step_s: Floats) -> None:
    """What moving each of them costs, and whether that pays: whether it is expected to decode long enough."""
    for k in range(len(requests)):
        owner = int(requests[k, _OWNER])
        copy_s = requests[k, _KV] * run.settings[_BYTES_PER_TOKEN] / run.bandwidth_bytes_s[owner]
        transfer_s = copy_s + run.settings[_OVERHEAD_S]
        decode_s = requests[k, _REMAINING] * step_s[owner]
        requests[k, _MAY_MOVE] = 1.0 if decode_s >= run.settings[_AMORTISATION] * transfer_s else 0.0
        requests[k, _PRICE] = transfer_s * run.settings[_TRANSFER_WEIGHT]


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
