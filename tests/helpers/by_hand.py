"""Small runs that can be followed by hand: an iteration lasts a second, a KV block is one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.policy import Policy
from framework.policy.predictor import Predictor
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
SECOND = StepRow(base_s=1.0)
CONFIG = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=100, token_budget=100, max_batch=8)
Rows = Sequence[tuple[float, int, int]]


def fleet(**roles: int) -> ClusterSpec:
    """So many instances of each role, over links that take next to no time."""
    pools = tuple(PoolSpec(role, role, count, GPU) for role, count in roles.items())  # type: ignore[arg-type]
    return ClusterSpec(pools, LinkSpec(1e15, 1e-6))


def play(
    policy: Policy,
    rows: Rows,
    cluster: ClusterSpec | None = None,
    *,
    columns: dict[str, Any] | None = None,
    row: StepRow = SECOND,
    predictor: Predictor | None = None,
    **options: Any,
) -> Result:
    """The run of requests (arrival, prompt, output), with further `columns`, and `options` in place of CONFIG's."""
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    workload = Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs), **(columns or {}))
    spec = cluster or fleet(mixed=1)
    result = simulate(workload, spec, MODEL, RowTiming({"gpu": row}), replace(CONFIG, **options), policy, predictor)
    check_result(result)
    return result
