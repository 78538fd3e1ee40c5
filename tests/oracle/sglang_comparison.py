"""The same runs through SGLang's scheduler and through `policy=sglang`: what is drawn, and every token's time.

Drawn are runs without a radix cache, with steps formed between each other and seats for all: docs/policies.md says what
differs beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.setup.config import EngineConfig, Implementation
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from policies.sglang import SGLang
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL
from tests.oracle.comparison import Verdict, verdict_of
from tests.oracle.drawing import BLOCK_TOKENS, Run, usual

VARIABLE = "SGLANG_PYTHON"  # names the interpreter of an environment that has SGLang
PROGRAM = Path(__file__).with_name("sglang_scheduler.py")
REGIMES = ("bursts", "memory", "budget", "sessions")
_SEATS = 64
_LEFT_OUT = 3  # tokens of memory that no request of theirs may count on


@dataclass(frozen=True)
class SglangRun(Run):
    """What both schedulers play, in blocks of one token. Clients ask for the tokens that they get."""

    def as_json(self) -> dict[str, Any]:
        """As `tests.oracle.sglang_scheduler` reads it."""
        return {**super().as_json(), "kv_tokens": self.blocks, "declared_tokens": 0}


def drawn(seed: int) -> SglangRun:
    """The run of a seed."""
    run = usual(seed)
    longest = max(len(r.prompt) + len(r.output) for r in run.requests)
    return SglangRun(
        run.requests,
        max(run.blocks * BLOCK_TOKENS, longest + _LEFT_OUT),
        token_budget=run.token_budget,
        max_batch=_SEATS,
        prefix_cache=False,
        block_tokens=1,
        regimes=tuple(name for name in run.regimes if name in REGIMES),
    )


def simulated(run: SglangRun, implementation: Implementation = "compiled") -> Result:
    """The run by one of the engines, with the settings of `policy=sglang`."""
    engine = EngineConfig(
        token_budget=run.token_budget,
        max_batch=run.max_batch,
        block_tokens=run.block_tokens,
        kv_tokens=run.blocks,
        kv_fraction=1.0,
        victim="fewest_tokens",
        requeue="last",
        watermark=0.0,
        output_reserve=OutputReserve(ratio=0.7, least_ratio=0.098, declared_tokens="output"),
        implementation=implementation,
    )
    cluster = ClusterSpec((PoolSpec("all", "mixed", 1, server("gpu", 1000)),), LinkSpec(1.0))
    result = simulate(
        run.workload(), cluster, replace(MODEL, max_context=200_000), run.times, engine, SGLang("chunks_first")
    )
    check_result(result)
    return result


def compared(run: SglangRun, theirs: dict[str, Any]) -> Verdict:
    """Our times of a run against theirs."""
    return verdict_of(simulated(run), theirs)
