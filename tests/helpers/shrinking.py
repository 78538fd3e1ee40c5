"""A smaller run that fails as well: fewer requests, then whatever else is not needed for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Open
from framework.workload import Workload
from framework.workload.requests import chosen
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import Scenario

_LONGEST_S = 20.0


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario that was found in a few seconds of which `fails` still holds."""
    end_s = time.monotonic() + _LONGEST_S
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(scenario):
            if time.monotonic() > end_s:
                return scenario
            if fails(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def described(scenario: Scenario) -> str:
    """What of a scenario is not as it is by default, over a few lines."""
    parts = {"engine": scenario.engine, "rules": scenario.rules, "load": scenario.load}
    lines = [f"{name}: {_unlike_default(part)}" for name, part in parts.items()]
    lines += [f"pool: {_unlike_default(pool)}" for pool in scenario.cluster.pools]
    lines += [f"timing {name}: {_unlike_default(row)}" for name, row in scenario.timing.rows.items()]
    workload = scenario.workload
    columns = {one.name: getattr(workload, one.name) for one in fields(Workload)}
    lines += [f"{name}: {value.tolist()}" for name, value in columns.items() if isinstance(value, np.ndarray)]
    return "\n".join(lines)


def _unlike_default(part: Any) -> str:
    usual = {one.name: one.default for one in fields(part)}
    given = {name: getattr(part, name) for name in usual if getattr(part, name) != usual[name]}
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with less in them, those with the fewest requests first."""
    count = len(scenario.workload)
    for size in (count // 2, count // 4, 1):
        for start in range(0, count, size or 1):
            if 0 < size < count:
                kept = np.ones(count, np.bool_)
                kept[start : start + size] = False
                yield replace(scenario, workload=chosen(scenario.workload, kept))
    if scenario.workload.previous is not None:
        alone: dict[str, Any] = dict.fromkeys(("previous", "joins", "think_s", "turn", "trigger"))
        yield replace(scenario, workload=replace(scenario.workload, **alone))
    if scenario.workload.joins is not None:
        yield replace(scenario, workload=replace(scenario.workload, joins=None))
    yield from (replace(scenario, engine=engine) for engine in _nearer_to_default(scenario.engine, EngineConfig()))
    yield from (replace(scenario, rules=rules) for rules in _nearer_to_default(scenario.rules, Rules()))
    if scenario.load.clients is not None:
        yield replace(scenario, load=Open())
    for k, pool in enumerate(scenario.cluster.pools):
        if pool.instances > 1:
            pools = list(scenario.cluster.pools)
            pools[k] = replace(pool, instances=pool.instances - 1)
            yield replace(scenario, cluster=replace(scenario.cluster, pools=tuple(pools)))


_KEPT = ("kv_fraction", "kv_tokens", "block_tokens", "implementation", "log", "seed", "shares")


def _nearer_to_default(part: Any, usual: Any) -> Iterator[Any]:
    for one in fields(part):
        value = getattr(usual, one.name)
        if one.name not in _KEPT and getattr(part, one.name) != value:
            try:
                yield replace(part, **{one.name: value})
            except (InputError, ValueError):  # two options that need each other
                continue
