"""How far the service of two tenants moves apart while both wait: one sweep over all that gives service."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled, inner

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Given(NamedTuple):
    """Service outside decode steps, in order of time (G,): when, to which tenant (-1: to none of them), how much."""

    time_s: Floats
    tenant: Ints
    amount: Floats


class Steps(NamedTuple):
    """Decode steps in order of their ends, (S,), and what they give.

    A step of instance i gives what the one before it there gave, and the changes that it opens: those of instance i are
    changes `change_at[i]` to `change_at[i + 1] - 1`, each at the `change_step`-th step there, in order, by `change`
    more to `change_tenant` (-1: to none of them).
    """

    end_s: Floats
    instance: Ints
    change_at: Ints  # (M + 1,)
    change_step: Ints
    change_tenant: Ints
    change: Floats


class Waits(NamedTuple):
    """When tenants begin (`opens`) and cease to have requests waiting, in order of time, of one time ends first."""

    time_s: Floats
    tenant: Ints
    opens: Flags


class _Now(NamedTuple):
    """What the sweep knows, of T tenants and M instances. A pair's range is in the lower triangle."""

    service: Floats  # (T,)
    waits: Flags  # (T,)
    low: Floats  # (T, T) of the difference of a pair's service since both wait
    high: Floats
    rates: Floats  # (M, T) what a step gives
    steps: Ints  # (M,) so far
    next_change: Ints  # (M,)


@compiled
def largest_difference(given: Given, steps: Steps, waits: Waits, tenants: int) -> float:
    """The largest range of the difference of two tenants' service while both wait, over all pairs of `tenants`.

    What is given at a time counts from that time on: a tenant that ceases to wait then does not see it, one that begins
    to wait then begins behind it.
    """
    instances = len(steps.change_at) - 1
    now = _Now(
        np.zeros(tenants),
        np.zeros(tenants, np.bool_),
        np.zeros((tenants, tenants)),
        np.zeros((tenants, tenants)),
        np.zeros((instances, tenants)),
        np.zeros(instances, np.int64),
        steps.change_at[:-1].copy(),
    )
    most, g, k, w = 0.0, 0, 0, 0
    while w < len(waits.time_s):
        time_s = waits.time_s[w]
        if g < len(given.time_s):
            time_s = min(time_s, given.time_s[g])
        if k < len(steps.end_s):
            time_s = min(time_s, steps.end_s[k])
        while w < len(waits.time_s) and waits.time_s[w] == time_s and not waits.opens[w]:
            now.waits[waits.tenant[w]] = False
            w += 1
        while g < len(given.time_s) and given.time_s[g] == time_s:
            if given.tenant[g] >= 0:
                now.service[given.tenant[g]] += given.amount[g]
            g += 1
        while k < len(steps.end_s) and steps.end_s[k] == time_s:
            _step(now, steps, steps.instance[k])
            k += 1
        most = max(most, _widen(now))
        while w < len(waits.time_s) and waits.time_s[w] == time_s:
            _open(now, waits.tenant[w])
            w += 1
    return most


@inner
def _step(now: _Now, steps: Steps, i: int) -> None:
    """Give what the next step of instance i gives."""
    change = now.next_change[i]
    while change < steps.change_at[i + 1] and steps.change_step[change] <= now.steps[i]:
        if steps.change_tenant[change] >= 0:
            now.rates[i, steps.change_tenant[change]] += steps.change[change]
        change += 1
    now.next_change[i] = change
    now.steps[i] += 1
    for tenant in range(len(now.service)):
        now.service[tenant] += now.rates[i, tenant]


@inner
def _widen(now: _Now) -> float:
    """Let the range of each pair that waits hold its present difference; the widest of them."""
    most = 0.0
    for one in range(len(now.service)):
        if not now.waits[one]:
            continue
        for other in range(one):
            if now.waits[other]:
                difference = now.service[one] - now.service[other]
                now.low[one, other] = min(now.low[one, other], difference)
                now.high[one, other] = max(now.high[one, other], difference)
                most = max(most, now.high[one, other] - now.low[one, other])
    return most


@inner
def _open(now: _Now, tenant: int) -> None:
    """Begin the ranges of a tenant's pairs."""
    now.waits[tenant] = True
    for other in range(len(now.service)):
        one, two = max(tenant, other), min(tenant, other)
        now.low[one, two] = now.high[one, two] = now.service[one] - now.service[two]
