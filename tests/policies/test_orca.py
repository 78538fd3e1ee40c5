"""What Orca reserves: of each request its prompt and what clients may ask for, or the same for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.setup.config import EngineConfig
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.timing.table import StepRow
from framework.workload import Workload
from policies.orca import Orca
from tests.helpers.results import GPU
from tests.helpers.scenarios import MODEL, RowTiming

STEP = RowTiming({GPU.name: StepRow(base_s=1.0)})
LENGTHS = ((50, 10), (5, 20), (5, 4), (5, 3))  # prompt, output; all come at 0 s


def begun_s(reserve_tokens: Any, engine: dict[str, Any]) -> list[float]:
    """When each request's prompt began, on one instance that holds 107 tokens."""
    prompts, outputs = np.array(LENGTHS).T
    workload = Workload(np.zeros(len(LENGTHS)), prompts, outputs)
    config = EngineConfig(kv_tokens=107, block_tokens=1, watermark=0.0, **engine)
    result = simulate(workload, mixed(1, GPU), MODEL, STEP, config, Orca(reserve_tokens))
    assert not result.requests["preemptions"].any()
    return [float(one) for one in result.requests["start_s"]]


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_room_is_kept_for_the_longest_output_that_clients_may_ask_for(implementation: Any) -> None:
    """Two requests have 50 + 20 and 5 + 20 tokens and one more; of what is left the third needs 26. The first ends at
    10 s, and the queue is tried again a step later. Whatever its own output is, each has room for 20.
    """
    reserve = OutputReserve(1.0, 1.0, declared_tokens="longest")
    of_each = begun_s("declared", {"output_reserve": reserve, "implementation": implementation})
    assert of_each == [0.0, 0.0, 11.0, 11.0]
    told = begun_s("declared", {"output_reserve": OutputReserve(1.0, 1.0, declared_tokens=20)})
    assert told == of_each


def test_the_longest_request_leaves_less_room() -> None:
    """60 tokens of 107 for each: one at a time, for 10, 20 and 4 s."""
    assert begun_s(None, {}) == [0.0, 10.0, 30.0, 34.0]
    assert begun_s(60, {}) == begun_s(None, {})
