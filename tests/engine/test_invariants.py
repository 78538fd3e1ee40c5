"""A result in which something is wrong is not let through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from framework.engine.config import EngineConfig
from framework.errors import InvariantError
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def result() -> Result:
    """20 requests on two instances, each with leaps of several steps."""
    workload = Workload(np.linspace(0.0, 14.25, 20), np.full(20, 8), np.arange(20) % 7 + 4)
    row = StepRow(base_s=0.25, per_context_token_s=2.0**-10)
    result = simulate(workload, mixed(2, GPU), MODEL, RowTiming({"g": row}), EngineConfig(kv_tokens=4096))
    check_result(result)
    return result


def early(result: Result) -> Result:
    """The third leap of instance 1 starts within the second."""
    rows = np.flatnonzero(result.step_log["instance"] == 1)
    leaps = result.step_log.copy()
    leaps["start_s"][rows[2]] = leaps["start_s"][rows[1]] + 1e-3
    return replace(result, step_log=leaps)


def longer(result: Result) -> Result:
    """A leap of several steps takes twice as long."""
    row = int(np.flatnonzero((result.step_log["steps"] > 1) & (result.step_log["instance"] == 0))[0])
    leaps = result.step_log.copy()
    leaps["increment_s"][row] += 1.0
    return replace(result, step_log=leaps)


def uncounted(result: Result) -> Result:
    return replace(result, step_log=result.step_log[:-1])


def lost(result: Result) -> Result:
    return replace(result, token_log=result.token_log[1:])


def backwards(result: Result) -> Result:
    requests = result.requests.copy()
    requests["end_s"][3] = requests["first_token_s"][3] - 1.0
    return replace(result, requests=requests)


def held(result: Result) -> Result:
    instances = result.instances.copy()
    instances["free_blocks"][1] -= 1
    return replace(result, instances=instances)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (early, "step that starts before the last one ended .first at"),
        (longer, "step that starts before the last one ended"),
        (uncounted, "the engine counted"),
        (lost, "request whose tokens do not add up"),
        (backwards, "request whose end_s precedes its first_token_s .first at 3, 1 in all"),
        (held, "instance whose blocks are not all freed .first at 1"),
    ],
)
def test_what_is_wrong_is_named(result: Result, change: Callable[[Result], Result], reason: str) -> None:
    with pytest.raises(InvariantError, match=reason):
        check_result(change(result))
