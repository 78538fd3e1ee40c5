"""How tight the bound and its parts are, on drawn systems: as they were. That they are sound is tested elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from framework.bound.bound import _search, any_plan, any_role, any_stream, bound, shortest_time_s, streams_apart
from framework.bound.demand import demand_of, most_started
from framework.bound.fluid import Fluid, least_duration, most_good
from framework.bound.prefills import no_prefixes, shared_blocks, shared_prefixes
from framework.bound.requests import _LoneDecodes, least_needs, make_pools
from framework.bound.setting import Setting
from framework.bound.steps import Prices
from framework.bound.tables import Extent, least_steps
from framework.load import Window
from framework.metrics.slo import Slo
from framework.system.cluster import PoolSpec
from framework.workload import Workload, consecutive
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.bounds import random_row, retimed, saturated, server, with_options
from tests.helpers.drawing import Draw
from tests.helpers.families import Family
from tests.helpers.pinned import check, total
from tests.helpers.pulled_family import pulled
from tests.helpers.scenarios import MODES

HERE = Path(__file__).parent
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
    search, length_s = _search(own), 0.7 * values[4]
    window = Window(0.0, length_s, "half of it", 1)
    counted = np.arange(len(own.workload)) % 3 > 0
    for one in (
        *(search.of_run(), search.of_load(None, values[4]), search.of_load(None, 0.0)),
        *(search.of_load(window, values[4]), search.of_window(length_s, counted)),
    ):
        values += [one.good, one.goodput, sum(map(ord, one.limit))]
    if apart.arrival_s is not None:
        values.append(most_started(apart, pools, needs))
    if every.any():
        demand = demand_of(apart, pools, needs, every)
        least = least_duration(demand, steps, instances)
        values += [total([vars(demand)]), least.rate, least.least_of_all_s()]
        for share in (0.3, 0.8):
            most = most_good(demand, steps, instances, share * least.least_of_all_s())
            values += [most.rate, total(np.sort(most.costs))]
    return values


def of_family(family: Family, seed: int) -> Setting:
    """A small run of many options, sessions among them, under limits of an SLO."""
    rng = np.random.default_rng(seed)
    scenario = retimed(family(Draw(seed)), rng)
    limits = [None if rng.random() < 0.3 else float(10 ** rng.uniform(-0.5, 1.5)) for _ in range(2)]
    return Setting(
        *(scenario.workload, scenario.cluster, scenario.model, scenario.timing, scenario.engine, scenario.load),
        slo=Slo(limits[0], limits[1]),
    )


def test_bounds_are_as_tight_as_they_were() -> None:
    found = {str(seed): figures(setting(seed)) for seed in range(18)}
    for family in (ahead, pulled, early):
        found |= {f"{family.__name__} {seed}": figures(of_family(family, seed)) for seed in range(100, 106)}
    check(KEPT, found, rel=1e-7)


def prices(rng: np.random.Generator) -> Prices:
    """Some of them 0."""
    return Prices(*(float(10 ** rng.uniform(-2, 2) * (rng.random() < 0.7)) for _ in range(5)))


def test_least_steps_are_as_they_were() -> None:
    """Of drawn pools, small and large, with ranks and stages, and what they are worth at drawn prices."""
    found = {}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        row, low = random_row(rng), int(rng.integers(2, 20))
        batch = int(rng.choice([1, 2, 5, 60, 300, 900]))
        stages, ranks = ((1, 1), (1, 1), (2, 1), (1, 3))[seed % 4]
        extent = Extent(
            40, int(rng.choice([60, 400, 9000])), batch, low, low + int(rng.integers(0, 100)), 5, stages, ranks
        )
        pool = PoolSpec("pool", ("mixed", "prefill", "decode")[seed % 3], 1, server("gpu", 100))
        mode = MODES[rng.integers(len(MODES))]
        steps = least_steps(pool, row, extent, int(rng.integers(1, 200)), mode, again=seed % 2 == 0)
        values = [total([steps])]
        for _ in range(4):
            own = prices(rng)
            second = steps.price(own)
            values += [second, total([one.worth(own) for one in steps.best(own)])]
            values += [total([vars(one) for one in steps.best(own)])]
            if 0 < second < np.inf:
                values += [sum(map(ord, steps.scarce(own, share * second) or "")) for share in (0.5, 1.0)]
            if steps.chunks is not None:
                values.append(total(steps.whole_prompts(np.array([1.0, 7.0, 33.0, 250.0]), second, own)))
        if steps.chunks is not None:
            tokens = np.array([1.0, 9.0, 60.0, 199.0, 201.0, 999.0])
            values += [total(steps.chunks.prompts_s(tokens)), steps.chunks.least_token_s]
        found[str(seed)] = values
    check(HERE / "least_steps.json", found)


def test_what_prefixes_save_is_as_it_was() -> None:
    """Of workloads whose blocks are shared, by trace blocks and by those of the engine."""
    found = {}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        counts = rng.integers(0, 6, 20)
        previous = np.array([rng.integers(-1, r) if r and rng.random() < 0.5 else -1 for r in range(20)])
        own = Workload(
            np.sort(rng.uniform(0.0, 9.0, 20)),
            counts * 8 + rng.integers(1, 9, 20),
            rng.integers(1, 30, 20),
            hash_ids=rng.integers(0, 7, counts.sum()),
            hash_spans=consecutive(counts),
            hash_block_tokens=8,
            previous=previous,
            think_s=np.zeros(20),
        )
        due_s = None if seed % 3 == 0 else own.arrival_s + rng.uniform(0.0, 3.0, 20)
        values = []
        for prefixes in (shared_prefixes(own, due_s), shared_blocks(own, due_s, 4), no_prefixes(own)):
            charged = prefixes.charged(lambda tokens: 1e-3 * tokens + 1e-5 * tokens**2, own.input_tokens)
            values += [total([vars(prefixes)]), total(prefixes.held_by_others), total(charged)]
        found[str(seed)] = values
    check(HERE / "prefixes.json", found)


def test_a_good_request_is_free_up_to_some_and_takes_time_beyond() -> None:
    fluid = Fluid(Prices(1.0, 0.0, 0.0, 0.0), cast(Any, None), np.array([0.0, 0.0, 1.0, 3.0]), np.array([0.5, 1.5]))
    assert (fluid.rate, fluid.least_of_all_s()) == (2.0, 2.0)
    good = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert fluid.least_s(good).tolist() == [max(0.0, (g - fluid.free) / fluid.rate) for g in good]


def test_decodes_alone_take_their_steps_or_are_computed_again() -> None:
    """Contexts of 3 to 6 tokens take 1, 2, 3 and 4 s; again each takes 2.5 s."""
    steps = SimpleNamespace(decodes=SimpleNamespace(contexts=np.array([[1.0, 9.0]]), pure_s=np.array([[-1.0, 7.0]])))
    lone = _LoneDecodes(cast(Any, [SimpleNamespace(steps=steps)]), np.array([2, 3]), np.array([4, 1]))
    context, tokens = np.array([3, 4, 3, 6]), np.array([4, 2, 0, 1])
    assert lone.total_s(context, tokens, np.full(4, np.inf)).tolist() == [10.0, 5.0, 0.0, 4.0]
    assert lone.total_s(context, tokens, np.full(4, 2.5)).tolist() == [1 + 2 + 2.5 + 2.5, 2 + 2.5, 0.0, 2.5]
