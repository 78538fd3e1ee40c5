"""Which decoding requests to move, and where: the compiled part of `policies.ares`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.timing.estimate import StepTimes, estimate_s

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

GRID_TOKENS = 64  # spacing of the horizon at which load is projected: a second or two of decoding

# Settings among the numbers that compiled functions read.
IMBALANCE, COOLDOWN_S, OVERHEAD_S, AMORTISATION, TRANSFER_WEIGHT, BYTES_PER_TOKEN, MOVES, FULL, SLOW_S = range(9)


class Residents(NamedTuple):
    """Requests of the decode pool as columns: number, position in the pool, whether it stays there, its output tokens,
    and those still expected of it, NaN: unknown.
    """

    ids: Integers
    owners: Integers
    settled: Flags
    generated: Integers
    remaining: Floats


class Pool(NamedTuple):
    """The instances of the decode pool: their step times, the requests on each, and the sum of those requests' KV
    tokens.
    """

    times: StepTimes
    batch: Integers
    context: Integers


class Run(NamedTuple):
    """Constants of a whole run.

    Its arrays: prompt tokens of all requests; when each was last moved (-inf: never); KV tokens for which each decode
    instance has room, less the headroom; bytes per second of its network; the settings; the weight of each point of the
    horizon.
    """

    input_tokens: Integers
    moved_at_s: Floats
    limit: Floats
    bandwidth_bytes_s: Floats
    settings: Floats
    weights: Floats


# Requests that decode on overloaded instances, as an array of shape (K, 6): row among the residents, whether it may
# move, 1 or 0, position in the pool, KV tokens, expected output tokens, and the seconds of a move.
_ROW, _MAY_MOVE, _OWNER, _KV, _REMAINING, _TRANSFER_S = range(6)


@compiled
def rebalance(residents: Residents, times: StepTimes, step_s: Floats, now_s: float, run: Run, found: Integers) -> int:
    """Move requests off the overloaded instances, from the most loaded one on: writes the requests and the positions of
    their targets to `found`, and returns their number.

    `times` are the step times of the pool's instances, `step_s` of each one's next decode step.
    """
    tokens = run.input_tokens[residents.ids] + residents.generated
    pool = pool_of(residents, tokens, times)
    projected = projection(tokens, residents.remaining, residents.owners, len(run.weights), len(run.limit))
    load = weighted(projected, run.weights)
    overloaded = exceeding(load, (1.0 + run.settings[IMBALANCE]) * load.mean(), projected, run.limit)
    if not overloaded.any():
        return 0
    requests = movable(residents, tokens, overloaded, now_s, run)
    price(requests, run, step_s)
    count = 0
    for source in np.argsort(-load, kind="mergesort"):  # A stable sort keeps the order of equal loads.
        is_full = projected[source].max() > run.settings[FULL] * run.limit[source]
        is_noticed = is_full or step_s[source] >= run.settings[SLOW_S]
        moves = run.settings[MOVES] if overloaded[source] and is_noticed else 0
        while moves > 0:
            most = (1.0 - run.settings[IMBALANCE]) * load.mean()
            row, target = move_best(requests, run, source, load, most, projected, pool)
            if row < 0:
                break
            load = weighted(projected, run.weights)
            run.moved_at_s[residents.ids[row]] = now_s
            found[count, 0], found[count, 1] = residents.ids[row], target
            count, moves = count + 1, moves - 1
    return count


@compiled
def pool_of(residents: Residents, tokens: Integers, times: StepTimes) -> Pool:
    """The pool with the requests that are there or on their way there."""
    batch, context = np.zeros(len(times.pools), np.int64), np.zeros(len(times.pools), np.int64)
    for q in range(len(tokens)):
        batch[residents.owners[q]] += 1
        context[residents.owners[q]] += tokens[q] - 1
    return Pool(times, batch, context)


@compiled
def projection(tokens: Integers, remaining: Floats, owners: Integers, points: int, instances: int) -> Floats:
    """KV tokens of each instance at each point of the horizon, (instances, points), if each of its requests, which now
    has `tokens`, generates `remaining` more; NaN: for ever.

    A request is noted at the last point that it reaches, and counts there and before: sums of whole numbers.
    """
    projected, count = np.zeros((instances, points)), np.zeros((instances, points))
    for q in range(len(tokens)):
        reached = points
        if remaining[q] <= (points - 1) * GRID_TOKENS:
            reached = int(np.ceil(remaining[q] / GRID_TOKENS))
        if reached > 0:
            projected[owners[q], reached - 1] += tokens[q] - 1
            count[owners[q], reached - 1] += 1.0
    for i in range(instances):
        for g in range(points - 2, -1, -1):
            projected[i, g] += projected[i, g + 1]
            count[i, g] += count[i, g + 1]
        for g in range(points):
            projected[i, g] += count[i, g] * (g * GRID_TOKENS)
    return projected


@compiled
def weighted(projected: Floats, weights: Floats) -> Floats:
    """The load of each instance, summed in order: sums of a library's product differ from machine to machine."""
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
    """The requests that decode on overloaded instances and were not moved lately, without prices; shape (K, 6)."""
    found, count = np.empty((len(tokens), 6)), 0
    for row in range(len(tokens)):
        owner = residents.owners[row]
        rested_s = now_s - run.moved_at_s[residents.ids[row]]
        if residents.settled[row] and overloaded[owner] and rested_s >= run.settings[COOLDOWN_S]:
            left = residents.remaining[row]
            found[count, _ROW], found[count, _MAY_MOVE], found[count, _OWNER] = row, 1.0, owner
            found[count, _KV] = tokens[row] - 1
            found[count, _REMAINING] = np.inf if np.isnan(left) else left  # unknown: it never ends
            count += 1
    return found[:count]


