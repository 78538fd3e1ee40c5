"""The largest difference between the service of two tenants while both wait: one sweep over all service."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled, inner

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Given(NamedTuple):
    """Service outside decode steps, in order of time (G,): when, to which tenant (-1: to none that count), how much."""

    time_s: Floats
    tenant: Ints
    amount: Floats


class Steps(NamedTuple):
    """Decode steps in order of their ends, (S,), and the service that they give.

    A step of instance i gives what the step before it gave, plus the changes that it opens. Those of instance i are
    changes `change_at[i]` to `change_at[i + 1] - 1`, each at the `change_step`-th step there, in order; each gives
    `change` more to `change_tenant` (-1: to none that count).
    """

    end_s: Floats
    instance: Ints
    change_at: Ints  # (M + 1,)
    change_step: Ints
    change_tenant: Ints
    change: Floats


class Waits(NamedTuple):
    """When tenants begin (`opens`) and cease to have requests waiting, in order of time; at one time ends come
    first.
    """

    time_s: Floats
    tenant: Ints
    opens: Flags


class _Now(NamedTuple):
    """The state of the sweep, for T tenants and M instances. The lower triangle holds a pair's range."""

    service: Floats  # (T,)
    waits: Flags  # (T,)
    low: Floats  # (T, T) lower end of the range of a pair's difference since both wait
    high: Floats
    rates: Floats  # (M, T) service that a step gives
    steps: Ints  # (M,) steps so far
    next_change: Ints  # (M,)


@compiled
def largest_difference(given: Given, steps: Steps, waits: Waits, tenants: int) -> float:
    """The largest range of the difference between two tenants' service while both wait, over all pairs of `tenants`.

    Service counts from the time at which it is given. A tenant that ceases to wait at that time does not see it; one
    that begins to wait then starts after it.
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
    """Give the service of instance i's next step."""
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
    """Extend the range of each waiting pair to its present difference; return the widest range."""
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
