"""The number of good requests for which the cluster has time: a fluid linear program, and what its prices prove.

The program mixes steps freely. Its variables are the numbers of each kind of step that every pool takes within its
time; together these must supply the prefill tokens, the decodes and the tokens read that good requests need. Only the
prices of its approximate solution are used. By weak duality, any prices at which no step is worth more than its time
bound the number of good requests, since each brings 1 and costs what it needs. Prices of seconds are raised until this
holds for all steps, and costs are those of every single request (column generation, Lagrangian bound: Desrosiers,
Lübbecke, "A primer in column generation", 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framework.bound.program import Demand, Duals, Program
from framework.bound.steps import PoolSteps, Prices

Floats = NDArray[np.float64]

_ROUNDS, _CLOSE = 10, 1e-3  # rounds of solving; tolerance of the prices of seconds against the requirement of all steps
_FLAT = 1e-150
_GRID = 256  # lengths of prompts for which a price is computed


@dataclass(frozen=True)
class Fluid:
    """The bound that prices prove for a demand: `prices` of the supply of steps and their `duals`, `costs` (n,) of the
    requests, and `earned` (K + J,) a second by all instances of each pool and by each other resource.
    """

    prices: Prices
    duals: Duals
    costs: Floats
    earned: Floats

    @property
    def rate(self) -> float:
        """The worth of a second of the run."""
        return float(self.earned.sum())

    @property
    def free(self) -> float:
        """The number of good requests that cost none of the run's time."""
        return float(np.maximum(1 - self.costs, 0.0).sum())

    def most(self, duration_s: float) -> float:
        """The most good requests within `duration_s`."""
        return self.free + self.rate * duration_s

    def least_s(self, good: Floats) -> Floats:
        """The least time for `good` good requests."""
        lacking = np.maximum(good - self.free, 0.0)
        return lacking / self.rate if self.rate > 0 else np.where(lacking > 0, np.inf, 0.0)

    def least_of_all_s(self) -> float:
        """The least time for all requests, good or not."""
        return float(self.costs.sum() / self.rate) if self.rate > 0 else 0.0


def most_good(demand: Demand, pools: Sequence[PoolSteps], instances: Floats, duration_s: float) -> Fluid:
    """The best bound on good requests within `duration_s`, on `instances` (K,)."""
    program, best = Program(demand, pools, instances), None
    for _ in range(_ROUNDS):
        duals = program.solve(duration_s)
        found = proof(demand, pools, instances, duals)
        if best is None or found.most(duration_s) < best.most(duration_s):
            best = found
        if np.all(found.duals.second <= duals.second * (1 + _CLOSE)):
            break
        program.extend(duals, _CLOSE)
    assert best is not None
    return best


def least_duration(demand: Demand, pools: Sequence[PoolSteps], instances: Floats) -> Fluid:
    """The best bound on the time to serve all requests, good or not."""
    demand = replace(demand, pace_s=None)
    program, best = Program(demand, pools, instances), None
    for _ in range(_ROUNDS):
        duals = program.solve(None)
        found = proof(demand, pools, instances, duals)
        if best is None or found.least_of_all_s() > best.least_of_all_s():
            best = found
        if np.all(found.duals.second <= duals.second * (1 + _CLOSE)):
            break
        program.extend(duals, _CLOSE)
    assert best is not None
    return best


def proof(demand: Demand, pools: Sequence[PoolSteps], instances: Floats, duals: Duals) -> Fluid:
    """What the prices prove, after those of seconds are raised as high as all steps require."""
    prices = duals.of_steps(demand)
    duals = replace(duals, second=np.maximum(duals.second, [pool.price(pool.own(prices)) for pool in pools]))
    costs = _costs(demand, pools, prices, duals.second) + duals.use @ demand.uses
    if demand.pace_s is not None:
        costs = costs - duals.pace * demand.pace_s
    return Fluid(prices, duals, costs, np.concatenate([duals.second * instances, duals.use * demand.rates]))


def _costs(demand: Demand, pools: Sequence[PoolSteps], prices: Prices, second: Floats) -> Floats:
    """The least cost of each request's tokens, (n,), by steps and by seconds."""
    first = np.full(len(demand.tokens), np.inf)
    again, rising = first, first
    for k, pool in enumerate(pools):
        if pool.chunks is None:
            continue
        own = pool.own(prices)
        rising = np.minimum(rising, own.token)
        chunked, anew = own.token * demand.tokens, own.token * (demand.first_context - demand.known)
        lone = pool.chunks.whole & (demand.first_context + demand.decodes > pool.chunks.budget)
        if lone.any():
            whole = _whole(pool, demand.computed, second[k], own)
            chunked = np.where(demand.alone[k], whole, chunked)
            anew, rising = np.where(lone, np.minimum(anew, whole), anew), np.where(lone, 0.0, rising)
        first = np.minimum(first, chunked + _at(second[k], demand.extra_s[k]))
        again = np.minimum(again, anew + _at(second[k], demand.again_s[k]))
    decodes = prices.decode * demand.decodes + prices.context * demand.context
    if demand.recomputes:
        start = again - prices.decode - prices.context * demand.first_context
        decodes = decodes + _below_zero(start, rising - prices.context, demand.decodes)
    return first + decodes


def _at(second: float, time_s: Floats) -> Floats:
    """The cost of so much time; inf if it is impossible."""
    there = np.isfinite(time_s)
    return np.where(there, second * np.where(there, time_s, 0.0), np.inf)


def _below_zero(start: Floats, slope: Floats, count: Floats) -> Floats:
    """The sum of the negative numbers among start, start + slope, ..., `count` of them."""
    slope = np.where(np.abs(slope) > _FLAT, slope, _FLAT)
    zero = np.ceil(np.clip(-start / slope, 0.0, count))
    first, last = np.where(slope > 0, 0.0, zero), np.where(slope > 0, zero, count)
    sums = (last - first) * (start + 0.5 * slope * (first + last - 1))
    return np.minimum(sums, 0.0)


def _whole(pool: PoolSteps, tokens: Floats, second: float, prices: Prices) -> Floats:
    """The cost of a step for each prompt; each length uses the next shorter one whose cost was computed."""
    lengths = np.unique(tokens)
    lengths = lengths[:: -(-len(lengths) // _GRID)]
    costs = pool.whole_prompts(lengths, second, prices)
    return costs[np.searchsorted(lengths, tokens, side="right") - 1]
