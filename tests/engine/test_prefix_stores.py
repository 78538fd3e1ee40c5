"""Stores of prefixes below GPU memory, and prefixes sent ahead: worked numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hydra import compose as compose_config
from hydra import initialize_config_dir

from framework.cli.arguments import name_files
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.setup.config import EngineConfig
from framework.engine.setup.prefix_layout import named
from framework.errors import InputError, PolicyError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.policy import Aggregated, Disaggregated, Policy
from framework.result import Result
from framework.run.compose import compose
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload, consecutive
from tests.conftest import ROOT
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming

SECOND_A_TOKEN = StepRow(base_s=0.0, per_prefill_token_s=1.0)
BYTES = MODEL.kv_bytes_per_token  # 16 of a token, 64 of a block
KEEP = EngineConfig(block_tokens=2, kv_tokens=12, watermark=0.0, prefix_cache=True, token_budget=100)


def prompts(*rows: tuple[float, list[int]]) -> Workload:
    """Prompts of two blocks of 4 tokens and one token more, a single token of output."""
    return Workload(
        np.array([arrival_s for arrival_s, _ in rows]),
        np.full(len(rows), 9),
        np.full(len(rows), 1),
        hash_ids=np.array([name for _, names in rows for name in names]),
        hash_spans=consecutive([2] * len(rows)),
        hash_block_tokens=4,
    )


def play(
    workload: Workload,
    stores: PrefixStores,
    policy: Policy | None = None,
    roles: tuple[str, ...] = ("mixed",),
    row: StepRow = SECOND_A_TOKEN,
    **engine: Any,
) -> Result:
    """On an instance of each role; a copy goes at 64 bytes/s after half a second."""
    gpu = server("gpu", 1000)
    pools = tuple(PoolSpec(f"{role} {k}", role, 1, gpu) for k, role in enumerate(roles))  # type: ignore[arg-type]
    options = replace(KEEP, prefix_stores=stores, **engine)
    cluster, timing = ClusterSpec(pools, LinkSpec(64.0, 0.5)), RowTiming({"gpu": row})
    result = simulate(workload, cluster, MODEL, timing, options, policy)
    check_result(result)
    return result


def stored(*tiers: Tier, layer_wise: bool = True) -> PrefixStores:
    return PrefixStores({f"tier{k}": tier for k, tier in enumerate(tiers)}, layer_wise)


def ttft_s(result: Result) -> list[float]:
    return [float(x) for x in result.requests["first_token_s"] - result.requests["arrival_s"]]


THRICE = ((0.0, [1, 2]), (100.0, [3, 4]), (200.0, [1, 2]))  # the second evicts the first: 12 tokens hold one and a half


@pytest.mark.parametrize(
    ("bandwidth_bytes_s", "latency_s", "layer_wise", "expected_s"),
    [
        (64.0, 0.5, True, 2.5),  # 128 bytes in 2 s after 0.5 s, with 1 s for the last token
        (64.0, 0.5, False, 3.5),
        (256.0, 0.25, True, 1.0),  # 0.5 s and 0.25 s, hidden
        (256.0, 0.25, False, 1.75),
    ],
)
def test_a_prefix_is_loaded_from_the_store(
    bandwidth_bytes_s: float, latency_s: float, layer_wise: bool, expected_s: float
) -> None:
    tier = Tier(bandwidth_bytes_s=bandwidth_bytes_s, latency_s=latency_s)
    result = play(prompts(*THRICE), stored(tier, layer_wise=layer_wise))
    # A prompt takes 10 tokens' room of 12: nothing of the first one stays in GPU memory.
    assert result.requests["cached_tokens"].tolist() == [0, 0, 8]
    assert ttft_s(result) == [9.0, 9.0, expected_s]
    assert result.tiers["hit_tokens"].tolist() == [8]
    assert result.tiers["loaded_bytes"].tolist() == [8 * BYTES]


def test_without_a_store_it_is_computed_again() -> None:
    assert ttft_s(play(prompts(*THRICE), PrefixStores())) == [9.0, 9.0, 9.0]


def test_what_is_in_gpu_memory_is_not_loaded() -> None:
    """With 16 tokens the second prompt evicts block 2 alone, the older of the first prompt's: block 1 costs nothing."""
    result = play(prompts(*THRICE), stored(Tier(bandwidth_bytes_s=16.0)), kv_tokens=14)
    assert ttft_s(result) == [9.0, 9.0, 4.0]
    assert result.tiers["loaded_bytes"].tolist() == [4 * BYTES]
    found = summarize(result, Slo())
    assert (found["cache_hit_rate_gpu"], found["cache_hit_rate_tier0"]) == (4 / 27, 4 / 27)
    assert (found["cache_hit_rate"], found["loaded_bytes_tier0"]) == (8 / 27, 4 * BYTES)


