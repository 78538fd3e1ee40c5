"""The small worlds of the conformance suite: a model, clusters of every kind, and loads that are adverse to policies.

All times are dyadic (small integers times powers of two), so results are exact for any grouping of sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.setup.config import EngineConfig
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.faults import Crash, Faults, FaultSchedule
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.timing.affine import Affine
from framework.workload import Workload, consecutive

MODEL = Model("small", 4, 64, 8, 8, 8, 256, 1024, max_context=4096)  # 1024 bytes of KV a token
TIMING = Affine(2.0**-6, 2.0**-14, 2.0**-24, 2.0**-12, 2.0**-19)
GPU = Gpu(
    name="small",
    peak_flops={"bf16": 1e12},
    memory_bytes=1e9,
    bandwidth_bytes_s=1e12,
    link_bytes_s=2.0**30,
    pcie_bytes_s=2.0**24,
    nic_bytes_s=2.0**24,
    tdp_w=100.0,
    idle_w=10.0,
    usd_per_hour=1.0,
)
_LINK = LinkSpec(2.0**24, 2.0**-10)  # 16,384 tokens of KV a second


def _cluster(*pools: tuple[str, str, int]) -> ClusterSpec:
    return ClusterSpec(tuple(PoolSpec(name, role, count, GPU) for name, role, count in pools), _LINK)  # type: ignore[arg-type]


CLUSTERS = {
    "one mixed": _cluster(("all", "mixed", 1)),
    "mixed": _cluster(("all", "mixed", 3)),
    "one of each": _cluster(("p", "prefill", 1), ("d", "decode", 1)),
    "disaggregated": _cluster(("p", "prefill", 2), ("d", "decode", 3)),
    "decode first": _cluster(("d", "decode", 2), ("p", "prefill", 1), ("more", "decode", 1)),
    "all roles": _cluster(("d", "decode", 1), ("m", "mixed", 2), ("p", "prefill", 1)),
}


def workload(seed: int = 0, count: int = 60, *, sessions: bool = False, prefixes: bool = False) -> Workload:
    """Bursts of short and long requests over some eight seconds; every sixth has a single output token."""
    random = np.random.default_rng(seed)
    input_tokens = random.integers(1, 400, count)
    output_tokens = np.where(np.arange(count) % 6 == 5, 1, random.integers(2, 160, count))
    columns: dict[str, Any] = {"priority": random.integers(0, 3, count)}
    columns["slo_class"] = tuple(("interactive", "batch")[k % 2] for k in range(count))
    columns["tenant"] = tuple(("blue", "green", "red")[k % 7 % 3] for k in range(count))
    if sessions:  # every request in the second half follows one of the first
        half = count // 2
        columns["previous"] = np.concatenate((np.full(half, -1), np.arange(count - half)))
        columns["think_s"] = random.integers(0, 64, count) * 2.0**-5
        columns["session_id"] = np.arange(count) % half
        columns["turn"] = np.arange(count) // half
    if prefixes:  # four families; how much of the family's prompt a request shares is drawn
        block = 32
        blocks = -(-input_tokens // block)
        shared = np.minimum(random.integers(0, 10, count), blocks)
        ids = [
            [1000 * family + j if j < common else 100_000 + 100 * r + j for j in range(total)]
            for r, (family, common, total) in enumerate(zip(random.integers(0, 4, count), shared, blocks, strict=True))
        ]
        columns["hash_ids"] = np.array([id for row in ids for id in row])
        columns["hash_spans"] = consecutive(blocks)
        columns["hash_block_tokens"] = block
    return Workload(
        arrival_s=np.sort(random.integers(0, 16, count)) / 2.0,  # ticks of half a second
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        name="conformance",
        **columns,
    )


@dataclass(frozen=True)
class Scenario:
    """A workload and its engine."""

    workload: Workload
    engine: EngineConfig


ROOMY = EngineConfig(token_budget=512, max_batch=64, kv_tokens=65536)
_TIGHT = replace(ROOMY, kv_tokens=1024)
_STORES = PrefixStores({"near": Tier(2048, bandwidth_bytes_s=2.0**20), "far": Tier(bandwidth_bytes_s=2.0**18)})
SCENARIOS = {
    "roomy": Scenario(workload(1), ROOMY),
    "tight, recompute": Scenario(workload(2), replace(_TIGHT, preemption="recompute")),
    "tight, swap": Scenario(workload(3), replace(_TIGHT, preemption="swap")),
    "prefix cache": Scenario(workload(4, prefixes=True), replace(ROOMY, kv_tokens=2048, prefix_cache=True)),
    "prefix stores": Scenario(
        workload(7, prefixes=True), replace(ROOMY, kv_tokens=1024, prefix_cache=True, prefix_stores=_STORES)
    ),
    "sessions": Scenario(workload(5, sessions=True), replace(ROOMY, kv_tokens=2048)),
    "scheduled ahead, KV pulled": Scenario(
        workload(8, prefixes=True),
        replace(
            ROOMY,
            kv_tokens=2048,
            prefix_cache=True,
            prefix_unit="engine",
            prefix_stores=_STORES,
            asynchronous=True,
            first_token="recomputed",
            transfers="pulled",
            layerwise_tokens=128,
            speculation=Speculation(1, 0.75),
        ),
    ),
    "small budgets": Scenario(workload(6), replace(ROOMY, token_budget=48, max_batch=3, first_token="decode")),
}


def storm(seed: int, *, prefixes: bool = False) -> Workload:
    """96 requests at four instants, most of them with long prompts; the largest has 1,500 tokens."""
    random = np.random.default_rng(seed)
    input_tokens = np.where(np.arange(96) % 5 == 4, random.integers(1, 64, 96), random.integers(400, 1300, 96))
    output_tokens = random.integers(1, 200, 96)
    input_tokens[0], output_tokens[0] = 1300, 200
    columns: dict[str, Any] = {}
    if prefixes:  # The prompts are of three families.
        blocks = input_tokens // 32
        common = np.minimum(random.integers(0, 24, 96), blocks)
        names = [
            np.where(np.arange(total) < shared, 1000 * (r % 3) + np.arange(total), 100_000 * (r + 1) + np.arange(total))
            for r, (total, shared) in enumerate(zip(blocks, common, strict=True))
        ]
        columns = {"hash_ids": np.concatenate(names), "hash_spans": consecutive(blocks), "hash_block_tokens": 32}
    return Workload(np.repeat([0.0, 0.25, 1.0, 4.0], 24), input_tokens, output_tokens, name="storm", **columns)


_SMALL = EngineConfig(token_budget=512, max_batch=64, kv_tokens=3200)  # a bit more than twice the largest request
STORMS = {
    "memory for 40": Scenario(storm(1), replace(_SMALL, kv_tokens=65536)),
    "memory for two": Scenario(storm(2), _SMALL),
    "swap": Scenario(storm(3), replace(_SMALL, preemption="swap", kv_tokens=1600)),
    "prefix cache": Scenario(storm(4, prefixes=True), replace(_SMALL, prefix_cache=True, kv_tokens=4800)),
    "computed where routed": Scenario(storm(5), replace(_SMALL, recompute="routed", first_token="recomputed")),
    "few seats": Scenario(storm(6), replace(_SMALL, max_batch=2, asynchronous=True)),
    "few seats, memory for one": Scenario(storm(8), replace(_SMALL, max_batch=2, kv_tokens=1600)),
    "pulled": Scenario(
        storm(7, prefixes=True),
        replace(_SMALL, transfers="pulled", prefix_cache=True, prefix_unit="engine", first_token="recomputed"),
    ),
}


def all_at_once(cluster: ClusterSpec) -> Faults:
    """Crashes of all instances at one time, twice; they come back one after the other."""
    count = cluster.instances
    return FaultSchedule(crashes=[Crash(at_s, i, 0.5 + 0.25 * i) for at_s in (1.0, 5.0) for i in range(count)])


def one_after_the_other(cluster: ClusterSpec) -> Faults:
    """Crashes of each instance while the one before it is down, and of the first one once more."""
    crashes = [Crash(0.75 + 0.75 * i, i, 1.0) for i in range(cluster.instances)]
    return FaultSchedule(crashes=[*crashes, Crash(crashes[-1].back_s + 0.5, 0, 2.5)])


CRASHES = {"all at once": all_at_once, "one after the other": one_after_the_other}


def with_other_lengths(workload: Workload, which: np.ndarray[Any, Any], change: str) -> Workload:
    """The workload with other outputs of these requests: "longer" ones, or "any"."""
    lengths = workload.output_tokens
    drawn = np.random.default_rng(11).integers(1, 250, len(lengths))
    other = lengths + drawn if change == "longer" else drawn
    return replace(workload, output_tokens=np.where(which, other, lengths))
