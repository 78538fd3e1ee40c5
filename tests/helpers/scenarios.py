"""Whole random runs: a trace, a cluster, engine options, step times and a policy, small and adverse on purpose.

Exact scenarios use dyadic numbers throughout (small integers times powers of two), so that every sum of times is
exact in float64 whatever its order; general ones use arbitrary floats.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from framework.engine.config import EngineConfig, Setting
from framework.engine.mechanisms.attention_overlap import Attention
from framework.engine.mechanisms.kv_compression import KvFormat
from framework.engine.mechanisms.prefix_tiers import PrefixStores, Tier
from framework.engine.mechanisms.sm_sharing import Sharing
from framework.engine.mechanisms.speculation import Speculation
from framework.engine.reference.setup import options, specs, step_time
from framework.engine.reference.simulation import Hooks, Simulation
from framework.system.cluster import ChunkSchedule, ClusterSpec, LinkSpec, PoolSpec
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow, Surface
from framework.workload import Closed, Load, Open, Workload
from tests.helpers.rulers import Rules

MODES = ("decode_first", "prefill_first", "mixed", "static", "unified", "concurrent")


@dataclass(frozen=True)
class RowTiming:
    """Step times by the name of a pool's GPU."""

    rows: dict[str, StepRow]
    source: str = "scenario"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        return self.rows[gpu.name]


@dataclass(frozen=True)
class Scenario:
    workload: Workload
    cluster: ClusterSpec
    model: Model
    timing: RowTiming
    engine: EngineConfig
    load: Load
    rules: Rules
    seed: int = 0

    def __post_init__(self) -> None:
        """Ranks, pipelines, and prefills beside decodes do not go together."""
        modes = {pool.batching or self.engine.batching for pool in self.cluster.pools}
        pools = self.cluster.pools
        if "concurrent" in modes:
            pools = tuple(replace(without_stages(pool), rank_choice="even") for pool in pools)
        pools = tuple(without_stages(pool) if pool.has_ranks else pool for pool in pools)
        object.__setattr__(self, "cluster", replace(self.cluster, pools=pools))
        shares = not any(pool.has_ranks or pool.parallelism.pp > 1 for pool in pools)
        object.__setattr__(self, "rules", replace(self.rules, shares=shares))

    def setting(self) -> Setting:
        return Setting(self.workload, self.cluster, self.model, self.timing, self.engine, self.load, self.seed)

    def simulation(self, hooks: Hooks) -> Simulation:
        """The run in the plain engine."""
        setting = self.setting()
        return Simulation(self.workload, specs(setting), options(setting), step_time(setting), hooks)


def at_once(rows: Sequence[tuple[int, int]], spec: PoolSpec, row: StepRow, model: Model, **options: Any) -> Scenario:
    """Requests (prompt, output) that arrive at once, at one pool of 1,000 blocks of a token each."""
    prompt, output = zip(*rows, strict=True)
    return Scenario(
        Workload(np.zeros(len(prompt)), np.array(prompt), np.array(output)),
        ClusterSpec((spec,), LinkSpec(1e9)),
        model,
        RowTiming({spec.gpu.name: row}),
        EngineConfig(max_batch=10, block_tokens=1, watermark=0.0, kv_tokens=1000, **options),
        Open(),
        Rules(),
    )


# strategies, each made once for the same arguments: Hypothesis takes longer to make and check one than to draw from it


@functools.cache
def dyadic(low: int, high: int, exponent: int) -> st.SearchStrategy[float]:
    return st.integers(low, high).map(lambda k: k * 2.0**exponent)


@functools.cache
def amounts(exact: bool, low: int, high: int, exponent: int) -> st.SearchStrategy[float]:
    """Multiples of 2^exponent, or floats spread over the same range so that sums of them hardly ever meet."""
    if exact:
        return dyadic(low, high, exponent)
    golden = (5**0.5 - 1) / 2
    return st.integers(1, 10**6).map(lambda k: (low + (high - low) * (k * golden % 1.0)) * 2.0**exponent)


@functools.cache
def zero_or_amounts(exact: bool, low: int, high: int, exponent: int) -> st.SearchStrategy[float]:
    return st.just(0.0) | amounts(exact, low, high, exponent)