@compiled
def price(requests: Floats, run: Run, step_s: Floats) -> None:
    """Compute how long each of them takes to move, and whether it is expected to decode for long enough."""
    for k in range(len(requests)):
        owner = int(requests[k, _OWNER])
        copy_s = requests[k, _KV] * run.settings[BYTES_PER_TOKEN] / run.bandwidth_bytes_s[owner]
        transfer_s = copy_s + run.settings[OVERHEAD_S]
        decode_s = requests[k, _REMAINING] * step_s[owner]
        requests[k, _MAY_MOVE] = 1.0 if decode_s >= run.settings[AMORTISATION] * transfer_s else 0.0
        requests[k, _TRANSFER_S] = transfer_s


@compiled
def move_best(
    requests: Floats, run: Run, source: int, load: Floats, most: float, projected: Floats, pool: Pool
) -> tuple[int, int]:
    """Make the best move of a request of `source` to an instance whose load is below `most`.

    The best pair lowers the variance of the loads most, less its price. The request may not move again, and `projected`
    and `pool` are updated. Returns its row among the residents and its target; (-1, -1): no move.

    Moving weight w from a to b changes the sum of squares by 2 w (w + load_b - load_a); the mean stays.
    """
    weights, limit = run.weights, run.limit
    here, weight = np.empty(len(requests), np.int64), np.empty(len(requests))
    count = 0
    for k in range(len(requests)):
        if requests[k, _MAY_MOVE] and requests[k, _OWNER] == source:
            here[count], weight[count] = k, 0.0
            for g in range(len(weights)):
                weight[count] += _share(requests[k], g) * weights[g]
            count += 1
    is_full = projected[source].max() > run.settings[FULL] * limit[source]
    best, best_k, best_target = 0.0, -1, -1
    for target in range(len(load)):
        if load[target] >= most:
            continue
        there = 0.0
        for g in range(len(weights)):
            there += projected[target, g] * weights[g]
        gap = load[source] - there
        for j in range(count):
            q = requests[here[j]]
            gain = 2.0 * weight[j] * (gap - weight[j]) / len(projected)
            gain -= run.settings[TRANSFER_WEIGHT] * q[_TRANSFER_S]
            if gain > best and _has_room(q, projected[target], limit[target]):
                if not is_full and saving_s(q, pool, source, target, run) < run.settings[AMORTISATION] * q[_TRANSFER_S]:
                    continue
                best, best_k, best_target = gain, here[j], target
    if best_k < 0:
        return -1, -1
    requests[best_k, _MAY_MOVE] = 0.0
    for g in range(len(weights)):
        share = _share(requests[best_k], g)
        projected[source, g] -= share
        projected[best_target, g] += share
    for i, more in ((source, -1), (best_target, 1)):
        pool.batch[i] += more
        pool.context[i] += more * int(requests[best_k, _KV])
    return int(requests[best_k, _ROW]), best_target


@compiled
def saving_s(request: Floats, pool: Pool, source: int, target: int, run: Run) -> float:
    """Seconds of decoding that all requests of both instances together save if this one moves to the target.

    They count for as long as it is expected to decode, at most to the horizon, beyond which new requests have changed
    the batches.
    """
    kv, horizon = int(request[_KV]), float((len(run.weights) - 1) * GRID_TOKENS)
    before_s = _together_s(pool, source, 0, 0) + _together_s(pool, target, 0, 0)
    after_s = _together_s(pool, source, -1, -kv) + _together_s(pool, target, 1, kv)
    steps: float = min(request[_REMAINING], horizon) if horizon > 0.0 else request[_REMAINING]
    return steps * (before_s - after_s) if before_s > after_s else 0.0


@compiled
def _together_s(pool: Pool, i: int, more: int, tokens: int) -> float:
    """Seconds of one step, times the requests in it, if there were `more` requests, with `tokens` KV tokens."""
    batch = pool.batch[i] + more
    return batch * estimate_s(pool.times, i, 0, batch, pool.context[i] + tokens) if batch > 0 else 0.0


@compiled
def _share(request: Floats, point: int) -> float:
    """KV tokens that a request is projected to hold at a point of the horizon."""
    ahead = float(point * GRID_TOKENS)
    held: float = request[_KV] + ahead if request[_REMAINING] > ahead else 0.0
    return held


@compiled
def _has_room(request: Floats, projected: Floats, limit: float) -> bool:
    """Whether a request fits into the projected KV of an instance, at each point of the horizon."""
    fits = True
    for g in range(len(projected)):
        fits = fits and projected[g] + _share(request, g) <= limit
    return fits
