"""The fluid linear program of the bound on goodput, for classes of similar requests and a growing set of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.bound.linear import minimised
from framework.bound.steps import PoolSteps, Prices, Steps

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

_PROMPT_CLASSES, _OUTPUT_CLASSES = 12, 8
_STARTS, _ADDED = 24, 16  # steps of a kind to begin with, and the most that a round adds
# Rows of the program; one for each pool and one for each use follow. `_AGAIN`: tokens of pools that only recompute
# prompts.
_TOKENS, _AGAIN, _DECODES, _CONTEXT, _PACE, _POOLS = range(6)


@dataclass(frozen=True)
class Demand:
    """What n requests need, each array (n,) unless stated otherwise.

    `tokens`, `decodes`, `context`: prefill tokens, decode steps, and the tokens that these read; the first of them
    reads `first_context`. `pace_s`: most time to spend in decode steps, None: no limit. `extra_s` (K, n): prefill
    seconds in pool k in addition to those of tokens, inf: not possible there. `alone` (K, n): the prompt of `computed`
    tokens has its own step in pool k. With preemption that `recomputes`, a later token may come from another prefill,
    of all tokens so far but the `known` ones, with `again_s` (K, n) in addition, inf: not possible there. `uses` (J,
    n): uses of other resources, of which there are `rates` (J,) a second; `lasting` (J,): time in decode steps also
    uses them.
    """

    tokens: Floats
    decodes: Floats
    context: Floats
    pace_s: Floats | None
    extra_s: Floats
    alone: Flags
    computed: Floats
    recomputes: bool
    known: Floats
    again_s: Floats
    uses: Floats
    rates: Floats
    lasting: Flags

    @property
    def first_context(self) -> Floats:
        return self.computed + 1.0


@dataclass(frozen=True)
class Duals:
    """Prices of a prefill token, of a decode, of a token that it reads, of a second of `Demand.pace_s`, of a second of
    an instance of each pool (K,), of each use (J,), and of a prefill token in pools that only recompute prompts.
    """

    token: float
    decode: float
    context: float
    pace: float
    second: Floats
    use: Floats
    again: float = 0.0

    def of_steps(self, demand: Demand) -> Prices:
        """The prices as steps see them: each second in which a request decodes uses the lasting resources."""
        pace = self.pace + float(self.use[demand.lasting].sum())
        return Prices(self.token, self.decode, self.context, pace, self.again)


class Program:
    """The program: how many requests can be served in a time, or the least time for all."""

    def __init__(self, demand: Demand, pools: Sequence[PoolSteps], instances: Floats) -> None:
        """`instances` (K,) of each pool."""
        self._demand, self._pools, self._uses = demand, pools, _POOLS + len(pools)
        self._time = np.zeros((self._uses + len(demand.rates), 1))
        self._time[_POOLS : self._uses, 0] = -instances
        self._time[self._uses :, 0] = -demand.rates
        self._class = _classes(demand)
        self._sizes = np.bincount(self._class).astype(np.float64)
        self._requests, self._class_of = self._columns(again=False)
        self._again, again_of = self._columns(again=True)
        self._most_again = (self._sizes * self._means(demand.decodes))[again_of] * demand.recomputes
        self._steps: list[Floats] = []
        for guess in _guesses(demand, pools):
            self._add(guess, _STARTS, None)

    def solve(self, duration_s: float | None) -> Duals:
        """The prices for serving the most requests within `duration_s` (None: all requests, in the least time)."""
        blocks = [self._requests, self._again, *self._steps, self._time]
        columns, classes = np.concatenate(blocks, axis=1), self._requests.shape[1]
        sign = 1.0 if duration_s is not None else -1.0
        members = np.zeros((len(self._sizes), columns.shape[1]))
        members[self._class_of, np.arange(classes)] = sign
        limits = np.concatenate([np.zeros(len(columns)), sign * self._sizes])
        rows = np.concatenate([columns, members])
        objective, bounds = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], 2))
        bounds[:, 1] = np.inf
        bounds[classes : classes + len(self._most_again), 1] = self._most_again
        if duration_s is None:
            objective[-1] = 1.0
        else:
            objective[:classes], bounds[-1] = -1.0, duration_s
        kept = np.ones(len(rows), bool)
        kept[_PACE] = self._demand.pace_s is not None
        found = minimised(objective, rows[kept], limits[kept], bounds)
        prices = np.zeros(len(rows))
        if found is None:  # if the solver gave up, any prices prove something; these state that time is no limit
            return Duals(0.0, 0.0, 0.0, 0.0, prices[_POOLS : self._uses], prices[self._uses : len(columns)])
        prices[kept] = np.maximum(-found.marginals, 0.0)
        token, again, decode, context, pace = (float(price) for price in prices[:_POOLS])
        second, use = prices[_POOLS : self._uses], prices[self._uses : len(columns)]
        return Duals(token, decode, context, pace, second, use, again)

    def extend(self, duals: Duals, slack: float) -> None:
        """Add steps whose worth exceeds their time by a share of more than `slack`."""
        self._add(duals.of_steps(self._demand), _ADDED, duals.second * (1 + slack))

    def _add(self, prices: Prices, most: int, second: Floats | None) -> None:
        for k, pool in enumerate(self._pools):
            own = pool.own(prices)
            for steps in pool.best(own):
                gain = steps.worth(own) / steps.time_s - prices.pace * steps.paced
                chosen = np.flatnonzero(np.isfinite(steps.time_s) & (gain > (-np.inf if second is None else second[k])))
                if len(chosen):
                    picked = np.linspace(0, len(chosen) - 1, min(most, len(chosen))).round().astype(np.int64)
                    picked = np.append(picked, gain[chosen].argmax())
                    self._steps.append(self._step_columns(k, steps, chosen[np.unique(picked)]))

    def _step_columns(self, k: int, steps: Steps, chosen: Integers) -> Floats:
        columns = np.zeros((len(self._time), len(chosen)))
        tokens = _AGAIN if self._pools[k].again_only else _TOKENS
        for row, supplied in ((tokens, steps.tokens), (_DECODES, steps.decodes), (_CONTEXT, steps.context)):
            columns[row] = -supplied[chosen]
        columns[_PACE] = columns[self._uses :][self._demand.lasting] = (steps.time_s * steps.paced)[chosen]
        columns[_POOLS + k] = steps.time_s[chosen]
        return columns

    def _columns(self, *, again: bool) -> tuple[Floats, Integers]:
        """A column for each class and each pool that may prefill it, with means of what requests need; and its class.

        `again`: the columns are not of requests, but of one token each that comes from another prefill instead of a
        decode.
        """
        demand, columns, class_of = self._demand, [], []
        needed = demand.tokens
        if again:
            reads = demand.context / np.maximum(demand.decodes, 1.0)
            needed = reads - demand.known
        for k, pool in enumerate(self._pools):
            if pool.chunks is None:
                continue
            own_s = demand.again_s[k] if again else demand.extra_s[k]
            there = np.isfinite(own_s)
            extra_s = np.where(there, own_s, 0.0)
            own = demand.alone[k] & (not pool.mixes)  # Otherwise steps that also decode would be missed.
            tokens = np.where(own, 0.0, needed)
            extra_s[own] += pool.chunks.step_s(demand.computed[own])
            column = np.zeros((len(self._time), len(self._sizes)))
            column[_AGAIN if pool.again_only else _TOKENS] = self._means(tokens)
            column[_POOLS + k] = self._means(extra_s)
            if again:
                column[_DECODES], column[_CONTEXT] = -1.0, -self._means(reads)
            else:
                column[_DECODES], column[_CONTEXT] = self._means(demand.decodes), self._means(demand.context)
                column[_PACE] = 0.0 if demand.pace_s is None else -self._means(demand.pace_s)
                for j, use in enumerate(demand.uses):
                    column[self._uses + j] = self._means(use)
            possible = np.bincount(self._class[~there], minlength=len(self._sizes)) == 0
            columns.append(column[:, possible])
            class_of.append(np.flatnonzero(possible))
        return np.concatenate(columns, axis=1), np.concatenate(class_of)

    def _means(self, values: Floats) -> Floats:
        return np.bincount(self._class, values, minlength=len(self._sizes)) / self._sizes


def _classes(demand: Demand) -> Integers:
    """A number for each group of similar prompts and outputs that can go to the same pools; every number is used."""
    numbers = np.zeros(len(demand.computed), np.int64)
    for values, count in ((demand.computed, _PROMPT_CLASSES), (demand.decodes, _OUTPUT_CLASSES)):
        edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
        numbers = count * numbers + np.searchsorted(edges, values, side="left")
    for there in np.isfinite(demand.again_s)[::-1]:  # numbered anew each time: there may be a hundred pools
        numbers = _ranks(2 * numbers + there)
    return _ranks(numbers)


def _ranks(numbers: Integers) -> Integers:
    """The rank of each of these small numbers among those present."""
    there = np.bincount(numbers) > 0
    return (np.cumsum(there) - 1)[numbers]


def _guesses(demand: Demand, pools: Sequence[PoolSteps]) -> list[Prices]:
    """First prices: of each single thing, and of all together."""
    token = max((pool.chunks.least_token_s for pool in pools if pool.chunks is not None), default=0.0)
    reads = max(float(demand.context.sum() / max(demand.decodes.sum(), 1.0)), 1.0)
    decodes = [pool.decodes for pool in pools if pool.decodes is not None]
    decode = max((float((one.pure_s[:, 0] / one.batches).min()) for one in decodes), default=0.0)
    return [
        Prices(token, 0.0, 0.0, 0.0, token),
        Prices(0.0, decode, 0.0, 0.0),
        Prices(0.0, 0.0, decode / reads, 0.0),
        Prices(token, decode, decode / reads, 0.0, token),
    ]
