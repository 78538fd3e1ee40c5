"""Whole random runs: a trace, a cluster, engine options, step times and a policy, small and adverse on purpose.

Exact scenarios use dyadic numbers throughout (small integers times powers of two), so that every sum of times is
exact in float64 whatever its order; general ones use arbitrary floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from framework.engine.durations.attention_overlap import Attention
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.kv_compression import KvFormat
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig, FirstToken, Setting
from framework.errors import InputError
from framework.load import Closed, Load, Open
from framework.reference.hooks.base import Hooks
from framework.reference.setup import options, specs, step_time
from framework.reference.simulation import Simulation
from framework.system.cluster import RANK_CHOICES, ChunkSchedule, ClusterSpec, LinkSpec, PoolSpec, Role
from framework.system.gpu import Gpu
from framework.system.model import Experts, Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.timing.table import Curve, StepRow, Surface
from framework.workload import Workload, consecutive, within_context
from tests.helpers.compiled_rules import COMPILED_ROUTES
from tests.helpers.drawing import Draw
from tests.helpers.rulers import RuledHooks, Rules

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
        """What cannot be with prefills concurrent with decodes is kept from them; every order needs what it goes by."""
        object.__setattr__(self, "workload", within_context(self.workload, self.model.max_context))
        try:
            self.load.window(self.workload)
        except InputError:  # a warm-up that was drawn for other requests
            object.__setattr__(self, "load", Open())
        modes = {pool.batching or self.engine.batching for pool in self.cluster.pools}
        pools = self.cluster.pools
        if "concurrent" in modes:
            pools = tuple(replace(with_split(pool, self.model, pp=1), rank_choice="even") for pool in pools)
        pools = tuple(
            with_split(pool, self.model, pp=1) if pool.has_ranks or pool.group > 1 else pool for pool in pools
        )
        object.__setattr__(self, "cluster", replace(self.cluster, pools=pools))
        shares = not any(pool.has_ranks or pool.group > 1 or pool.parallelism.pp > 1 for pool in pools)
        shares &= not self.rules.span
        if any(pool.chunk_schedule is not None for pool in pools):
            object.__setattr__(self, "engine", replace(self.engine, chunked_prefill=True))
        order = "" if self.rules.prioritize == "priority" and self.workload.priority is None else self.rules.prioritize
        grouped = any(pool.group > 1 for pool in pools)
        roles = 0 if grouped else self.rules.roles
        able = any(pool.group == 1 and pool.role != "off" for pool in pools)
        decided = min(self.rules.decide, len(self.workload))
        rules = replace(self.rules, shares=shares, prioritize=order, roles=roles, decide=decided)
        rules = replace(rules, scales=rules.scales * able)
        object.__setattr__(self, "rules", rules)

    def setting(self) -> Setting:
        return Setting(self.workload, self.cluster, self.model, self.timing, self.engine, self.load, self.seed)

    def simulation(self, hooks: Hooks) -> Simulation:
        """The run in the reference engine."""
        setting, window = self.setting(), self.load.window(self.workload)
        simulation = Simulation(self.workload, specs(setting), options(setting), step_time(setting), hooks)
        if isinstance(hooks, RuledHooks):
            hooks.begin(simulation)
        simulation.marks_s = () if window is None else (window.start_s, window.end_s)
        return simulation


def in_one_stream(batching: Any) -> Any:
    return "unified" if batching == "concurrent" else batching


def at_once(rows: Sequence[tuple[int, int]], spec: PoolSpec, row: StepRow, model: Model, **options: Any) -> Scenario:
    """Requests (prompt, output) that arrive at once, at one pool of 1,000 blocks of a token each."""
    prompt, output = zip(*rows, strict=True)
    return Scenario(
        Workload(np.zeros(len(prompt)), np.array(prompt), np.array(output)),
        ClusterSpec((spec,), LinkSpec(1e9)),
        model,
        RowTiming({spec.gpu.name: row}),
        EngineConfig(**{"max_batch": 10, "block_tokens": 1, "watermark": 0.0, "kv_tokens": 1000, **options}),
        Open(),
        Rules(),
    )


# parts, each drawn by itself


def step_rows(draw: Draw, exact: bool) -> StepRow:
    """Step times of one pool, of most terms that there are."""
    return StepRow(
        base_s=draw.amount(exact, 1, 15, -7),
        per_prefill_token_s=draw.amount(exact, 0, 7, -10),
        prefill_quadratic_s=draw.amount(exact, 0, 3, -16),
        per_sequence_s=draw.amount(exact, 0, 7, -11),
        per_context_token_s=draw.amount(exact, 0, 7, -14),
        per_sampled_s=draw.amount(exact, 0, 3, -12),
        prefill_step_s=draw.amount(exact, 0, 3, -9),
        skew_s=draw.some(exact, 0, 3, -13),
        masked_s=draw.some(exact, 0, 3, -16),
        request_s=draw.some(exact, 0, 7, -8),
        intake_s=draw.some(exact, 0, 7, -9),
        linear=_curve(draw, exact, (1.0, 3.0, 11.0, 43.0)),
        logits=_curve(draw, exact, (1.0, 2.0, 4.0)),
        attention=None if exact else _curve(draw, exact, (1.0, 20.0, 40.0)),  # its shares are quotients
        waste=None if exact or draw.chance(0.5) else Curve((1.0, 8.0, 64.0, 99.0), (4.0, 1.5, 1.0, 1.0)),
        decode=_surface(draw, exact) if draw.chance(0.25) else None,
        **_limits(draw),
        bounded=_curve(draw.apart(), exact, (1.0, 9.0, 25.0)),
    )


def _curve(draw: Draw, exact: bool, knots: tuple[float, ...]) -> Curve | None:
    """Knots whose distances are powers of 2, so that slopes are exact."""
    if draw.chance(0.7):
        return None
    rises = [draw.amount(exact, 0, 7, -8) for _ in knots]
    return Curve(knots, tuple(np.cumsum(rises).tolist()))


def _surface(draw: Draw, exact: bool) -> Surface:
    batches = (1.0, 3.0, 5.0, 13.0)[: draw.integer(2, 4)]
    contexts = (0.0, 32.0, 64.0, 128.0, 384.0)[: draw.integer(2, 5)]
    rises = [[draw.amount(exact, 0, 7, -10) for _ in contexts] for _ in batches]
    values = np.cumsum(rises).reshape(len(batches), len(contexts)).tolist()
    return Surface(batches, contexts, tuple(map(tuple, values)))


def _limits(draw: Draw) -> dict[str, Any]:
    """Where measurement ends, in a quarter of all cases so near that steps lie beyond."""
    if draw.chance(0.75):
        return {}
    return {
        "tokens_limit": draw.one([np.inf, 8.0, 32.0]),
        "length_limit": draw.one([np.inf, 16.0, 64.0]),
        "sampled_limit": draw.one([np.inf, 2.0, 4.0]),
        "decode_limits": draw.one([None, Curve((1.0, 5.0), (64.0, 128.0))]),
    }


def workloads(draw: Draw, exact: bool, block_tokens: int) -> Workload:
    """Up to twenty requests: often several at one instant, in sessions, with prefixes in common, of two classes."""
    longest, sessions = draw.one([6, 40, 90]), draw.chance(0.5)
    hash_tokens = block_tokens * draw.one([1, 2, 4]) if draw.chance(0.5) else 0
    exponent, at_once = draw.one([-11, -8, -5]), draw.one([0.0, 0.5, 0.5, 0.8])
    arrival = 0.0
    arrivals, prompts, outputs, previous, think = [], [], [], [], []
    ids: list[list[int]] = []
    count = draw.integer(1, 20)
    for k in range(count):
        arrival += 0.0 if k == 0 or draw.chance(at_once) else draw.amount(exact, 1, 40, exponent)
        arrivals.append(arrival)
        outputs.append(draw.integer(1, longest))
        open_turns = [j for j in range(k) if j not in previous]
        previous.append(draw.one([-1, *open_turns]) if sessions else -1)
        think.append(draw.some(exact, 1, 40, exponent))
        prompts.append(draw.integer(1, 60))
        if hash_tokens:
            blocks = -(-prompts[-1] // hash_tokens)
            common = draw.one(ids)[: draw.integer(0, blocks)] if ids else []
            ids.append(common + [k * 100 + j for j in range(blocks - len(common))])
    columns: dict[str, Any] = {}
    if sessions:
        columns = {"previous": np.array(previous, np.int64), "think_s": np.array(think)}
    if hash_tokens:
        columns |= prefixes(ids, hash_tokens)
    if draw.chance(0.3):
        columns["priority"] = np.array(draw.integers(-1, 2, count))
        columns["slo_class"] = tuple(draw.one(["interactive", "batch"]) for _ in range(count))
    return Workload(np.array(arrivals), np.array(prompts, np.int64), np.array(outputs, np.int64), **columns)


def prefixes(ids: Sequence[Sequence[int]], block_tokens: int) -> dict[str, Any]:
    """The columns of a workload that name the blocks of each request's prompt."""
    return {
        "hash_ids": np.array([id for row in ids for id in row], np.int64),
        "hash_spans": consecutive([len(own) for own in ids]),
        "hash_block_tokens": block_tokens,
    }