def test_the_fastest_tier_that_has_a_block_is_read() -> None:
    """The first tier holds the last two blocks that were used, so those of the second prompt; the other holds all."""
    tiers = stored(Tier(capacity_tokens=11, bandwidth_bytes_s=64.0), Tier(bandwidth_bytes_s=16.0))
    result = play(prompts(*THRICE), tiers)
    assert result.tiers["hit_tokens"].tolist() == [0, 8]
    assert ttft_s(result)[2] == 8.0
    again = play(prompts(*THRICE, (300.0, [1, 2])), tiers, kv_tokens=10)  # too little for more than one prompt
    assert again.tiers["hit_tokens"].tolist() == [0, 8]  # the fourth finds all in GPU memory
    tiers = stored(Tier(capacity_bytes=3 * 4 * BYTES, bandwidth_bytes_s=64.0), Tier(bandwidth_bytes_s=16.0))
    result = play(prompts(*THRICE), tiers)  # of the first prompt the first block stays: it was the youngest
    assert result.tiers["hit_tokens"].tolist() == [4, 4]
    assert ttft_s(result)[2] == 1.0 + 4.0


def test_a_store_without_room_keeps_nothing() -> None:
    result = play(prompts(*THRICE), stored(Tier(capacity_tokens=3)))
    assert ttft_s(result) == [9.0, 9.0, 9.0]


class InTurn(Aggregated):
    """Requests to the two instances in turn."""

    def route_prefill(self, request: Any, cluster: Any) -> int:
        return int(request.id % 2)


def test_instances_share_a_pooled_tier_and_no_other() -> None:
    twice = prompts((0.0, [1, 2]), (100.0, [1, 2]))
    for shared, expected_s in ((False, 9.0), (True, 2.0)):
        result = play(twice, stored(Tier(bandwidth_bytes_s=64.0, shared=shared)), InTurn(), ("mixed", "mixed"))
        assert ttft_s(result) == [9.0, expected_s]


class FromFirst(InTurn):
    """What instance 0 has is sent ahead."""

    def fetch_prefix(self, request: Any, cluster: Any) -> int:
        return 0 if request.id == 1 else -1


def test_a_prefix_is_sent_ahead_and_then_loaded() -> None:
    """128 bytes at 64 bytes/s and half a second, then 128 bytes from the store at 32 bytes/s with the last token."""
    twice = prompts((0.0, [1, 2]), (100.0, [1, 2]))
    result = play(twice, stored(Tier(bandwidth_bytes_s=32.0)), FromFirst(), ("mixed", "mixed"))
    assert ttft_s(result) == [9.0, 2.5 + 4.0]
    assert result.requests["start_s"].tolist() == [0.0, 102.5]
    assert result.requests["cached_tokens"].tolist() == [0, 8]
    assert result.instances["transferred_bytes"].tolist() == [8 * BYTES, 0.0]


def test_nothing_is_sent_where_nothing_is_lacking() -> None:
    workload = prompts((0.0, [1, 2]), (100.0, [3, 4]), (200.0, [1, 2]), (300.0, [3, 4]))
    result = play(workload, stored(Tier(bandwidth_bytes_s=64.0)), FromFirst(), ("mixed", "mixed"))
    assert result.instances["transferred_bytes"].tolist() == [0.0, 0.0]


