"""The same runs through vLLM's prefill and decode servers and through the simulator: what is drawn, every token's time.

Drawn are runs with steps formed between each other, of prompts and outputs as on one server (`tests.oracle.drawing`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framework.engine.setup.config import EngineConfig, Implementation
from framework.metrics.invariants import check_result
from framework.policy import Cluster
from framework.policy import Request as RequestView
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, Role
from policies.vllm_v1 import VllmV1
from tests.helpers.bounds import server
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import MODEL
from tests.oracle.comparison import Verdict, verdict_of
from tests.oracle.drawing import BLOCK_TOKENS, Run, usual

PROGRAM = Path(__file__).with_name("vllm_connector.py")
REGIMES = (
    *("prefixes", "bursts", "sessions", "servers", "long copies"),
    *("prefill memory", "prefill budget", "prefill seats", "decode memory", "decode seats", "decode budget"),
    *("crowd", "long prompts", "first chunk", "watermark", "whole prompts"),
)
_ROOMY_BLOCKS = 4000


@dataclass(frozen=True)
class Servers:
    """Like servers of one phase; `blocks` of KV memory, `token_budget` of a step."""

    role: Role
    servers: int = 1
    blocks: int = _ROOMY_BLOCKS
    token_budget: int = 2048
    max_batch: int = 64

    def as_json(self) -> dict[str, Any]:
        """As `tests.oracle.vllm_connector` reads it."""
        return {**vars(self), "kv_role": "kv_producer" if self.role == "prefill" else "kv_consumer"}

    def with_watermark(self, share: float) -> Servers:
        """The same, or with some blocks more, of which this share is as many for vLLM, which has one more."""
        blocks = self.blocks
        while int(share * (blocks + 1)) != int(share * blocks):
            blocks += 1
        return replace(self, blocks=blocks)

    def pool(self, block_tokens: int) -> PoolSpec:
        """The same for the simulator."""
        gpu = server(self.role, self.blocks * block_tokens)
        return PoolSpec(
            self.role, self.role, self.servers, gpu, token_budget=self.token_budget, max_batch=self.max_batch
        )


@dataclass(frozen=True)
class ConnectorRun(Run):
    """What both play: request k is prefilled and decoded on the servers of the number k modulo theirs."""

    prefill: Servers = Servers("prefill")
    decode: Servers = Servers("decode")
    block_copy_s: float = 2.0**-12  # that a block is under way from one server to another
    latency_s: float = 2.0**-12  # of a copy

    def as_json(self) -> dict[str, Any]:
        """As `tests.oracle.vllm_connector` reads it."""
        return {**super().as_json(), "prefill": self.prefill.as_json(), "decode": self.decode.as_json()}


class ByNumber(VllmV1):
    """Requests take servers in turn, by their numbers."""

    def __init__(self, prefill: int, decode: int) -> None:
        self._prefill, self._decode = prefill, decode

    def route_prefill(self, request: RequestView, cluster: Cluster) -> int:
        return request.id % self._prefill

    def route_decode(self, request: RequestView, cluster: Cluster) -> int:
        return self._prefill + request.id % self._decode


def drawn(seed: int) -> ConnectorRun:
    """The run of a seed."""
    draw = Draw(seed, 2)
    run = usual(seed)
    odds = {"servers": 0.4, "long copies": 0.4, "prefill memory": 0.4, "prefill budget": 0.4, "prefill seats": 0.3}
    odds |= {"decode memory": 0.6, "decode seats": 0.4, "decode budget": 0.3}
    on = {name: draw.chance(share) for name, share in odds.items()}
    longest = -(-max(len(r.prompt) + len(r.output) for r in run.requests) // BLOCK_TOKENS)

    def servers(role: Role) -> Servers:
        return Servers(
            role,
            draw.integer(1, 3) if on["servers"] else 1,
            longest + draw.integer(2, 60 if role == "prefill" else 25) if on[f"{role} memory"] else _ROOMY_BLOCKS,
            draw.one((64, 128, 200, 512)) if on[f"{role} budget"] else 2048,
            draw.integer(1, 8) if on[f"{role} seats"] else 64,
        )

    plain = ConnectorRun(
        run.requests,
        _ROOMY_BLOCKS,
        prefix_cache=run.prefix_cache,
        prefill=servers("prefill"),
        decode=servers("decode"),
        block_copy_s=2.0 ** -draw.integer(6, 9) if on["long copies"] else 2.0 ** -draw.integer(10, 16),
        latency_s=2.0 ** -draw.integer(8, 14),
        regimes=(
            *(name for name in run.regimes if name in ("prefixes", "bursts", "sessions")),
            *(name for name in on if on[name]),
        ),
    )
    return _with_settings(draw, plain)


def _with_settings(draw: Draw, run: ConnectorRun) -> ConnectorRun:
    """The same with some of the settings that both servers may be given."""
    odds = {"crowd": 0.15, "long prompts": 0.25, "first chunk": 0.25, "watermark": 0.25, "whole prompts": 0.15}
    on = {name: draw.chance(share) for name, share in odds.items()}
    on["crowd"] &= not on["whole prompts"]
    on["first chunk"] &= "prefill memory" not in run.regimes
    prefill, decode = run.prefill, run.decode
    if on["crowd"]:  # more may decode than a step has tokens for
        decode = replace(decode, token_budget=draw.one((3, 8, 17, 32)))
    if on["whole prompts"]:
        longest = max(len(r.prompt) + len(r.output) for r in run.requests)
        prefill, decode = (replace(pool, token_budget=longest + draw.integer(0, 300)) for pool in (prefill, decode))
    watermark = draw.one((0.01, 0.05, 0.1, 0.2)) if on["watermark"] else 0.0
    return replace(
        run,
        prefill=prefill.with_watermark(watermark),
        decode=decode.with_watermark(watermark),
        chunked=not on["whole prompts"],
        long_prefill_tokens=draw.one((5, 16, 40, 100, 250)) if on["long prompts"] else 0,
        reserve_whole_prompt=not on["first chunk"],
        watermark=watermark,
        regimes=(*run.regimes, *(name for name in on if on[name])),
    )


def simulated(run: ConnectorRun, implementation: Implementation = "compiled") -> Result:
    """The run by one of the engines."""
    engine = EngineConfig(
        block_tokens=run.block_tokens,
        kv_fraction=1.0,
        prefix_cache=run.prefix_cache,
        prefix_unit="engine",
        step_order="admission",
        first_token="recomputed",
        transfers="pulled",
        longest_chunk=run.long_prefill_tokens or None,
        chunked_prefill=run.chunked,
        admission_room="prompt" if run.reserve_whole_prompt else "chunk",
        watermark=run.watermark,
        idle_watermark=False,
        implementation=implementation,
    )
    model = replace(MODEL, max_context=200_000)
    block_bytes = run.block_tokens * model.kv_bytes_per_token
    link = LinkSpec(block_bytes / run.block_copy_s, run.latency_s, sharing="fifo")
    cluster = ClusterSpec(tuple(pool.pool(run.block_tokens) for pool in (run.prefill, run.decode)), link)
    policy = ByNumber(run.prefill.servers, run.decode.servers)
    result = simulate(run.workload(), cluster, model, run.times, engine, policy)
    check_result(result)
    return result


def compared(run: ConnectorRun, theirs: dict[str, Any]) -> Verdict:
    """Our times of a run against theirs."""
    return verdict_of(simulated(run), theirs)