@functools.cache
@st.composite
def step_rows(draw: st.DrawFn, exact: bool) -> StepRow:
    surface = None
    if draw(st.integers(0, 3)) == 0:
        batches = (1.0, 3.0, 5.0, 13.0)[: draw(st.integers(2, 4))]
        contexts = (0.0, 32.0, 64.0, 128.0, 384.0)[: draw(st.integers(2, 5))]
        rows, rise = [], 0.0
        for _ in batches:
            row = []
            for _ in contexts:
                rise += draw(amounts(exact, 0, 7, -10))
                row.append(rise)
            rows.append(tuple(row))
        surface = Surface(batches, contexts, tuple(rows))
    return StepRow(
        base_s=draw(amounts(exact, 1, 15, -7)),
        per_prefill_token_s=draw(amounts(exact, 0, 7, -10)),
        prefill_quadratic_s=draw(amounts(exact, 0, 3, -16)),
        per_sequence_s=draw(amounts(exact, 0, 7, -11)),
        per_context_token_s=draw(amounts(exact, 0, 7, -14)),
        per_sampled_s=draw(amounts(exact, 0, 3, -12)),
        prefill_step_s=draw(amounts(exact, 0, 3, -9)),
        skew_s=draw(zero_or_amounts(exact, 0, 3, -13)),
        masked_s=draw(zero_or_amounts(exact, 0, 3, -16)),
        request_s=draw(zero_or_amounts(exact, 0, 7, -8)),
        intake_s=draw(zero_or_amounts(exact, 0, 7, -9)),
        decode=surface,
    )


