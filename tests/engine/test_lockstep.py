"""Ranks that are instances and step together, worked out by hand in both engines. A block is 1 token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.system.cluster import PoolSpec
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.conformance import GPU, MODEL
from tests.helpers.agreement import disagreement
from tests.helpers.differences import run_engine
from tests.helpers.recovery import token_times
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import Scenario, at_once

Rows = list[tuple[int, int]]
TOKENS = StepRow(base_s=1.0, per_prefill_token_s=0.125, per_context_token_s=0.25)  # of all ranks together


def scenario(rows: Rows, row: StepRow = TOKENS, ranks: int = 2, arrival_s: Any = None, **options: Any) -> Scenario:
    """Requests (prompt, output) in turn on the ranks of one group."""
    spec = PoolSpec("all", "mixed", ranks, GPU, Parallelism(dp=ranks), rank_choice="routed")
    one = at_once(rows, spec, row, MODEL, **options)
    arrivals = np.zeros(len(rows)) if arrival_s is None else np.array(arrival_s, np.float64)
    workload = Workload(arrivals, one.workload.input_tokens, one.workload.output_tokens)
    return replace(one, workload=workload, rules=Rules(route_prefill="turn"))


def times(one: Scenario) -> list[list[float]]:
    """When each request's tokens appear: the same in both engines."""
    assert not disagreement(one, 0.0)
    return [[float(time_s) for time_s in row] for row in token_times(run_engine(one)[0])]


def test_a_step_of_a_group_takes_as_long_as_its_longest() -> None:
    """Prompts of 8 and 2: as if both ranks had 8 tokens, 1 + 0.125 * 16 = 3 s. The short one's own step would be over
    after 1 + 0.125 * 4 = 1.5 s, so it waits for 1.5 s. Then one decodes and reads 9 tokens, the other 3.
    """
    one = scenario([(8, 3), (2, 3)])
    assert times(one) == [[3.0, 3 + 1 + 0.25 * 18, 3 + 5.5 + 1 + 0.25 * 20]] * 2
    result = run_engine(one)[0]
    assert result.instances["bubble_s"].tolist() == [0.0, 1.5 + 0.25 * 12 + 0.25 * 12]
    assert result.instances["busy_s"].tolist() == [3 + 5.5 + 6.0] * 2


def test_who_comes_to_an_idle_rank_waits_for_the_boundary() -> None:
    """The first prompt takes 0 to 3 s. The second arrives at 1 s at the other rank, which has nothing to do, and begins
    with the group at 3 s, beside a decode that reads 9 tokens: 1 + 0.25 * 18 = 5.5 s, where its own 4 tokens would
    take 1 + 0.125 * 8 = 2 s.
    """
    one = scenario([(8, 2), (4, 1)], arrival_s=[0.0, 1.0])
    assert times(one) == [[3.0, 8.5], [8.5]]
    log = run_engine(one)[0].step_log
    assert log["instance"].tolist() == [0, 0, 1]
    assert log["start_s"].tolist() == [0.0, 3.0, 3.0]
