"""Random runs in which what is rare meets: tight memory beside each mechanism, changes of role with KV on the move."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from framework.engine.mechanisms.prefix_tiers import PrefixStores
from framework.system.cluster import Role
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow
from framework.workload import Open, Workload
from tests.helpers.scenarios import RowTiming, Scenario, dyadic, scenarios, sharing

_ROLES: tuple[Role, ...] = ("mixed", "mixed", "off", "off")


@functools.cache
@st.composite
def bursts(draw: st.DrawFn, longest_prompt: int, longest_output: int) -> Workload:
    """Requests without prefixes, many of which arrive at one instant."""
    count = draw(st.integers(8, 20))
    gap_s = draw(dyadic(1, 40, draw(st.sampled_from([-9, -6]))))
    waits = draw(st.lists(st.sampled_from([0, 0, 0, 1, 1, 3]), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(1, longest_prompt), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, longest_output), min_size=count, max_size=count))
    return Workload(gap_s * np.cumsum(waits), np.array(prompts), np.array(outputs))


@functools.cache
@st.composite
def pressed(draw: st.DrawFn) -> Scenario:
    """Too little memory for what decodes: requests are preempted while others join, migrate and wait for room."""
    scenario = draw(scenarios(exact=True))
    blocks = draw(st.sampled_from([1, 2, 4]))
    engine = replace(
        scenario.engine,
        block_tokens=blocks,
        kv_tokens=draw(st.sampled_from([88, 96, 120])),
        max_batch=draw(st.sampled_from([3, 4, 6, 12])),
        preemption=draw(st.sampled_from(["swap", "swap", "recompute"])),
        watermark=draw(st.sampled_from([0.0, 0.0625, 0.125, 0.25])),
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw(st.sampled_from(["decode_first", "decode_first", "unified", "mixed", "prefill_first"])),
    )
    pools = [
        replace(
            pool,
            instances=2,
            reserve_tokens=None,
            token_budget=None,
            max_batch=None,
            batching=None,
            parallelism=Parallelism(),
            gpu=replace(pool.gpu, memory_bytes=1e6),
        )
        for pool in scenario.cluster.pools
    ]
    rules = replace(
        scenario.rules,
        batching=draw(st.sampled_from(["", "", "mode"])),
        prioritize=draw(st.sampled_from(["", "dynamic"])),
        admit="",
        split_at="",
        tick_s=draw(dyadic(1, 40, -8)),
        moves=draw(st.integers(1, 3)),
        roles=draw(st.sampled_from([0, 0, 1])),
    )
    workload = draw(bursts(40, 40))
    cluster = replace(scenario.cluster, pools=tuple(pools))
    timing = scenario.timing
    if draw(st.integers(0, 2)) == 0:  # steps of all instances end at the same times
        timing = RowTiming({gpu: StepRow(base_s=2.0**-6, request_s=row.request_s) for gpu, row in timing.rows.items()})
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules, load=Open(), timing=timing)


@functools.cache
@st.composite
def staged(draw: st.DrawFn) -> Scenario:
    """Two or four pipeline stages, and often more decodes than those."""
    scenario = draw(scenarios(exact=True))
    stages = Parallelism(pp=draw(st.sampled_from([2, 4])))
    pools = [
        replace(
            pool,
            instances=1,
            max_batch=None,
            batching=None,
            chunk_schedule=None,
            parallelism=stages,
            gpu=replace(pool.gpu, memory_bytes=1e6),
        )
        for pool in scenario.cluster.pools
    ]
    engine = replace(
        scenario.engine,
        kv_tokens=draw(st.sampled_from([240, 480, 960])),
        max_batch=12,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw(st.sampled_from(["decode_first", "unified", "mixed", "prefill_first", "static"])),
    )
    rules = replace(scenario.rules, batching=draw(st.sampled_from(["", "budget"])), split_at="", admit="")
    workload, cluster = draw(bursts(60, 40)), replace(scenario.cluster, pools=tuple(pools))
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules, load=Open())


@functools.cache
@st.composite
def moving(draw: st.DrawFn) -> Scenario:
    """Prefixes are fetched over a slow link while instances change their roles."""
    scenario = draw(sharing())
    pools = [replace(pool, instances=2, role=role) for pool, role in zip(scenario.cluster.pools, _ROLES, strict=False)]
    link = replace(scenario.cluster.link, bandwidth_bytes_s=2.0 ** draw(st.integers(7, 11)))
    rules = replace(
        scenario.rules,
        fetch_prefix=draw(st.sampled_from(["most", "hash"])),
        tick_s=draw(dyadic(1, 20, -6)),
        roles=draw(st.sampled_from([1, 2, 3])),
    )
    engine = replace(scenario.engine, kv_tokens=draw(st.sampled_from([128, 240])), role_change_s=draw(dyadic(0, 8, -7)))
    return replace(
        scenario, cluster=replace(scenario.cluster, pools=tuple(pools), link=link), rules=rules, engine=engine
    )