@functools.cache
@st.composite
def workloads(draw: st.DrawFn, exact: bool, block_tokens: int) -> Workload:
    longest = draw(st.sampled_from([6, 40, 90]))
    sessions = draw(st.booleans())
    hash_tokens = block_tokens * draw(st.sampled_from([1, 2, 4])) if draw(st.booleans()) else 0
    exponent = draw(st.sampled_from([-11, -8, -5]))
    gaps, gaps_or_none = amounts(exact, 1, 40, exponent), zero_or_amounts(exact, 1, 40, exponent)
    arrival = 0.0
    arrivals, prompts, outputs, previous, think = [], [], [], [], []
    ids: list[list[int]] = []
    for k in range(draw(st.integers(1, 20))):
        arrival += draw(gaps_or_none if exact or k % 4 == 0 else gaps) if k else 0.0
        arrivals.append(arrival)
        outputs.append(draw(st.integers(1, longest)))
        open_turns = [j for j in range(k) if j not in previous]
        previous.append(draw(st.sampled_from([-1, *open_turns])) if sessions else -1)
        think.append(draw(gaps_or_none))
        prompts.append(draw(st.integers(1, 60)))
        if hash_tokens:
            count = -(-prompts[-1] // hash_tokens)
            shared = draw(st.sampled_from(ids))[: draw(st.integers(0, count))] if ids else []
            fresh = [k * 100 + j for j in range(count - len(shared))]
            ids.append(shared + fresh)
    columns: dict[str, Any] = {}
    if sessions:
        columns = {"previous": np.array(previous, np.int64), "think_s": np.array(think)}
    if hash_tokens:
        columns["hash_ids"] = np.array([id for row in ids for id in row], np.int64)
        columns["hash_offsets"] = np.cumsum([0, *map(len, ids)])
        columns["hash_block_tokens"] = hash_tokens
    return Workload(np.array(arrivals), np.array(prompts, np.int64), np.array(outputs, np.int64), **columns)


MODEL = Model("tiny", 4, 8, 1, 1, 1, 8, 8, max_context=140)  # 16 bytes of KV a token


@functools.cache
@st.composite
def pools(draw: st.DrawFn, role: str, exact: bool, block_tokens: int) -> PoolSpec:
    tokens = block_tokens * draw(st.integers(80 // block_tokens, 240 // block_tokens))
    dp = draw(st.sampled_from([1, 1, 2, 4]))
    pp = draw(st.sampled_from([1, 1, 2, 4]))  # of thirds the memory might round to a token less
    gpu = Gpu(
        name=role + str(draw(st.integers(0, 9))),
        peak_flops={"bf16": 1e12},
        memory_bytes=float(MODEL.weight_bytes + -(-tokens // dp) * MODEL.kv_bytes_per_token) / pp,
        bandwidth_bytes_s=1e12 if exact else 2e4,  # so little that a prefill beside decodes is felt
        link_bytes_s=1e9,
        pcie_bytes_s=2.0 ** draw(st.integers(10, 18)) if exact else draw(st.floats(1e3, 2e5)),
        nic_bytes_s=1e9,
        tdp_w=100.0,
        idle_w=1.0,
        usd_per_hour=1.0,
    )
    return PoolSpec(
        name=role,
        role=role,  # type: ignore[arg-type]
        instances=draw(st.integers(1, 3)),
        gpu=gpu,
        parallelism=Parallelism(dp=dp, pp=pp),
        rank_choice=draw(st.sampled_from(["even", "kv", "requests", "round_robin"])),
        token_budget=draw(st.none() | st.integers(1, 64)),
        max_batch=draw(st.none() | st.integers(1, 4)),
        batching=draw(st.none() | st.sampled_from(MODES)),
        link_bytes_s=draw(st.none() | bandwidths(exact)),
        reserve_tokens=draw(st.sampled_from([None, None, None, 24, 60, 120])),
        chunk_schedule=draw(st.none() | st.none() | chunk_schedules()),
    )


def without_stages(pool: PoolSpec) -> PoolSpec:
    """The same memory on one stage."""
    dp, pp = pool.parallelism.dp, pool.parallelism.pp
    gpu = replace(pool.gpu, memory_bytes=pool.gpu.memory_bytes * pp)
    return replace(pool, gpu=gpu, parallelism=Parallelism(dp=dp))


@functools.cache
@st.composite
def chunk_schedules(draw: st.DrawFn) -> ChunkSchedule:
    sizes = draw(st.lists(st.integers(1, 48), min_size=1, max_size=3))
    return ChunkSchedule(tuple(sorted(sizes, reverse=True)), draw(st.integers(1, 32)))


@functools.cache
def bandwidths(exact: bool) -> st.SearchStrategy[float]:
    return st.integers(11, 17).map(lambda k: 2.0**k) if exact else st.floats(2e3, 1e5)


@functools.cache
@st.composite
def rules(draw: st.DrawFn, roles: Sequence[str], exact: bool) -> Rules:
    balanced = ("hash", "turn", "queued_tokens", "kv_tokens", "free_blocks", "running", "cached")
    ticking = draw(st.booleans())
    return Rules(
        seed=draw(st.integers(0, 999)),
        route_prefill=draw(st.sampled_from(["", *balanced])),
        route_decode=draw(st.sampled_from(["", "", *balanced, "incoming_kv_tokens", "next"])),
        admit=draw(st.sampled_from(["", "", "", "hash", "queue"])),
        prioritize=draw(st.sampled_from(["", "", "hash", "short", "dynamic"])),
        batching=draw(st.sampled_from(["", "", "budget", "mode"])),
        split_at=draw(st.sampled_from(["", "", "", "prompt", "output", "both"])),
        tick_s=draw(amounts(exact, 1, 40, -6)) if ticking else 0.0,
        moves=draw(st.integers(0, 3)) if ticking else 0,
        budgets=ticking and draw(st.booleans()),
        roles=draw(st.sampled_from([0, 0, 1, 3])) if ticking else 0,
        fetch_prefix=draw(st.sampled_from(["", "hash", "most", "most"])),
        refuse=draw(st.integers(0, 4)) == 0,
    )


@functools.cache
@st.composite
def prefix_stores(draw: st.DrawFn, exact: bool) -> PrefixStores:
    tiers = {}
    for name in ("near", "far", "farthest")[: draw(st.integers(1, 3))]:
        tokens = draw(st.none() | st.integers(0, 400))
        in_bytes = tokens is not None and draw(st.booleans())
        tiers[name] = Tier(
            capacity_tokens=None if in_bytes else tokens,
            capacity_bytes=16.0 * tokens if in_bytes else None,  # type: ignore[operator]
            bandwidth_bytes_s=draw(st.none() | bandwidths(exact)),
            latency_s=draw(zero_or_amounts(exact, 1, 20, -9)),
            shared=draw(st.integers(0, 2)) == 0,
        )
    return PrefixStores(tiers, draw(st.booleans()))


@functools.cache
@st.composite
def kv_formats(draw: st.DrawFn, exact: bool) -> KvFormat:
    shares = st.sampled_from([0.25, 0.5, 1.0]) if exact else st.floats(0.15, 1.0)
    factors = st.sampled_from([0.25, 0.5, 1.0, 2.0]) if exact else st.floats(0.15, 2.0)
    rates = st.none() | (st.integers(9, 14).map(lambda k: 2.0**k) if exact else st.floats(500.0, 20000.0))
    return KvFormat(draw(shares), draw(shares), draw(factors), draw(factors), draw(rates), draw(rates))


@functools.cache
@st.composite
def speculations(draw: st.DrawFn) -> Speculation:
    return Speculation(
        acceptance=draw(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])),
        depth=draw(st.sampled_from([1, 2, 3, 5, "adaptive", "adaptive", "adaptive"])),
        max_depth=draw(st.integers(1, 6)),
        draft_cost=draw(st.none() | st.integers(0, 8).map(lambda k: k / 16)),
    )


@functools.cache
@st.composite
def sharings(draw: st.DrawFn, exact: bool) -> Sharing:
    """Exact: 32 percent between points, and no contention, whose shares of bandwidth are quotients."""
    curves = []
    for _ in range(2):
        factors = sorted((draw(amounts(exact, 8, 40, -3)) for _ in range(3)), reverse=True)
        curves.append(dict(zip((4, 36, 68, 100), (*factors, 1.0), strict=True)))
    return Sharing(draw(st.integers(4, 96)), curves[0], curves[1], contention=not exact)


@functools.cache
@st.composite
def scenarios(draw: st.DrawFn, exact: bool = True) -> Scenario:
    block_tokens = draw(st.sampled_from([1, 2, 4, 8, 16]))
    layout = draw(st.sampled_from([("mixed",), ("mixed",), ("prefill", "decode"), ("prefill", "decode", "mixed")]))
    layout += draw(st.sampled_from([(), (), ("off",)]))
    specs = tuple(draw(pools(role, exact, block_tokens)) for role in layout)
    workload = draw(workloads(exact, block_tokens))
    cached = workload.has_prefixes and draw(st.integers(0, 3)) > 0
    engine = EngineConfig(
        token_budget=draw(st.integers(1, 96)),
        max_batch=draw(st.integers(1, 12)),
        block_tokens=block_tokens,
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        prefix_cache=cached,
        prefix_stores=draw(st.just(PrefixStores()) | prefix_stores(exact)) if cached else PrefixStores(),
        watermark=draw(st.sampled_from([0.0, 0.01, 0.0625, 0.25])),
        kv_fraction=1.0,
        batching=draw(st.sampled_from(MODES)),
        admission_wait_steps=draw(st.sampled_from([0, 0, 0, 1, 3, 10])),
        first_token=draw(st.sampled_from(["prefill", "decode"])),
        attention=Attention(
            draw(st.just(0.0) | st.sampled_from([0.25, 0.75, 1.0])), draw(st.just(0) | st.sampled_from([1, 4, 64]))
        ),
        kv_compression=draw(st.just(KvFormat()) | kv_formats(exact)),
        speculation=draw(st.just(Speculation()) | st.just(Speculation()) | speculations()),
        sharing=draw(sharings(exact)),
        role_change_s=draw(zero_or_amounts(exact, 1, 40, -7)),
        start_s=draw(zero_or_amounts(exact, 1, 40, -7)),
        layerwise_tokens=draw(st.sampled_from([None, 1, 20])),
    )
    link = LinkSpec(draw(bandwidths(exact)), draw(zero_or_amounts(exact, 1, 20, -9)))
    timing = RowTiming({pool.gpu.name: draw(step_rows(exact)) for pool in specs})
    load = draw(st.just(Open()) | st.just(Open()) | st.integers(1, 6).map(Closed))
    seed = draw(st.integers(0, 99))
    return Scenario(workload, ClusterSpec(specs, link), MODEL, timing, engine, load, draw(rules(layout, exact)), seed)


@functools.cache
@st.composite
def crowded(draw: st.DrawFn) -> Scenario:
    """Several prompts prefill at once, block by block, in too little memory."""
    scenario = draw(scenarios(exact=True))
    workload, engine = scenario.workload, scenario.engine
    drawn = draw(st.lists(st.integers(30, 60), min_size=len(workload), max_size=len(workload)))
    roomless = replace(engine, batching="unified", watermark=0.0, kv_tokens=80, token_budget=64, max_batch=8)
    sizes = st.sampled_from([(16, 10, 5), (24, 12, 6), (12, 8), (20, 15, 10, 5)])
    stages = st.builds(ChunkSchedule, sizes, st.integers(8, 24))
    pools = [
        replace(pool, batching=None, token_budget=None, max_batch=None, reserve_tokens=None, chunk_schedule=schedule)
        for pool, schedule in ((pool, draw(stages)) for pool in scenario.cluster.pools)
    ]
    return replace(
        scenario,
        workload=replace(workload, input_tokens=np.array(drawn), output_tokens=np.minimum(workload.output_tokens, 16)),
        engine=replace(roomless, prefix_cache=False, prefix_stores=PrefixStores()),
        cluster=replace(scenario.cluster, pools=tuple(replace(pool, instances=1) for pool in pools)),
        rules=replace(scenario.rules, batching=draw(st.sampled_from(["", "", "mode"]))),
    )


@functools.cache
@st.composite
def severed(draw: st.DrawFn, exact: bool = True) -> Scenario:
    """Most requests are cut and go on elsewhere, in little memory."""
    scenario = draw(scenarios(exact))
    sizes = st.lists(st.integers(8, 60), min_size=8, max_size=16)
    prompts = np.array(draw(sizes))
    outputs = np.array(draw(st.lists(st.integers(1, 40), min_size=len(prompts), max_size=len(prompts))))
    gap = draw(amounts(exact, 1, 40, draw(st.sampled_from([-8, -5]))))
    pools = [replace(pool, instances=2, reserve_tokens=None) for pool in scenario.cluster.pools]
    return replace(
        scenario,
        workload=Workload(np.array([gap * k for k in range(len(prompts))]), prompts, outputs),
        engine=replace(
            scenario.engine,
            kv_tokens=draw(st.sampled_from([None, 112, 160])),
            watermark=0.0,
            prefix_cache=False,
            prefix_stores=PrefixStores(),
        ),
        cluster=replace(scenario.cluster, pools=tuple(pools)),
        rules=replace(
            scenario.rules,
            split_at=draw(st.sampled_from(["prompt", "output", "both"])),
            route_prefill="hash",
            route_decode=draw(st.sampled_from(["hash", "kv_tokens", ""])),
            batching=draw(st.sampled_from(["", "", "mode"])),
        ),
    )


@functools.cache
@st.composite
def sharing(draw: st.DrawFn) -> Scenario:
    """Prompts of a few families, more than memory can keep, with stores below it and prefixes sent ahead."""
    scenario = draw(scenarios(exact=True))
    engine, count = scenario.engine, len(scenario.workload)
    size = engine.block_tokens * draw(st.sampled_from([1, 1, 2])) if engine.block_tokens < 16 else 16
    prompts = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    names = []
    for k, prompt in enumerate(prompts):
        family, blocks = draw(st.integers(0, 3)), -(-prompt // size)
        common = draw(st.integers(0, blocks))
        names.append([100 * family + j for j in range(common)] + [1000 + 100 * k + j for j in range(blocks - common)])
    workload = replace(
        scenario.workload,
        input_tokens=np.array(prompts),
        output_tokens=np.minimum(scenario.workload.output_tokens, 20),
        hash_ids=np.array([name for row in names for name in row], np.int64),
        hash_offsets=np.cumsum([0, *map(len, names)]),
        hash_block_tokens=size,
    )
    kv_tokens = draw(st.none() | st.sampled_from([80, 96, 128]))
    stores = draw(prefix_stores(exact=True))
    engine = replace(engine, prefix_cache=True, prefix_stores=stores, kv_tokens=kv_tokens)
    rules = replace(scenario.rules, route_prefill=draw(st.sampled_from(["hash", "turn", "queued_tokens"])), admit="")
    return replace(scenario, workload=workload, engine=engine, rules=rules)


@functools.cache
@st.composite
def shared(draw: st.DrawFn, exact: bool = True) -> Scenario:
    """Prefills run beside decodes on all instances, most of the time, in little memory."""
    scenario = draw(scenarios(exact))
    pools = [
        replace(pool, batching=draw(st.sampled_from([None, None, None, "unified"])), instances=1, reserve_tokens=None)
        for pool in scenario.cluster.pools
    ]
    return replace(
        scenario,
        engine=replace(scenario.engine, batching="concurrent", kv_tokens=draw(st.sampled_from([96, 160, 320]))),
        cluster=replace(scenario.cluster, pools=tuple(pools)),
        rules=replace(scenario.rules, batching=draw(st.sampled_from(["", "", "budget", "mode"]))),
    )
