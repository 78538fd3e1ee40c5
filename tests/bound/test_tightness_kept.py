"""How tight the bound and its parts are, on drawn systems: as they were. That they are sound is tested elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from framework.bound.bound import any_plan, any_role, any_stream, bound, shortest_time_s, streams_apart
from framework.bound.demand import demand_of, most_started
from framework.bound.fluid import least_duration, most_good
from framework.bound.requests import least_needs, make_pools
from framework.bound.setting import Setting
from framework.metrics.slo import Slo
from tests.helpers.bounds import saturated, with_options
from tests.helpers.pinned import check, total

KEPT = Path(__file__).with_name("tightness.json")


def setting(seed: int) -> Setting:
    """A system where something is scarce, under limits from tight to none."""
    rng = np.random.default_rng(seed)
    scenario = saturated(rng) if seed % 2 else with_options(saturated(rng), rng)
    widen = (lambda cluster: cluster, any_plan, any_role, any_stream)[seed % 7 if seed % 7 < 4 else 0]
    limits = [None if rng.random() < 0.25 else float(10 ** rng.uniform(-1.0, 1.0)) for _ in range(4)]
    classes = {"a": {"ttft_s": limits[2]}, "b": {"tpot_s": limits[3]}} if rng.random() < 0.3 else {}
    names = tuple("ab"[k % 2] for k in range(len(scenario.workload)))
    workload = replace(scenario.workload, slo_class=names if classes else None)
    return Setting(
        *(workload, widen(scenario.cluster), scenario.model, scenario.timing, scenario.engine, scenario.load),
        slo=Slo(limits[0], limits[1], classes=classes),
    )


def figures(own: Setting) -> list[float]:
    found = bound(own)
    apart = replace(own, cluster=streams_apart(own.cluster, own.engine))
    pools = make_pools(apart)
    needs = least_needs(apart, pools)
    steps, instances = [pool.steps for pool in pools], np.array([float(pool.spec.instances) for pool in pools])
    every = needs.served
    values = [found.good, found.goodput, total(found.alone), sum(map(ord, found.limit)), shortest_time_s(own)]
    values += [total([pool.steps, pool.row, pool.holds]) for pool in pools]
    values += [
        total([pool.attention.prompt_s(needs.prefixes.cached, own.workload.input_tokens)])
        for pool in pools
        if pool.attention
    ]
    values += [total(getattr(needs, name)) for name in vars(needs)] + [total(needs.prefixes.held_by_others)]
    if apart.arrival_s is not None:
        values.append(most_started(apart, pools, needs))
    if every.any():
        demand = demand_of(apart, pools, needs, every)
        least = least_duration(demand, steps, instances)
        values += [total([vars(demand)]), least.rate, least.least_of_all_s()]
        for share in (0.3, 0.8):
            most = most_good(demand, steps, instances, share * least.least_of_all_s())
            values += [] if most is None else [most.rate, total(np.sort(most.costs))]
    return values


def test_bounds_are_as_tight_as_they_were() -> None:
    check(KEPT, {str(seed): figures(setting(seed)) for seed in range(20)})
