"""Families of random runs in which many mechanisms are at work together, and what is rare meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.load import Open
from framework.system.cluster import ChunkSchedule, ClusterSpec, PoolSpec, Role
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.drawing import Draw
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import RowTiming, Scenario, prefix_stores, prefixes, scenarios, with_room, with_split

_ROLES: tuple[Role, ...] = ("mixed", "mixed", "off", "off")
ALONE: tuple[Role, ...] = ("mixed", "off", "off", "off")
_APART: tuple[Role, ...] = ("prefill", "decode", "decode", "off")


def with_pools(scenario: Scenario, pools: Sequence[PoolSpec]) -> ClusterSpec:
    return replace(scenario.cluster, pools=tuple(pools))


def bursts(draw: Draw, longest_prompt: int, longest_output: int) -> Workload:
    """Requests without prefixes, many of which arrive at one instant."""
    count, gap_s = draw.integer(8, 20), draw.dyadic(1, 40, draw.one([-9, -6]))
    waits = [draw.one([0, 0, 0, 1, 1, 3]) for _ in range(count)]
    prompts, outputs = draw.integers(1, longest_prompt, count), draw.integers(1, longest_output, count)
    return Workload(gap_s * np.cumsum(waits), np.array(prompts), np.array(outputs))


def without_prefixes(workload: Workload) -> Workload:
    """The same requests, nothing of whose prompts is shared."""
    return replace(workload, hash_ids=np.zeros(0, np.int64), hash_spans=None, hash_block_tokens=0)


def crowded(draw: Draw) -> Scenario:
    """Several prompts prefill at once, block by block, in too little memory."""
    scenario = scenarios(draw)
    workload, engine = scenario.workload, scenario.engine
    drawn = draw.integers(30, 60, len(workload))
    roomless = replace(engine, batching="unified", watermark=0.0, kv_tokens=80, token_budget=64, max_batch=8)
    if Draw(scenario.seed, len(workload), 13).chance(0.6):  # some of what comes without a token gives way at once
        roomless = replace(roomless, first_token="recomputed")
    sizes = [(16, 10, 5), (24, 12, 6), (12, 8), (20, 15, 10, 5)]
    pools = [
        replace(
            pool,
            instances=1,
            batching=None,
            token_budget=None,
            max_batch=None,
            reserve_tokens=76 if number and draw.chance(0.5) else None,
            chunk_schedule=ChunkSchedule(draw.one(sizes), draw.integer(8, 24)),
        )
        for number, pool in enumerate(scenario.cluster.pools)
    ]
    crowd = replace(
        scenario,
        workload=replace(
            without_prefixes(workload),
            input_tokens=np.array(drawn),
            output_tokens=np.minimum(workload.output_tokens, 16),
        ),
        engine=replace(roomless, prefix_cache=False, prefix_stores=PrefixStores()),
        cluster=with_pools(scenario, pools),
        rules=replace(scenario.rules, batching=draw.one(["", "", "mode"])),
    )
    return _in_line(Draw(scenario.seed, len(workload), 10), crowd)


def _in_line(draw: Draw, scenario: Scenario) -> Scenario:
    """In some of these long prompts go on, a few tokens a step, before others that decode or prefill behind them."""
    if draw.chance(0.4):
        return scenario
    count, longest = draw.integer(24, 32), draw.one([2, 30])  # tokens of an output
    prompts = [draw.one([draw.integer(1, 8), draw.integer(9, 24)]) for _ in range(count)]
    outputs = [1 if prompt > 8 and draw.chance(0.7) else draw.integer(1, longest) for prompt in prompts]
    arrival_s = draw.dyadic(8, 40, -8) * np.cumsum([draw.one([0, 0, 1, 2]) for _ in range(count)])
    urgency = np.arange(count) // draw.integer(3, 6)  # of those that come later
    workload = Workload(arrival_s, np.array(prompts), np.array(outputs), priority=urgency)
    engine = replace(
        scenario.engine,
        block_tokens=draw.one([1, 2, 4]),
        kv_tokens=draw.one([40, 48]),
        max_batch=draw.integer(5, 8),
        token_budget=draw.one([10, 20, 64]),
        step_order="admission",
        preemption=draw.one(["recompute", "recompute", "recompute", "swap"]),
        victim=draw.one(["latest", "least_urgent", "least_urgent", "least_urgent"]),
        longest_chunk=draw.integer(1, 6),
        admission_room=draw.one(["prompt", "chunk", "chunk"]),
        admission_wait_steps=0,
        speculation=Speculation() if draw.chance(0.7) else scenario.engine.speculation,
    )
    pools = [
        replace(pool, chunk_schedule=None, reserve_tokens=None, role=role)
        for pool, role in zip(scenario.cluster.pools, ALONE, strict=False)
    ]
    rules = replace(
        scenario.rules, batching="", roles=0, prioritize=draw.one(["hash", "priority"]), split_at="", admit=""
    )
    return replace(scenario, workload=workload, engine=engine, cluster=with_pools(scenario, pools), rules=rules)


def severed(draw: Draw, exact: bool = True) -> Scenario:
    """Most requests are cut and go on elsewhere, in little memory."""
    scenario = scenarios(draw, exact)
    prompts = draw.integers(8, 60, draw.integer(8, 16))
    outputs, gap_s = draw.integers(1, 40, len(prompts)), draw.amount(exact, 1, 40, draw.one([-8, -5]))
    pools = [replace(pool, instances=2, reserve_tokens=None) for pool in scenario.cluster.pools]
    rules = replace(
        scenario.rules,
        split_at=draw.one(["prompt", "output", "both"]),
        route_prefill=draw.one(["hash", "hash", "compiled_turns"]),
        route_decode=draw.one(["hash", "kv_tokens", "", "compiled_blocks"]),
        batching=draw.one(["", "", "mode"]),
        prioritize=draw.one(["", "hash", "dynamic", "predicted"]),
    )
    engine = replace(
        scenario.engine,
        kv_tokens=draw.one([None, 112, 160]),
        watermark=0.0,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
    )
    arrival_s = gap_s * np.arange(len(prompts), dtype=np.float64)
    workload = Workload(arrival_s, np.array(prompts), np.array(outputs))
    return replace(scenario, workload=workload, engine=engine, cluster=with_pools(scenario, pools), rules=rules)


def sharing(draw: Draw) -> Scenario:
    """Prompts of a few families, more than memory can keep, with stores below it and prefixes sent ahead."""
    scenario = scenarios(draw)
    count, families, block_tokens = draw.integer(14, 24), draw.integer(1, 3), draw.one([1, 2, 4, 8])
    size = block_tokens * draw.one([1, 1, 2])
    prompts, names = draw.integers(20, 60, count), []
    for k, prompt in enumerate(prompts):
        family, blocks = draw.integer(1, families), -(-prompt // size)
        common = draw.integer(2 * blocks // 3, blocks)
        names.append([100 * family + j for j in range(common)] + [1000 + 100 * k + j for j in range(blocks - common)])
    gap_s, waits = draw.dyadic(1, 40, draw.one([-8, -6, -5, -4])), [draw.one([0, 0, 1, 1, 3]) for _ in range(count)]
    workload = Workload(
        gap_s * np.cumsum(waits),
        np.array(prompts),
        np.array(draw.integers(1, draw.one([8, 40]), count)),
        **prefixes(names, size),
    )
    engine = replace(
        scenario.engine,
        block_tokens=block_tokens,
        prefix_cache=True,
        prefix_stores=prefix_stores(draw, exact=True),
        prefix_unit=Draw(scenario.seed, count, 25).one(["trace", "trace", "engine"]),
        kv_tokens=draw.one([None, 80, 96, 96]),
        preemption=draw.one(["swap", "swap", "recompute"]),
        watermark=draw.one([0.0, 0.0, 0.0625]),
        batching=draw.one(["decode_first", "unified", "concurrent", scenario.engine.batching]),
    )
    rules = replace(
        scenario.rules,
        route_prefill=draw.one(["hash", "turn", "turn", "cached"]),
        admit="",
        prioritize=draw.one(["", "hash", "dynamic"]),
        fetch_prefix=draw.one(["most", "most", "most", "hash"]),
    )
    pools = [
        replace(pool, instances=min(families, 2), reserve_tokens=draw.one([None, 76, 76]) if number else None)
        for number, pool in enumerate(scenario.cluster.pools)
    ]
    cluster = with_pools(scenario, pools)
    return replace(scenario, workload=workload, engine=engine, rules=rules, cluster=cluster, load=Open())


def fetching(draw: Draw) -> Scenario:
    """Prefixes of a few families are fetched by instances that take requests in turn, mostly in little memory."""
    scenario = sharing(draw)
    pools = [replace(pool, instances=2) for pool in scenario.cluster.pools]
    stores = scenario.engine.prefix_stores  # of a tier that all share there is nothing to fetch
    own = {name: replace(tier, shared=tier.shared and draw.chance(0.2)) for name, tier in stores.tiers.items()}
    engine = replace(
        scenario.engine,
        kv_tokens=draw.one([80, 80, 80, 96]),
        preemption=draw.one(["swap", "swap", "recompute"]),
        prefix_stores=replace(stores, tiers=own),
    )
    rules = replace(scenario.rules, route_prefill=draw.one(["turn", "hash"]), fetch_prefix="most")
    return replace(scenario, cluster=with_pools(scenario, pools), engine=engine, rules=rules)


def doubled(draw: Draw) -> Scenario:
    """Two requests come at a time, of which the second has more of the first one's prompt, and stays for longer.

    Both compute what they share, for neither has found it: the cache has the first one's blocks of that, which a third
    evicts once the first has ended, and what comes behind them from the second. That is how a fourth finds them.
    """
    scenario = sharing(draw)
    size, rounds, kv_tokens = draw.one([1, 2]), draw.integer(4, 7), draw.one([48, 56, 64])
    gap_s = draw.dyadic(4, 16, -5)
    names, outputs, arrivals = [], [], []
    for k in range(rounds):
        common, more = draw.integer(1, 3), draw.integer(1, 3)
        other = kv_tokens // size - common - more - draw.integer(1, 1 + 4 // size)  # about all that is left
        start = 1000 * k
        names += [
            [*range(start, start + common), start + 100],
            [*range(start, start + common + more), start + 200],
            [*range(start + 300, start + 300 + other), start + 400],
            [*range(start, start + common + more), start + 500],
        ]
        outputs += [draw.integer(1, 2), draw.integer(12, 24), draw.integer(1, 2), draw.integer(1, 4)]
        arrivals += [10 * k, 10 * k, 10 * k + 1, 10 * k + 2]
    workload = Workload(
        gap_s * np.array(arrivals, np.float64),
        np.array([size * (len(row) - 1) + 1 for row in names]),
        np.array(outputs),
        **prefixes(names, size),
    )
    engine = replace(
        scenario.engine,
        block_tokens=size,
        kv_tokens=kv_tokens,
        watermark=0.0,
        token_budget=96,
        max_batch=8,
        batching=draw.one(["unified", "decode_first", "mixed"]),
        admission_wait_steps=0,
        speculation=Speculation(),
    )
    pools = [
        replace(
            with_split(pool, scenario.model, pp=1, dp=1),
            instances=1,
            role=role,
            token_budget=None,
            max_batch=None,
            batching=None,
            reserve_tokens=None,
            chunk_schedule=None,
        )
        for pool, role in zip(scenario.cluster.pools, ALONE, strict=False)
    ]
    cluster, rules = with_pools(scenario, pools), Rules(scenario.rules.seed, prioritize=draw.one(["", "hash"]))
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules)


def shared(draw: Draw, exact: bool = True) -> Scenario:
    """Prefills run concurrently with decodes on all instances, most of the time, in little memory."""
    scenario = scenarios(draw, exact)
    pools = [
        replace(pool, batching=draw.one([None, None, "unified"]), instances=1, reserve_tokens=None)
        for pool in scenario.cluster.pools
    ]
    scenario = replace(
        scenario,
        engine=replace(scenario.engine, batching="concurrent", kv_tokens=draw.one([80, 96, 160, 320])),
        cluster=with_pools(scenario, pools),
        rules=replace(scenario.rules, batching=draw.one(["", "budget", "mode", "mode"])),
    )
    return slow_prefills(draw, scenario) if exact and draw.chance(0.5) else scenario


def slow_prefills(draw: Draw, scenario: Scenario) -> Scenario:
    """Many that decode for long in too little memory, with prefills that take as long as many of their steps."""
    engine = replace(
        scenario.engine,
        block_tokens=draw.one([1, 2, 4]),
        kv_tokens=draw.one([80, 96]),
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        watermark=0.0,
        token_budget=draw.one([16, 64]),
        max_batch=12,
        admission_wait_steps=0,
    )
    rows = scenario.timing.rows
    timing = {gpu: replace(row, per_prefill_token_s=draw.dyadic(8, 32, -6)) for gpu, row in rows.items()}
    pools = [
        replace(pool, token_budget=None, max_batch=None, batching=None, chunk_schedule=None)
        for pool in scenario.cluster.pools
    ]
    rules = replace(scenario.rules, batching=draw.one(["", "budget", "mode"]), split_at="", admit="")
    cluster = with_pools(scenario, pools)
    workload = bursts(draw, 16, 60)
    return replace(
        scenario,
        workload=workload,
        engine=engine,
        cluster=cluster,
        rules=rules,
        timing=RowTiming(timing),
        load=Open(),
    )


def pressed(draw: Draw) -> Scenario:
    """Too little memory for what decodes: requests are preempted while others join, migrate and wait for room."""
    scenario = scenarios(draw)
    engine = replace(
        scenario.engine,
        block_tokens=draw.one([1, 2, 4]),
        kv_tokens=draw.one([None, 88, 96, 120]),
        max_batch=draw.one([2, 3, 4, 6, 12]),
        preemption=draw.one(["swap", "swap", "swap", "recompute"]),
        watermark=draw.one([0.0, 0.0625, 0.125, 0.125]),
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw.one(["decode_first", "decode_first", "unified", "mixed", "prefill_first"]),
    )
    pools = [
        replace(
            with_room(with_split(pool, scenario.model, pp=1, dp=1), scenario.model, 160 if number else 88),
            instances=2,
            reserve_tokens=60 if number and draw.chance(0.8) else None,
            token_budget=None,
            max_batch=None,
            batching=None,
        )
        for number, pool in enumerate(scenario.cluster.pools)
    ]
    if len(pools) > 1 and draw.chance(1 / 3):  # where few may decode, and copies that wait take each place that is left
        pools = [replace(pool, role=role, instances=1) for pool, role in zip(pools, _APART, strict=False)]
    link = scenario.cluster.link
    if draw.chance(0.75):  # copies that take many steps
        link = replace(link, bandwidth_bytes_s=2.0 ** draw.integer(8, 10))
        pools = [replace(pool, link_bytes_s=None) for pool in pools]
    rules = replace(
        scenario.rules,
        batching=draw.one(["", "", "mode"]),
        prioritize=draw.one(["", "dynamic", "dynamic"]),
        admit="",
        split_at="",
        tick_s=draw.dyadic(2, 24, -8),
        moves=draw.integer(4, 6),
        roles=draw.one([0, 0, 0, 1]),
    )
    timing = scenario.timing
    if draw.chance(1 / 3):  # steps of all instances end at the same times
        timing = RowTiming({gpu: StepRow(base_s=2.0**-6, request_s=row.request_s) for gpu, row in timing.rows.items()})
    return replace(
        scenario,
        workload=bursts(draw, 40, 40),
        engine=engine,
        cluster=ClusterSpec(tuple(pools), link),
        rules=rules,
        load=Open(),
        timing=timing,
    )


def staged(draw: Draw) -> Scenario:
    """Two or four pipeline stages, and often more decodes than those."""
    scenario, stages = scenarios(draw), draw.one([2, 4])
    pools = [
        replace(
            with_split(pool, scenario.model, pp=stages, dp=1),
            instances=1,
            reserve_tokens=76 if number and draw.chance(0.5) else None,
            max_batch=None,
            batching=None,
            chunk_schedule=None,
        )
        for number, pool in enumerate(scenario.cluster.pools)
    ]
    engine = replace(
        scenario.engine,
        kv_tokens=draw.one([120, 120, 240, 960]),
        max_batch=12,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw.one(["decode_first", "unified", "mixed", "prefill_first", "static"]),
    )
    rules = replace(
        scenario.rules, batching=draw.one(["", "budget"]), split_at="", admit="", prioritize=draw.one(["", "hash"])
    )
    workload, cluster = bursts(draw, 60, 40), with_pools(scenario, pools)
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules, load=Open())


def moving(draw: Draw) -> Scenario:
    """Prefixes are fetched over a slow link while instances change their roles."""
    scenario = fetching(draw)
    pools = [replace(pool, role=role) for pool, role in zip(scenario.cluster.pools, _ROLES, strict=False)]
    link = replace(scenario.cluster.link, bandwidth_bytes_s=2.0 ** draw.integer(7, 11))
    rules = replace(scenario.rules, tick_s=draw.dyadic(3, 24, -6), roles=draw.integer(1, 3))
    engine = replace(scenario.engine, role_change_s=draw.dyadic(0, 8, -7))
    return replace(scenario, cluster=ClusterSpec(tuple(pools), link), rules=rules, engine=engine)
