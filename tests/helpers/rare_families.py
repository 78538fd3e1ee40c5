"""Families of random runs, each of which repeats one thing that the broad ones hardly reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.durations.speculation import Speculation
from framework.engine.kv.kv_compression import KvFormat
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.engine.parallel.sm_sharing import Sharing
from framework.load import Open
from framework.system.cluster import ClusterSpec, Role
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.broad_families import ALONE, bursts, pressed, shared, slow_prefills, with_pools, without_prefixes
from tests.helpers.drawing import Draw
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import RowTiming, Scenario, prefixes, scenarios, with_room, with_split


def migrating(draw: Draw) -> Scenario:
    """Many migrate at once over slow links, between instances that are asked for little else."""
    scenario = scenarios(draw)
    pools = [
        replace(
            with_split(pool, scenario.model, pp=1, dp=1),
            instances=draw.integer(2, 3),
            reserve_tokens=None,
            token_budget=None,
            max_batch=None,
            batching=None,
            link_bytes_s=None,
        )
        for pool in scenario.cluster.pools
    ]
    size, count = draw.one([1, 2, 4]), draw.integer(12, 24)
    prompts = draw.integers(1, 30, count)
    names = [[100 * k + j for j in range(-(-prompt // size))] for k, prompt in enumerate(prompts)]
    arrival_s = draw.dyadic(1, 20, -7) * np.cumsum([draw.one([0, 0, 1, 2]) for _ in range(count)])
    outputs = np.array(draw.integers(4, 50, count))
    workload = Workload(arrival_s, np.array(prompts), outputs, **prefixes(names, size))
    engine = replace(
        scenario.engine,
        block_tokens=size,
        kv_tokens=draw.one([64, 88, 112, 240]),
        max_batch=12,
        watermark=draw.one([0.0, 0.0625]),
        prefix_cache=draw.chance(0.7),
        prefix_stores=PrefixStores(),
        batching=draw.one(["decode_first", "unified", "mixed"]),
        speculation=Speculation(),
    )
    rules = Rules(scenario.rules.seed, moves=draw.integer(4, 12), tick_s=draw.dyadic(4, 24, -7))
    link = replace(scenario.cluster.link, bandwidth_bytes_s=2.0 ** draw.integer(8, 11), latency_s=0.0)
    cluster = ClusterSpec(tuple(pools), link)
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules, load=Open())


def streams(draw: Draw) -> Scenario:
    """Instances change roles and modes in the midst of prefill steps, with decodes or not."""
    scenario = slow_prefills(draw, shared(draw))
    engine = replace(
        scenario.engine,
        batching=draw.one(["concurrent", "concurrent", "decode_first", "unified"]),
        admission_wait_steps=draw.one([0, 2, 5]),
        role_change_s=draw.dyadic(1, 40, -7),
        speculation=Speculation(),
        token_budget=draw.one([8, 16, 64]),
    )
    rules = replace(
        scenario.rules,
        batching="",
        route_prefill="hash",
        tick_s=draw.one([0.0, draw.dyadic(3, 40, -6)]),
        roles=draw.one([1, 2, 3]),
        budgets=draw.chance(0.5),
        moves=0,
        split_at="",
    )
    pools = [
        replace(with_split(pool, scenario.model, pp=1, dp=1), rank_choice="even", instances=draw.integer(1, 2))
        for pool in scenario.cluster.pools
    ]
    timing = {
        gpu: replace(row, per_prefill_token_s=draw.dyadic(1, 16, draw.one([-9, -7, -5])))
        for gpu, row in scenario.timing.rows.items()
    }
    cluster = with_pools(scenario, pools)
    return replace(scenario, engine=engine, rules=rules, cluster=cluster, timing=RowTiming(timing))


def trickling(draw: Draw) -> Scenario:
    """Several prefill steps within a step of decodes empty a queue, whose admission waits for others to come."""
    scenario = streams(draw)
    count = draw.integer(20, 40)
    arrival_s = draw.dyadic(4, 16, -7) * np.cumsum(draw.integers(0, 3, count))
    workload = Workload(arrival_s, np.array(draw.integers(1, 24, count)), np.array(draw.integers(4, 30, count)))
    engine = replace(
        scenario.engine,
        kv_tokens=960,
        batching="concurrent",
        max_batch=24,
        admission_wait_steps=draw.integer(1, 3),
        token_budget=draw.one([8, 16, 24]),
    )
    rules = Rules(scenario.rules.seed, route_prefill="hash")
    pools = [replace(pool, instances=1, role=role) for pool, role in zip(scenario.cluster.pools, ALONE, strict=False)]
    row = StepRow(base_s=2.0**-7, per_prefill_token_s=2.0**-9, per_sequence_s=draw.dyadic(2, 12, -7))
    return replace(
        scenario,
        workload=workload,
        engine=engine,
        rules=rules,
        cluster=with_pools(scenario, pools),
        timing=RowTiming(dict.fromkeys(scenario.timing.rows, row)),
    )


def unequal(draw: Draw) -> Scenario:
    """What is preempted where nobody prefills may be too large for the instance that it is sent to."""
    scenario = pressed(draw)
    pool = replace(scenario.cluster.pools[0], instances=1, reserve_tokens=None)
    sizes: tuple[tuple[str, Role, int], ...] = (
        ("large", "prefill", 160),
        ("small", "prefill", 40),
        ("decodes", "decode", 88),
    )
    pools = [replace(with_room(pool, scenario.model, tokens), name=name, role=role) for name, role, tokens in sizes]
    engine = replace(
        scenario.engine, kv_tokens=None, preemption="recompute", recompute="routed", watermark=0.0, max_batch=12
    )
    rules = replace(scenario.rules, route_prefill="hash", roles=0, moves=0)
    return replace(scenario, engine=engine, rules=rules, cluster=with_pools(scenario, pools))


def many(draw: Draw) -> Scenario:
    """So many instances that the compiled engine keeps an index of the least loaded."""
    scenario = scenarios(draw)
    first = replace(
        with_split(scenario.cluster.pools[0], scenario.model, pp=1, dp=1),
        role="mixed",
        instances=draw.integer(33, 36),
        max_batch=None,
        batching=None,
    )
    count = draw.integer(60, 120)
    waits = [draw.one([0, 0, 0, 1, 2]) for _ in range(count)]
    workload = Workload(
        draw.dyadic(1, 20, -9) * np.cumsum(waits),
        np.array([draw.one([1, 8, 8, 16]) for _ in range(count)]),
        np.array(draw.integers(1, 20, count)),
    )
    engine = replace(
        scenario.engine,
        kv_tokens=draw.one([80, 240]),
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw.one(["decode_first", "unified", "prefill_first", "mixed"]),
    )
    roles = draw.one([0, 0, 2])
    rules = Rules(scenario.rules.seed, route_prefill="", tick_s=draw.dyadic(3, 24, -6) if roles else 0.0, roles=roles)
    cluster = replace(scenario.cluster, pools=(first,))
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules, load=Open())


def scattered(draw: Draw) -> Scenario:
    """As many instances, where prompts are split, most often to go on where they are or where nothing waits."""
    scenario = many(draw)
    return replace(scenario, rules=replace(scenario.rules, split_at=draw.one(["prompt", "both"])))


def ranked(draw: Draw) -> Scenario:
    """Data-parallel ranks with unlike requests, which decode for long without a decision between."""
    scenario, ranks = scenarios(draw), draw.one([2, 4])
    pools = [
        replace(
            with_split(pool, scenario.model, pp=1, dp=ranks),
            instances=1,
            rank_choice=draw.one(["kv", "requests", "requests", "round_robin"]),
            max_batch=None,
            batching=None,
            reserve_tokens=None,
            chunk_schedule=None,
        )
        for pool in scenario.cluster.pools
    ]
    engine = replace(
        scenario.engine,
        kv_tokens=draw.one([160, 960, 960]),
        max_batch=12,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw.one(["decode_first", "unified", "mixed", "prefill_first"]),
        speculation=draw.one([Speculation(), Speculation(), scenario.engine.speculation]),
    )
    rows = {
        gpu: replace(row, per_context_token_s=draw.dyadic(1, 15, -13), per_sequence_s=draw.some(True, 1, 7, -9))
        for gpu, row in scenario.timing.rows.items()
    }
    rules = Rules(scenario.rules.seed, route_prefill="hash", prioritize=draw.one(["", "hash"]))
    return replace(
        scenario,
        workload=bursts(draw, 60, 80),
        engine=engine,
        cluster=with_pools(scenario, pools),
        rules=rules,
        timing=RowTiming(rows),
        load=Open(),
    )


def rationed(draw: Draw) -> Scenario:
    """Short requests use up what their rank has of the token budget, with long ones of another rank: who comes waits
    until it is the other that holds less.
    """
    scenario = ranked(draw)
    pools = [
        replace(pool, token_budget=pool.parallelism.dp * draw.one([2, 3, 4]), rank_choice=draw.one(["kv", "requests"]))
        for pool in scenario.cluster.pools
    ]
    workload = scenario.workload
    prompts = [draw.one([1, 2, 3, 40]) for _ in range(len(workload))]
    engine = replace(scenario.engine, kv_tokens=960, batching=draw.one(["decode_first", "unified"]))
    outputs = np.array(draw.integers(20, 80, len(workload)))
    return replace(
        scenario,
        workload=replace(workload, input_tokens=np.array(prompts), output_tokens=outputs),
        cluster=with_pools(scenario, pools),
        engine=engine,
    )


def clocked(draw: Draw) -> Scenario:
    """All times are multiples of one: arrivals, later turns, steps, copies, ticks and changes of role meet."""
    scenario, step_s = scenarios(draw), 2.0**-5
    workload = scenario.workload
    arrival_s = step_s * np.cumsum([draw.one([0, 0, 1, 2]) for _ in range(len(workload))])
    think_s = None if workload.think_s is None else step_s * np.array(draw.integers(0, 3, len(workload)), np.float64)
    per_sequence_s = draw.one(
        [0.0, step_s]
    )  # then drafts that are all right are worth what they cost, whatever the depth
    row = StepRow(base_s=step_s - per_sequence_s, per_sequence_s=per_sequence_s, prefill_step_s=draw.one([0.0, step_s]))
    pools = [
        replace(pool, link_bytes_s=None, gpu=replace(pool.gpu, pcie_bytes_s=2.0**9)) for pool in scenario.cluster.pools
    ]
    speculation = scenario.engine.speculation
    if speculation.most:
        speculation = replace(speculation, acceptance=draw.one([0.5, 1.0]), draft_cost=0.0)
    engine = replace(
        scenario.engine,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        kv_compression=KvFormat(),
        sharing=Sharing(50, {4: 1.0, 100: 1.0}, {4: 1.0, 100: 1.0}, contention=False),
        speculation=speculation,
        batching=draw.one(["concurrent", scenario.engine.batching]),
        role_change_s=draw.integer(0, 2) * step_s,
        start_s=draw.integer(0, 2) * step_s,
    )
    link = replace(
        scenario.cluster.link, bandwidth_bytes_s=2.0 ** draw.integer(9, 11), latency_s=draw.integer(0, 1) * step_s
    )
    rules = replace(
        scenario.rules,
        tick_s=draw.one([0.0, step_s, 2 * step_s, 3 * step_s]),
        moves=draw.integer(0, 2),
        roles=draw.one([0, 1, 1]),
    )
    return replace(
        scenario,
        workload=replace(without_prefixes(workload), arrival_s=arrival_s, think_s=think_s),
        cluster=ClusterSpec(tuple(pools), link),
        engine=engine,
        rules=rules,
        timing=RowTiming(dict.fromkeys(scenario.timing.rows, row)),
    )