def test_a_fetch_from_nowhere_is_the_policys_error() -> None:
    class Lost(InTurn):
        def fetch_prefix(self, request: Any, cluster: Any) -> int:
            return 7

    with pytest.raises(PolicyError, match="fetch_prefix returned instance 7 for request 0"):
        play(prompts((0.0, [1, 2])), stored(Tier()), Lost(), ("mixed", "mixed"))


def test_a_request_may_be_turned_away_after_its_prefill() -> None:
    class Refusing(Disaggregated):
        def route_decode(self, request: Any, cluster: Any) -> int | str:
            return "overload" if request.id == 0 else 1

    workload = replace(prompts((0.0, [1, 2]), (100.0, [3, 4])), output_tokens=np.array([3, 3]))
    row = replace(SECOND_A_TOKEN, base_s=1.0)
    result = play(workload, PrefixStores(), Refusing(), ("prefill", "decode"), row)
    assert result.requests["state"].tolist() == [2, 1]
    assert result.reasons[result.requests["reason"][0]] == "overload"
    assert (result.requests["end_s"][0], result.requests["emitted"][0]) == (10.0, 1)
    assert summarize(result, Slo())["rejected"] == 1


def test_unlimited_stores_reach_the_hit_rate_of_the_trace(real_trace: Callable[[str], Any]) -> None:
    """Of each prompt the blocks that an earlier one had, up to the first that none had: one instance, one at a time."""
    real_trace("conversation_trace.jsonl")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        arguments = ["policy=vllm_v1", "trace=mooncake", "trace.limit=1500", "trace.rate=0.02", "cluster.instances=1"]
        arguments += [
            "engine.prefix_unit=trace",
            "engine.prefix_stores=dram",
            "engine.prefix_stores.tiers.dram.capacity_bytes=null",
        ]
        rates = [summarize_run(arguments)]
        for gigabytes in (50, 10, 0):
            rates.append(summarize_run([*arguments, f"engine.prefix_stores.tiers.dram.capacity_bytes={gigabytes}e9"]))
        one = compose(compose_config("config", overrides=name_files(arguments)))
    assert rates[0] == ideal_hit_rate(one.workload)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


def summarize_run(arguments: list[str]) -> float:
    one = compose(compose_config("config", overrides=name_files(arguments)))
    return float(summarize(one.run(), one.slo)["cache_hit_rate"])


def ideal_hit_rate(workload: Workload) -> float:
    seen: set[int] = set()
    found, size = 0, workload.hash_block_tokens
    for r, prompt in enumerate(workload.input_tokens):
        names = workload.hash_ids_of(r)[: prompt // size].tolist()
        run = 0
        while run < min(len(names), (prompt - 1) // size) and names[run] in seen:
            run += 1
        found += run * size
        seen.update(names)
    return found / int(workload.input_tokens.sum())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tier(capacity_tokens=-1), "capacity_tokens must be a whole number"),
        (lambda: Tier(capacity_tokens=1, capacity_bytes=1.0), "capacity_tokens or capacity_bytes"),
        (lambda: Tier(bandwidth_bytes_s=0.0), "bandwidth_bytes_s must be a finite number above 0"),
        (lambda: PrefixStores({"dram": 3}), "must name tiers"),  # type: ignore[dict-item]
        (lambda: EngineConfig(prefix_stores=stored(Tier())), "need engine.prefix_cache=true"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_policy_that_copies_prefixes_needs_a_store() -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose_config("config", ["policy=mooncake", "engine/prefix_stores=none", "trace=synthetic"])
    with pytest.raises(InputError, match=r"policy mooncake: fetch_prefix copies .* choose engine.prefix_stores=dram"):
        compose(config)


@pytest.mark.parametrize("ids", [[], [3], [5, 0, 5, 2], [7, 10**12, 7, 0], [-4, 9, -4, 1]])
def test_names_are_ranks_whether_ids_are_small_or_not(ids: list[int]) -> None:
    different = sorted(set(ids))
    names, count = named(np.array(ids, np.int64))
    assert names.tolist() == [different.index(one) for one in ids]
    assert count == len(different)