MODEL = Model("tiny", 4, 8, 1, 1, 1, 8, 8, max_context=140)  # 16 bytes of KV a token


def models(draw: Draw) -> Model:
    """The tiny model, with more heads or a mixture of experts in a part of all cases."""
    heads = draw.one([1, 1, 2, 4])
    model = replace(MODEL, heads=heads, kv_heads=draw.one([n for n in (1, 2, 4) if n <= heads]))
    if draw.chance(0.3):
        chosen = draw.integer(1, 4)
        experts = Experts(draw.one([4, 8]), chosen, 8, draw.one([0, 8]), dense_layers=draw.integer(0, 2))
        model = replace(model, experts=experts)
    return model


def pools(draw: Draw, name: str, role: Role, exact: bool, block_tokens: int, model: Model = MODEL) -> PoolSpec:
    """One to three instances, each of which has room for 80 to 240 tokens of KV."""
    tokens = block_tokens * draw.integer(80 // block_tokens, 240 // block_tokens)
    tp = draw.one([tp for tp in (1, 1, 2, 4) if model.heads % tp == 0])
    dp, pp = draw.one([1, 1, 2, 4]), draw.one([1, 1, 2, 4])  # of thirds the memory might round to a token less
    split = Parallelism(tp=tp, dp=dp, pp=pp, ep=draw.one([ep for ep in (1, 2, 4) if tp * dp % ep == 0]))
    gpu = Gpu(
        name=name + str(draw.integer(0, 9)),
        peak_flops={"bf16": 1e12},
        memory_bytes=_memory_bytes(model, split, tokens),
        bandwidth_bytes_s=1e12 if exact else 2e4,  # so little that a prefill with decodes is felt
        link_bytes_s=1e9,
        pcie_bytes_s=2.0 ** draw.integer(10, 18) if exact else draw.real(1e3, 2e5),
        nic_bytes_s=1e9,
        tdp_w=100.0,
        idle_w=1.0,
        usd_per_hour=1.0,
    )
    return PoolSpec(
        name=name,
        role=role,
        instances=draw.integer(1, 3),
        gpu=gpu,
        parallelism=split,
        rank_choice=draw.one(RANK_CHOICES[:-1]),  # type: ignore[arg-type]  # see lockstep_family for the last
        token_budget=draw.one([None, draw.integer(1, 64)]),
        max_batch=draw.one([None, draw.integer(1, 4)]),
        batching=draw.one([None, draw.one(MODES)]),  # type: ignore[arg-type]
        link_bytes_s=draw.one([None, bandwidths(draw, exact)]),
        reserve_tokens=draw.one([None, None, None, None, 24, 60, 120]),
        chunk_schedule=draw.one([None, None, _chunk_schedules(draw)]),
    )


def _memory_bytes(model: Model, split: Parallelism, tokens: int) -> float:
    """Memory of a GPU that holds its part of the weights, and of so many tokens on all of them, to the byte."""
    experts = model.expert_parameters * model.dtype_bytes
    weights = (model.weight_bytes - experts) / (split.tp * split.pp) + experts / split.gpus
    return weights + -(-tokens // split.dp) * (model.kv_bytes_per_token * model.kv_share(split.tp) / split.pp)


def with_split(pool: PoolSpec, model: Model, **sizes: int) -> PoolSpec:
    """The same room for KV on GPUs that split the model otherwise."""
    whole = replace(pool.parallelism, ep=1, **sizes)
    ep = pool.parallelism.ep
    split = replace(whole, ep=ep if whole.stage_gpus % ep == 0 else 1)
    tokens = kv_capacity_tokens(model, pool.gpu, pool.parallelism, 1.0)
    gpu = replace(pool.gpu, memory_bytes=_memory_bytes(model, split, tokens))
    return replace(pool, gpu=gpu, parallelism=split)


def with_room(pool: PoolSpec, model: Model, tokens: int) -> PoolSpec:
    """The same pool with memory for so many KV tokens."""
    return replace(pool, gpu=replace(pool.gpu, memory_bytes=_memory_bytes(model, pool.parallelism, tokens)))


def _chunk_schedules(draw: Draw) -> ChunkSchedule:
    sizes = draw.integers(1, 48, draw.integer(1, 3))
    return ChunkSchedule(tuple(sorted(sizes, reverse=True)), draw.integer(1, 32))


def bandwidths(draw: Draw, exact: bool) -> float:
    """Bytes a second, so few that copies take as long as steps."""
    return 2.0 ** draw.integer(11, 17) if exact else draw.real(2e3, 1e5)


def _sharings_of_links(draw: Draw) -> dict[str, Any]:
    """Copies share links, and often a fabric, or wait for each other."""
    if draw.chance(0.2):
        return {"sharing": "fifo"}
    return {"fabric_bytes_s": draw.one([None, None, draw.integer(1, 7) * 2.0 ** draw.integer(9, 15)])}


def rules(draw: Draw, exact: bool, workload: Workload) -> Rules:
    """A random policy."""
    balanced = ("hash", "turn", "queued_tokens", "kv_tokens", "free_blocks", "running", "cached")
    compiled = tuple(COMPILED_ROUTES)
    ticking = draw.chance(0.5)
    orders = [
        "",
        "hash",
        "short",
        "dynamic",
        "dynamic",
        "dynamic",
        "predicted",
        *(["priority"] if workload.priority is not None else []),
    ]
    return Rules(
        seed=draw.integer(0, 999),
        route_prefill=draw.one(["", *balanced, *compiled]),
        route_decode=draw.one(["", "", *balanced, "incoming_kv_tokens", "next", *compiled]),
        admit=draw.one(["", "", "", "hash", "queue", "compiled"]),
        prioritize=draw.one(orders),
        batching=draw.one(["", "", "budget", "mode"]),
        split_at=draw.one(["", "", "", "prompt", "output", "both"]),
        tick_s=draw.amount(exact, 4, 60, -6) if ticking else 0.0,
        moves=draw.integer(0, 3) if ticking else 0,
        budgets=ticking and draw.chance(0.5),
        roles=draw.one([0, 0, 1, 3]) if ticking else 0,
        fetch_prefix=draw.one(["", "hash", "most", "most"]),
        refuse=draw.chance(0.2),
    )


def prefix_stores(draw: Draw, exact: bool) -> PrefixStores:
    """One to three tiers, of one store for all instances or one each."""
    tiers: dict[str, Tier] = {}
    for name in ("near", "far", "farthest")[: draw.integer(1, 3)]:
        tokens = draw.one([None, draw.integer(0, 400)]) if tiers else draw.one([24, 24, draw.integer(0, 64), None])
        in_bytes = draw.chance(0.5)
        tiers[name] = Tier(
            capacity_tokens=None if in_bytes else tokens,
            capacity_bytes=16.0 * tokens if in_bytes and tokens is not None else None,
            bandwidth_bytes_s=draw.one([None, bandwidths(draw, exact)]),
            latency_s=draw.some(exact, 1, 20, -9),
            shared=draw.chance(1 / 3),
        )
    return PrefixStores(tiers, draw.chance(0.5))


def kv_formats(draw: Draw, exact: bool) -> KvFormat:
    """How KV is kept and sent, if not as it is computed."""

    def share() -> float:
        return draw.one([0.25, 0.5, 1.0]) if exact else draw.real(0.15, 1.0)

    def factor() -> float:
        return draw.one([0.25, 0.5, 1.0, 2.0]) if exact else draw.real(0.15, 2.0)

    def rate() -> float | None:
        return draw.one([None, 2.0 ** draw.integer(9, 14) if exact else draw.real(500.0, 20000.0)])

    return KvFormat(share(), share(), factor(), factor(), rate(), rate())


def speculations(draw: Draw) -> Speculation:
    """Drafts, of a depth that is fixed or follows the load."""
    return Speculation(
        acceptance=draw.one([0.0, 0.25, 0.5, 0.75, 1.0]),
        depth=draw.one([1, 2, 3, 5, "adaptive", "adaptive", "adaptive"]),
        max_depth=draw.integer(1, 6),
        draft_cost=draw.one([None, draw.integer(0, 8) / 16]),
    )


def sharings(draw: Draw, exact: bool) -> Sharing:
    """Exact: 32 percent between points, and no contention, whose shares of bandwidth are quotients."""
    curves = []
    for _ in range(2):
        factors = sorted((draw.amount(exact, 8, 40, -3) for _ in range(3)), reverse=True)
        curves.append(dict(zip((4, 36, 68, 100), (*factors, 1.0), strict=True)))
    return Sharing(draw.integer(4, 96), curves[0], curves[1], contention=not exact)


def _engines(draw: Draw, exact: bool, block_tokens: int, cached: bool) -> EngineConfig:
    return EngineConfig(
        token_budget=draw.integer(1, 96),
        max_batch=draw.integer(1, 12),
        block_tokens=block_tokens,
        kv_tokens=draw.one([None, None, None, 88, 112]),
        preemption=draw.one(["recompute", "swap", "swap"]),
        prefix_cache=cached,
        prefix_stores=prefix_stores(draw, exact) if cached and draw.chance(0.5) else PrefixStores(),
        watermark=draw.one([0.0, 0.01, 0.0625, 0.25]),
        kv_fraction=1.0,
        batching=draw.one(MODES),  # type: ignore[arg-type]
        admission_wait_steps=draw.one([0, 0, 0, 1, 3, 10]),
        first_token=draw.one(["prefill", "decode"]),
        attention=Attention(draw.one([0.0, 0.25, 0.5, 0.75, 1.0]), draw.one([0, 1, 4, 16, 64])),
        kv_compression=kv_formats(draw, exact) if draw.chance(0.5) else KvFormat(),
        speculation=speculations(draw) if draw.chance(0.4) else Speculation(),
        sharing=sharings(draw, exact),
        role_change_s=draw.some(exact, 1, 40, -7),
        start_s=draw.some(exact, 1, 40, -7),
        layerwise_tokens=draw.one([None, 1, 20]),
    )


_AS_LONG_AS_CAN_BE = 8  # percent of scenarios of which the longest request is as long as a context may be
_LAYOUTS: tuple[tuple[Role, ...], ...] = (
    *(("mixed",), ("mixed",), ("mixed", "mixed"), ("prefill", "decode")),
    *(("prefill", "decode", "mixed"), ("prefill", "decode", "decode")),
)


_TOLD: tuple[FirstToken, ...] = ("join", "decode", "recomputed", "recomputed")


def scenarios(draw: Draw, exact: bool = True) -> Scenario:
    """Anything with anything."""
    block_tokens, layout = draw.one([1, 2, 4, 8, 16]), draw.one(_LAYOUTS)
    layout += ("off",) if draw.chance(1 / 3) else ()
    model = models(draw)
    specs = tuple(
        pools(draw, f"{role}{number or ''}", role, exact, block_tokens, model) for number, role in enumerate(layout)
    )
    workload = workloads(draw, exact, block_tokens)
    cached = workload.has_prefixes and draw.chance(0.75)
    engine = _engines(draw, exact, block_tokens, cached)
    link = LinkSpec(bandwidths(draw, exact), draw.some(exact, 1, 20, -9))
    timing = RowTiming({pool.gpu.name: step_rows(draw, exact) for pool in specs})
    load: Closed | Open = Closed(draw.integer(1, 6)) if draw.chance(1 / 3) else Open()
    ruled, seed = rules(draw, exact, workload), draw.integer(0, 99)
    if seed < _AS_LONG_AS_CAN_BE:
        model = replace(model, max_context=int((workload.input_tokens + workload.output_tokens).max()))
    link = replace(link, **_sharings_of_links(Draw(seed, ruled.seed)))
    engine, timing = _served(Draw(seed, len(workload), 7), exact, engine, timing)
    engine, timing = _tiled(Draw(seed, len(workload), 8), engine, timing)
    engine = _listed(Draw(seed, len(workload), 9), engine)
    load = _lasting(Draw(seed, len(workload), 13), exact, load, workload)
    engine = replace(engine, recompute=Draw(seed, len(workload), 11).one(["there", "there", "routed"]))
    if engine.first_token == "decode":
        engine = replace(engine, first_token=Draw(seed, len(workload), 12).one(_TOLD))
    model, engine = _windowed(Draw(seed, len(workload), 14), model, engine)
    return Scenario(workload, ClusterSpec(specs, link), model, timing, engine, load, ruled, seed)


def _windowed(draw: Draw, model: Model, engine: EngineConfig) -> tuple[Model, EngineConfig]:
    """Half of the layers have a window in a part of all cases, and what is behind it is kept or not."""
    if draw.chance(0.85):
        return model, engine
    windowed = replace(model, windowed_layers=model.layers // 2, window=draw.integer(1, 40))
    return windowed, replace(engine, window_kv=draw.one(["freed", "kept", "kept"]))


def _lasting(draw: Draw, exact: bool, load: Closed | Open, workload: Workload) -> Closed | Open:
    """Half of closed loads end before all is sent, and have clients that return; open ones have a warm-up at times."""
    if isinstance(load, Closed):
        duration_s = draw.one([None, draw.amount(exact, 1, 100, -3)])
        return replace(load, duration_s=duration_s, backoff_s=draw.amount(exact, 1, 50, -5))
    span_s = load_span_s(load, workload)
    return replace(load, warmup_s=draw.one([0.0, 0.0, 0.25 * span_s]), cooldown_s=draw.one([0.0, 0.0, 0.25 * span_s]))


def load_span_s(load: Load, workload: Workload) -> float:
    """From the first to the last arrival that the trace gives, where more than one lies between."""
    window = load.window(workload)
    opening_s = workload.arrival_s[workload.openers == np.arange(len(workload))]
    inner = (opening_s >= 0.25 * opening_s[-1] + 0.75 * opening_s[0]) & (
        opening_s <= 0.75 * opening_s[-1] + 0.25 * opening_s[0]
    )
    return window.length_s if window is not None and inner.any() else 0.0


def _listed(draw: Draw, engine: EngineConfig) -> EngineConfig:
    """In which order unified steps are formed, how much of a prompt they take, and what its admission asks for."""
    return replace(
        engine,
        step_order=draw.one(["decodes_first", "admission"]),
        longest_chunk=draw.one([None, None, draw.integer(1, 24)]),
        chunked_prefill=draw.chance(0.85),
        admission_room=draw.one(["prompt", "prompt", "chunk"]),
        idle_watermark=draw.chance(0.7),
        victim=draw.one(["latest", "latest", "least_urgent"]),
    )


def _tiled(draw: Draw, engine: EngineConfig, timing: RowTiming) -> tuple[EngineConfig, RowTiming]:
    """Attention of chunks and decodes in one kernel where the step times of an instance say so, not the engine."""
    if draw.chance(0.6):
        return engine, timing
    engine = replace(engine, attention=replace(engine.attention, decode_rows=None))

    def joint(row: StepRow) -> StepRow:
        return replace(
            row,
            tile_row_s=draw.one([0.0, 2.0**-8]),
            tile_pair_s=draw.one([0.0, 2.0**-10]),
            head_group=draw.one([1.0, 4.0]),
            decodes_at_once=draw.one([float("inf"), 1.0, 2.0]),  # with so few the share of all is exact
            decode_rows=draw.one([0.0, 1.0, 4.0, 64.0]),
        )

    return engine, RowTiming({name: joint(row) for name, row in timing.rows.items()})


def _served(draw: Draw, exact: bool, engine: EngineConfig, timing: RowTiming) -> tuple[EngineConfig, RowTiming]:
    """What the server's own work adds: steps formed while others run, hosts slower than kernels, prompts to be read."""

    def with_host(row: StepRow) -> StepRow:
        return replace(
            row,
            host_s=draw.amount(exact, 0, 31, -7),
            host_sequence_s=draw.some(exact, 0, 7, -9),
            eager_s=draw.some(exact, 0, 15, -7),
            graph_tokens=draw.one([np.inf, 2.0, 8.0, 32.0]),
            intake_token_s=draw.some(exact, 0, 7, -12),
        )

    if draw.chance(0.4):
        engine = replace(engine, asynchronous=True)
    if draw.chance(0.4):
        timing = RowTiming({name: with_host(row) for name, row in timing.rows.items()})
    if engine.speculation.most > 0 and draw.chance(0.5):  # what a token costs and what a sequence costs differ
        between_s = draw.amount(exact, 0, 7, -9)
        timing = RowTiming({name: replace(row, between_sequence_s=between_s) for name, row in timing.rows.items()})
    return engine, timing
