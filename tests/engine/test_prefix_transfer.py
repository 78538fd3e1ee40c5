"""KV that goes where a part of its prefix is cached, against timelines worked out by hand, in both engines.

A step lasts 1 s, a copy 0.1 s a token; trace blocks have 4 tokens, engine blocks one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.bound.bound import bound
from framework.bound.setting import Setting
from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.policy import Disaggregated, Migrate, Policy
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming, prefixes

TOKEN_BYTES = MODEL.kv_bytes_per_token
ENGINE = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=100, prefix_cache=True, token_budget=100)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0)})
NEAR = 1e-8  # seconds
# Two blocks in common, of 14 tokens: the others, and the last two tokens, are each one's own.
FIRST, SECOND, THIRD = [1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8]


def trace(*rows: tuple[float, int, Sequence[int]]) -> Workload:
    """Prompts of 14 tokens: when they arrive, how many tokens they have to emit, and their blocks."""
    arrival_s, outputs, ids = zip(*rows, strict=True)
    return Workload(np.array(arrival_s), np.full(len(rows), 14), np.array(outputs), **prefixes(ids, 4))


def cluster(*roles: str) -> ClusterSpec:
    pools = [PoolSpec(f"{role}{k}", role, 1, server("gpu", 200)) for k, role in enumerate(roles)]  # type: ignore[arg-type]
    return ClusterSpec(tuple(pools), LinkSpec(10.0 * TOKEN_BYTES))


def play(workload: Workload, spec: ClusterSpec, policy: Callable[[], Policy], **options: Any) -> Result:
    """The run, which is the same in both engines."""
    plain, result = (
        simulate(
            workload,
            spec,
            MODEL,
            TIMING,
            replace(ENGINE, implementation=name, **options),
            policy(),
        )
        for name in ("reference", "compiled")
    )
    check_result(result)
    for name in ("transfer_end_s", "end_s"):
        np.testing.assert_array_equal(plain.requests[name], result.requests[name])
    for name in ("transferred_bytes", "kv_block_s"):
        np.testing.assert_array_equal(plain.instances[name], result.instances[name])
    return result


def test_only_blocks_that_the_receiver_lacks_are_copied() -> None:
    """The first brings 14 tokens, by 2.4 s; the second, prefilled by 11 s, lacks 6 of its own, which take 0.6 s."""
    result = play(trace((0.0, 2, FIRST), (10.0, 2, SECOND)), cluster("prefill", "decode"), Disaggregated)
    assert result.requests["cached_tokens"].tolist() == [0, 8]
    assert result.requests["transfer_end_s"].tolist() == pytest.approx([2.4, 11.6], abs=NEAR)
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == [20, 0]


def test_a_prompt_that_is_there_whole_is_not_copied() -> None:
    """Of 16 tokens, all of them in blocks: its copy has no bytes, and the latency of one."""
    workload = Workload(np.array([0.0, 10.0]), np.array([16, 16]), np.array([2, 2]), **prefixes([FIRST, FIRST], 4))
    spec = cluster("prefill", "decode")
    result = play(workload, replace(spec, link=replace(spec.link, latency_s=0.5)), Disaggregated)
    assert result.requests["transfer_end_s"].tolist() == pytest.approx([3.1, 11.5], abs=NEAR)
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == [16, 0]


def test_without_a_cache_all_is_copied() -> None:
    workload = trace((0.0, 2, FIRST), (10.0, 2, SECOND))
    result = play(workload, cluster("prefill", "decode"), Disaggregated, prefix_cache=False)
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == [28, 0]


@pytest.mark.parametrize(("kv_tokens", "third_s"), [(21, 12.6), (20, 14.2)])
def test_what_is_shared_takes_no_room(kv_tokens: int, third_s: float) -> None:
    """The second decodes from 11.6 s to 13.6 s, with 15 blocks at 12 s; the third lacks 6 of its 14 then.

    So 21 blocks, in which 29 would not fit, hold both. Of 20 it has to wait until the second ends.
    """
    workload = trace((0.0, 2, FIRST), (10.0, 3, SECOND), (10.5, 2, THIRD))
    result = play(workload, cluster("prefill", "decode"), Disaggregated, kv_tokens=kv_tokens)
    assert result.requests["transfer_end_s"][2] == pytest.approx(third_s, abs=NEAR)


def test_what_is_referenced_there_is_no_room() -> None:
    """18 blocks: after the first has ended 12 are cached, and 6 are free, which the second's own blocks take.

    Its two blocks in common with the first count as used from 11 s on, and the third one of the first is evicted for
    its growth. Blocks in use there: 14 from 1 s to 2.4 s, 15 until 3.4 s; 14 from 11 s to 11.6 s, 15 until 12.6 s.
    """
    workload = trace((0.0, 2, FIRST), (10.0, 2, SECOND))
    result = play(workload, cluster("prefill", "decode"), Disaggregated, kv_tokens=18)
    assert result.requests["transfer_end_s"][1] == pytest.approx(11.6, abs=NEAR)
    assert result.instances["kv_block_s"][1] == pytest.approx(14 * 1.4 + 15 + 14 * 0.6 + 15, abs=1e-6)


class Moving(Policy):
    """Request 0 is prefilled on instance 1, request 1 on instance 0, from where it is to move to 1 at 12.5 s."""

    tick_s = 12.5

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return (1, 0)[request.id]

    def on_tick(self, cluster: Cluster) -> list[Migrate]:
        return [Migrate(1, 1)] if cluster.now_s < 13 else []


def test_a_migration_leaves_out_what_is_cached_where_it_goes() -> None:
    """At 12.5 s it has 15 tokens, 8 of them there: 7 take 0.7 s. At the boundary 14 s it has 17: a tail of 2."""
    result = play(trace((0.0, 2, FIRST), (10.0, 8, SECOND)), cluster("mixed", "mixed"), Moving)
    assert result.requests["migrations"].tolist() == [0, 1]
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == [9, 0]
    assert result.requests["end_s"][1] == pytest.approx(14.2 + 4, abs=NEAR)


def test_a_migration_that_is_given_up_drops_what_it_referenced() -> None:
    """It has emitted all at 13 s: nothing is left in use on either instance, as the checks of a run see."""
    result = play(trace((0.0, 2, FIRST), (10.0, 3, SECOND)), cluster("mixed", "mixed"), Moving)
    assert result.requests["migrations"].tolist() == [0, 0]
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == pytest.approx([5, 0], abs=1e-6)


def test_the_bound_charges_a_block_once() -> None:
    """Three prompts of 16 tokens, alike: the first one is copied, and late for that; the others are good."""
    workload = Workload(np.array([0.0, 10.0, 20.0]), np.full(3, 16), np.full(3, 2), **prefixes([FIRST] * 3, 4))
    slo, spec = Slo(ttft_s=1.0, tpot_s=1.8), cluster("prefill", "decode")
    result = play(workload, spec, Disaggregated)
    tpot_s = result.requests["end_s"] - result.requests["first_token_s"]
    assert tpot_s.tolist() == pytest.approx([2.6, 1.0, 1.0], abs=NEAR)
    assert bound(Setting(workload, spec, MODEL, TIMING, ENGINE, slo=slo)).goodput > 0
