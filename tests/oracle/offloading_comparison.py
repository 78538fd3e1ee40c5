"""The same runs through vLLM's scheduler with its OffloadingConnector and through the simulator: every token's time.

Drawn are prompts of shared documents, each of which finds the server idle, so that a load delays its own request
alone on both sides; GPU memory for few of them, and host memory for all: which blocks of one copy vLLM evicts first
depends on the order of a Python set. No prompt is whole blocks: of one that host memory has in full vLLM loads all
and computes its last token again, the simulator its last block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.setup.config import EngineConfig, Implementation
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from policies.vllm_v1 import VllmV1
from tests.helpers.bounds import server
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import MODEL
from tests.oracle.comparison import Verdict, verdict_of
from tests.oracle.drawing import BLOCK_TOKENS, Request, Run, usual

PROGRAM = Path(__file__).with_name("vllm_offloading.py")
REGIMES = ("memory", "budget", "slow loads")
_GAP_S = 64.0  # longer than any request takes


@dataclass(frozen=True)
class OffloadingRun(Run):
    """What both play."""

    host_blocks: int = 1 << 16
    block_load_s: float = 2.0**-14
    latency_s: float = 0.0


def drawn(seed: int) -> OffloadingRun:
    """The run of a seed, with host memory for all blocks."""
    draw, run = Draw(seed, 3), usual(seed)
    requests = tuple(
        replace(r, arrival_s=_GAP_S * k, prompt=_no_whole_blocks(r, k))
        for k, r in enumerate(first for first in run.requests if first.previous < 0)
    )
    longest = -(-max(len(r.prompt) + len(r.output) for r in requests) // BLOCK_TOKENS)
    on = {"memory": draw.chance(0.7), "budget": "budget" in run.regimes, "slow loads": draw.chance(0.5)}
    return OffloadingRun(
        requests,
        longest + draw.integer(2, 60) if on["memory"] else 4000,
        token_budget=run.token_budget,
        max_batch=64,
        block_load_s=2.0 ** -draw.integer(6, 9) if on["slow loads"] else 2.0**-14,
        latency_s=2.0 ** -draw.integer(8, 14) if on["slow loads"] else 0.0,
        regimes=tuple(name for name in on if on[name]),
    )


def _no_whole_blocks(r: Request, k: int) -> tuple[int, ...]:
    return r.prompt if len(r.prompt) % BLOCK_TOKENS else (*r.prompt, -k - 1)


def simulated(run: OffloadingRun, implementation: Implementation = "compiled") -> Result:
    """The run by one of the engines."""
    model = replace(MODEL, max_context=200_000)
    block_bytes = run.block_tokens * model.kv_bytes_per_token
    host = Tier(
        capacity_tokens=run.host_blocks * run.block_tokens,
        bandwidth_bytes_s=block_bytes / run.block_load_s,
        latency_s=run.latency_s,
    )
    engine = EngineConfig(
        token_budget=run.token_budget,
        max_batch=run.max_batch,
        block_tokens=run.block_tokens,
        kv_tokens=run.blocks * run.block_tokens,
        kv_fraction=1.0,
        prefix_cache=True,
        prefix_unit="engine",
        step_order="admission",
        watermark=0.0,
        idle_watermark=False,
        prefix_stores=PrefixStores({"host": host}, layer_wise=False),
        implementation=implementation,
    )
    cluster = ClusterSpec((PoolSpec("all", "mixed", 1, server("gpu", 1000)),), LinkSpec(1.0))
    result = simulate(run.workload(), cluster, model, run.times, engine, VllmV1())
    check_result(result)
    return result


def compared(run: OffloadingRun, theirs: dict[str, Any]) -> Verdict:
    """Our times of a run against theirs; a difference in what was loaded counts as well."""
    result = simulated(run)
    verdict = verdict_of(result, theirs)
    loaded = sum(theirs["loaded"]) * run.block_tokens
    ours = int(result.tiers["hit_tokens"].sum())
    if verdict.equal and ours != loaded:
        return replace(verdict, where=f"{ours} tokens loaded here, {loaded} there")
    return verdict
