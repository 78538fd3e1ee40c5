"""Step times and saturated systems made up at random, for the bound on goodput and what it is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framework.engine.durations.attention_overlap import Attention
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.kv_compression import KvFormat
from framework.engine.setup.config import EngineConfig, FirstToken
from framework.load import Closed, Load, Open
from framework.system.cluster import RANK_CHOICES, ClusterSpec, LinkSpec, PoolSpec, Role
from framework.system.gpu import Gpu
from framework.system.parallelism import Parallelism
from framework.timing.table import Curve, StepRow, Surface
from framework.workload import Workload, consecutive
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import MODEL, MODES, RowTiming, Scenario

Rng = np.random.Generator


def random_curve(rng: Rng, longest: int, scale_s: float) -> Curve:
    """Rising or not, but not after its last knot."""
    knots = np.unique(np.append(rng.integers(2, longest, rng.integers(1, 6)), 1)).astype(float)
    values = rng.random(len(knots)) * scale_s
    if rng.random() < 0.5:
        values.sort()
    values[-1] = max(values[-1], values[-2])
    return Curve(tuple(knots), tuple(values))


def random_waste(rng: Rng, longest: int) -> Curve:
    """Factors of at least 1."""
    curve = random_curve(rng, longest, 2.0)
    return Curve(curve.knots, tuple(1 + value for value in curve.values))


def random_surface(rng: Rng, scale_s: float) -> Surface:
    """Rising or not, but not in context after its last knot, nor in batch."""
    batches = np.unique(np.append(rng.integers(2, 20, rng.integers(1, 4)), 1)).astype(float)
    contexts = np.unique(np.append(rng.integers(2, 400, rng.integers(1, 6)), rng.integers(0, 2))).astype(float)
    values = rng.random((len(batches), len(contexts))) * scale_s * (1 + 0.2 * np.add.outer(batches, contexts / 20))
    if rng.random() < 0.5:
        values = np.maximum.accumulate(np.maximum.accumulate(values, 0), 1)
    values[:, -1] = np.maximum(values[:, -1], values[:, -2])
    values[-1] = values[-2] * (1 + rng.random())  # else times would be negative far beyond
    return Surface(tuple(batches), tuple(contexts), tuple(map(tuple, values)))


def random_row(rng: Rng) -> StepRow:
    """Step times of which each part may be missing."""

    def maybe(scale_s: float, share: float) -> float:
        return float(rng.random() * scale_s) if rng.random() < share else 0.0

    return StepRow(
        base_s=0.001 + maybe(0.05, 0.8),
        per_prefill_token_s=maybe(4e-3, 0.6),
        prefill_quadratic_s=maybe(3e-5, 0.4),
        per_sequence_s=maybe(3e-3, 0.6),
        per_context_token_s=maybe(2e-4, 0.6),
        per_sampled_s=maybe(1e-3, 0.3),
        prefill_step_s=maybe(0.03, 0.4),
        skew_s=maybe(1e-4, 0.2),
        masked_s=maybe(3e-5, 0.2),
        request_s=maybe(0.03, 0.2),
        intake_s=maybe(0.02, 0.2),
        linear=random_curve(rng, 80, 0.2) if rng.random() < 0.6 else None,
        attention=random_curve(rng, 150, 0.2) if rng.random() < 0.5 else None,
        logits=random_curve(rng, 12, 0.03) if rng.random() < 0.5 else None,
        decode=random_surface(rng, 0.02) if rng.random() < 0.6 else None,
        waste=random_waste(rng, 150) if rng.random() < 0.3 else None,
        bounded=random_curve(rng, 150, 0.2).rising() if rng.random() < 0.3 else None,
    )


def retimed(scenario: Scenario, rng: Rng) -> Scenario:
    """The scenario with tables for step times and SLO classes, and often a larger batch."""
    workload, engine = scenario.workload, scenario.engine
    if rng.random() < 0.3:
        workload = replace(workload, slo_class=tuple(rng.choice(["a", "b"], len(workload))))
    if rng.random() < 0.5:
        engine = replace(engine, max_batch=int(rng.integers(4, 40)))
    timing = RowTiming({gpu: random_row(rng) for gpu in scenario.timing.rows})
    return replace(scenario, workload=workload, timing=timing, engine=engine)


def _first_token(rng: Rng) -> FirstToken:
    drawn = rng.random()
    return "decode" if drawn < 0.15 else "recomputed" if drawn < 0.3 else "join" if drawn < 0.4 else "prefill"


def saturated(rng: Rng) -> Scenario:
    """More requests of one or two kinds than the system can take at once; what is scarce differs."""
    engine = EngineConfig(
        token_budget=int(rng.choice([8, 16, 40, 100, 300])),
        block_tokens=int(rng.choice([1, 4, 16])),
        preemption="swap" if rng.random() < 0.4 else "recompute",
        watermark=0.0,
        kv_fraction=1.0,
        batching=MODES[rng.integers(len(MODES))],  # type: ignore[arg-type]
        first_token=_first_token(rng),
    )
    count, kinds = int(rng.integers(30, 120)), 2
    kind = rng.integers(0, rng.integers(1, kinds + 1), count)
    arrival_s = np.sort(rng.random(count)) * rng.choice([0.0, 0.1, 1.0, 5.0])
    prompts, outputs = rng.integers(1, 60, kinds)[kind], np.maximum(rng.integers(-10, 60, kinds), 1)[kind]
    workload = Workload(arrival_s - arrival_s[0], prompts, outputs)
    if rng.random() < 0.3:
        workload = _alike(workload, kind, engine.block_tokens)
        engine = replace(engine, prefix_cache=True)
    stages = int(rng.choice([1, 1, 2, 3])) if engine.batching != "concurrent" else 1
    ranks = int(rng.choice([1, 1, 2, 3])) if engine.batching != "concurrent" and stages == 1 else 1
    pools = tuple(
        _pool(rng, role, stages, ranks)  # type: ignore[arg-type]
        for role in (("mixed",), ("mixed",), ("prefill", "decode"), ("prefill", "decode", "mixed"))[rng.integers(4)]
    )
    timing = RowTiming({pool.gpu.name: _plain_or_random_row(rng) for pool in pools})
    load: Load = Open() if rng.random() < 0.8 else Closed(int(rng.integers(1, 60)))
    rules = Rules(seed=int(rng.integers(99)), prioritize=str(rng.choice(["", "short", "hash"])))
    if rng.random() < 0.3:
        drafts = Speculation(int(rng.integers(1, 6)), float(rng.choice([0.5, 0.9, 1.0])), draft_cost=0.0)
        engine = replace(engine, speculation=drafts)
    return Scenario(workload, ClusterSpec(pools, LinkSpec(1e6)), MODEL, timing, engine, load, rules)


def _pool(rng: Rng, role: Role, stages: int, ranks: int) -> PoolSpec:
    """One or two instances, or as many groups of ranks that step together."""
    instances, kv_tokens = int(rng.integers(1, 3)), int(rng.choice([130, 200, 400, 4000]))
    most, link_bytes_s = int(rng.choice([1, 2, 3, 8, 30, 100])), float(10 ** rng.uniform(3, 6))
    choice = "even" if ranks == 1 else RANK_CHOICES[rng.integers(len(RANK_CHOICES))]
    if choice == "routed":
        instances, kv_tokens = instances * ranks, kv_tokens * ranks
    return PoolSpec(
        role,
        role,
        instances,
        server(role, kv_tokens, stages, ranks),
        Parallelism(pp=stages, dp=ranks),
        max_batch=most,
        link_bytes_s=link_bytes_s,
        rank_choice=choice,  # type: ignore[arg-type]
    )


def with_options(scenario: Scenario, rng: Rng) -> Scenario:
    """The scenario with attentions that overlap and another format of KV."""
    kv = KvFormat(
        memory_share=float(rng.choice([0.2, 0.5, 1.0])),
        copy_share=float(rng.uniform(0.1, 1.0)),
        read_factor=float(rng.uniform(0.2, 1.5)),
        prefill_factor=float(rng.uniform(0.3, 1.5)),
        pack_bytes_s=None if rng.random() < 0.5 else float(10 ** rng.uniform(3, 6)),
        unpack_bytes_s=None if rng.random() < 0.5 else float(10 ** rng.uniform(3, 6)),
    )
    attention = Attention(float(rng.choice([0.0, 0.5, 0.9, 1.0])))
    return replace(scenario, engine=replace(scenario.engine, attention=attention, kv_compression=kv))


def _alike(workload: Workload, kind: NDArray[np.int64], block_tokens: int) -> Workload:
    """Prompts of a kind share all their blocks but the last, of which each has its own."""
    blocks = -(-workload.input_tokens // block_tokens)
    ids = [
        1000 * k + j if j + 1 < many else 10**6 + r
        for r, (k, many) in enumerate(zip(kind, blocks, strict=True))
        for j in range(many)
    ]
    spans = consecutive(blocks)
    return replace(workload, hash_ids=np.array(ids), hash_spans=spans, hash_block_tokens=block_tokens)


def _plain_or_random_row(rng: Rng) -> StepRow:
    """Plain rows differ in what they make expensive, decodes above all: then it pays to be preempted."""
    if rng.random() < 0.5:
        return random_row(rng)
    return StepRow(
        base_s=float(rng.choice([0.001, 0.01, 0.05])),
        per_prefill_token_s=float(rng.choice([0.0, 1e-5, 1e-3])),
        per_sequence_s=float(rng.choice([0.0, 1e-3, 0.1])),
        per_context_token_s=float(rng.choice([0.0, 1e-5, 1e-4])),
        prefill_step_s=float(rng.choice([0.0, 0.02])),
    )


def server(name: str, kv_tokens: int, stages: int = 1, ranks: int = 1) -> Gpu:
    """A GPU that holds its stage of the tiny model and its part of so many KV tokens."""
    memory = float(MODEL.weight_bytes + kv_tokens // ranks * MODEL.kv_bytes_per_token) / stages
    return Gpu(name, {"bf16": 1e12}, memory, 1e12, 1e9, 1e6, 1e9, 100.0, 1.0, 1.0)
