"""Hardware use against worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.load import Closed
from framework.metrics.clock import clock_of
from framework.metrics.slo import Slo
from framework.metrics.usage import flops, kv_fill, memory_bytes, pool_table, usage
from framework.policy import Aggregated
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.model import Experts
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.results import GPU, INSTANCE_FIELDS, MODEL, records, small_result
from tests.helpers.scenarios import MODEL as TINY
from tests.helpers.scenarios import RowTiming


def test_flops_of_a_measured_prefill() -> None:
    """Llama-3.1-8B on an H100, 2,048 tokens in 43.3 ms: MFU 0.69 with causal attention counted."""
    whole = records(INSTANCE_FIELDS, [{"prefill_tokens": 2048, "prefill_square": 2048.0**2}])
    assert flops(MODEL, whole)[0] / 0.0433 / 989e12 == pytest.approx(0.69, abs=0.005)


def test_flops_do_not_depend_on_chunking() -> None:
    square = sum((prefix + 512) ** 2 - prefix**2 for prefix in range(0, 2048, 512))
    assert square == 2048**2


def test_decode_attends_to_its_context() -> None:
    one = records(INSTANCE_FIELDS, [{"decode_tokens": 1, "decode_pairs": 1000.0}])
    assert flops(MODEL, one)[0] == 2 * MODEL.active_parameters + 4 * 32 * 32 * 128 * 1000


def test_bandwidth_bound_decoding_uses_all_of_it() -> None:
    """Llama-3-8B on an H100 decodes at most 209 tokens/s at batch 1."""
    second = records(INSTANCE_FIELDS, [{"weight_passes": 209, "decode_tokens": 209}])
    assert memory_bytes(MODEL, second)[0] / 3.35e12 == pytest.approx(1.0, abs=0.01)


def test_kv_is_read_once_per_context_token_and_written_once() -> None:
    steps = records(INSTANCE_FIELDS, [{"prefill_tokens": 10, "decode_tokens": 2, "context_tokens": 23.0}])
    assert memory_bytes(MODEL, steps)[0] == 35 * 2 * 32 * 8 * 128 * 2


def test_each_data_parallel_group_reads_its_copy_of_what_is_outside_the_experts() -> None:
    model = replace(TINY, experts=Experts(count=8, per_token=2, intermediate=4))
    experts = model.expert_parameters * 2
    steps = records(INSTANCE_FIELDS, [{"weight_passes": 3, "expert_reads": 1.5}] * 2)
    one, two = memory_bytes(model, steps, copies=np.array([1.0, 2.0]))
    assert one == 3 * (model.weight_bytes - experts) + 1.5 * experts
    assert two - one == 3 * (model.weight_bytes - experts)


def test_experts_are_read_as_far_as_tokens_choose_them() -> None:
    """Steps of one token, one after another: each reads per_token of the experts of every layer, and all else."""
    model = replace(TINY, experts=Experts(count=8, per_token=2, intermediate=4))
    workload = Workload(np.zeros(1), np.array([1]), np.array([5]))
    timing = RowTiming({GPU.name: StepRow(base_s=1.0)})
    (instance,) = simulate(workload, mixed(1, GPU), model, timing, EngineConfig(kv_tokens=64)).instances
    assert instance["steps"] == 5
    assert instance["expert_reads"] == pytest.approx(5 * 2 / 8)
    read = memory_bytes(model, np.array([instance]))[0] - model.kv_bytes_per_token * (1 + 2 + 3 + 4 + 5 + 5 - 1)
    chosen = model.weight_bytes - model.expert_parameters * 2 * 6 / 8
    assert read == pytest.approx(5 * chosen)


def test_pool_table() -> None:
    result = small_result()
    table = pool_table(result, clock_of(result, Slo()))
    rows = table.drop("mfu", "mbu").rows()
    assert rows == [("prefill", "prefill", 1, 1, 0.6, 0.2, 0.0), ("decode", "decode", 1, 2, 0.5, 0.4, 1.2)]
    gpu_s = np.array([1, 2]) * 2.5
    assert table["mfu"].to_list() == pytest.approx((flops(MODEL, result.instances) / (gpu_s * 989e12)).tolist())
    assert table["mbu"].to_list() == pytest.approx((memory_bytes(MODEL, result.instances) / (gpu_s * 3.35e12)).tolist())


def test_shares_are_of_all_gpus() -> None:
    result = small_result()
    used = usage(result, clock_of(result, Slo()))
    assert used["mfu"] == pytest.approx(flops(MODEL, result.instances).sum() / (3 * 989e12 * 2.5))
    assert used["mbu"] == pytest.approx(memory_bytes(MODEL, result.instances).sum() / (3 * 3.35e12 * 2.5))


def test_of_blocks_in_use_a_share_holds_tokens() -> None:
    """24 token-seconds in 3 block-seconds of 16 tokens: half of them. Without any there is no share."""
    result = small_result()
    steps = records(INSTANCE_FIELDS, [{"kv_token_s": 16.0, "kv_block_s": 2.0}, {"kv_token_s": 8.0, "kv_block_s": 1.0}])
    assert kv_fill(replace(result, instances=steps, engine=EngineConfig(block_tokens=16))) == 0.5
    assert kv_fill(replace(result, instances=records(INSTANCE_FIELDS, [{}]))) is None


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_a_window_within_one_step_is_full_of_it(implementation: Any) -> None:
    """The prompt takes 6 s; of the second that is counted all is spent in its step, and nothing is done yet."""
    workload = Workload(np.zeros(2), np.array([4, 4]), np.array([3, 3]))  # the second is never sent
    timing, cluster = RowTiming({GPU.name: StepRow(base_s=2.0, per_prefill_token_s=1.0)}), mixed(1, GPU)
    engine = EngineConfig(kv_tokens=64, block_tokens=16, implementation=implementation)
    result = simulate(workload, cluster, MODEL, timing, engine, Aggregated(), load=Closed(1, 1.0, 1.0))
    clock = clock_of(result, Slo())
    assert [mark["since_s"].tolist() for mark in result.marks] == [[0.0], [0.0]]
    assert clock.totals[["busy_s", "kv_block_s", "prefill_tokens", "weight_passes"]].tolist() == [(1.0, 1.0, 0, 0)]
    assert pool_table(result, clock).select("utilization", "kv_utilization", "mfu").row(0) == (1.0, 0.25, 0.0)
