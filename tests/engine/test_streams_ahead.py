"""Prefills concurrent with decodes, the next step of either formed while the present one runs, by hand in both engines.

A prefill of t tokens takes 1 + t / 4 s, a decode step 1 s; neither stream slows the other down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
ROW = StepRow(base_s=1.0, per_prefill_token_s=0.25)
WHOLE = Sharing(50, {1: 1.0, 100: 1.0}, {1: 1.0, 100: 1.0}, contention=False)
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
Rows = tuple[tuple[float, int, int], ...]


def play(engine: str, rows: Rows, row: StepRow = ROW, **options: Any) -> Result:
    """Arrival, prompt and output of each request, on one instance."""
    arrival_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    settings: dict[str, Any] = {"kv_tokens": 4096, "block_tokens": 1, "watermark": 0.0, "asynchronous": True} | options
    config = EngineConfig(batching="concurrent", sharing=WHOLE, implementation=engine, **settings)  # type: ignore[arg-type]
    result = simulate(
        Workload(arrival_s.astype(float), prompts, outputs), mixed(1, GPU), MODEL, RowTiming({"g": row}), config
    )
    check_result(result)
    return result


@ENGINES
def test_what_comes_during_a_prefill_step_is_computed_in_the_second_after_it(engine: str) -> None:
    """Request 0 is computed by 2 s, and decodes at once, for nothing did. Request 1 finds the prefill stream idle at
    2.5 s, in the midst of a decode step: 8 of its 12 tokens take 3 s. Request 2 comes at 3 s; the step of 4 tokens that
    begins at 5.5 s was formed at 2.5 s, without it, though it had room.
    """
    rows = ((0, 4, 6), (2.5, 12, 1), (3, 4, 1))
    first = [2, 3, 4, 5, 6, 7]
    assert token_times(play(engine, rows, token_budget=8)) == [first, [7.5], [9.5]]
    assert token_times(play(engine, rows, token_budget=8, asynchronous=False)) == [first, [8.5], [8.5]]


@ENGINES
def test_an_empty_prefill_step_is_not_waited_for(engine: str) -> None:
    """Nothing but request 2 is left when request 1 is computed, at 4.5 s: it begins at once."""
    rows = ((0, 4, 6), (2.5, 4, 1), (3, 4, 1))
    assert token_times(play(engine, rows)) == [[2, 3, 4, 5, 6, 7], [4.5], [6.5]]


@ENGINES
@pytest.mark.parametrize(
    ("output", "later"),
    [
        (8, [7, 8]),  # decodes go on at 5 s with a step that was formed at 4 s
        (4, [6, 7]),  # nothing decodes at 5 s
    ],
)
def test_what_is_computed_with_a_step_decodes_in_the_second_after_it(
    engine: str, output: int, later: list[int]
) -> None:
    """Request 1 is computed by 4.5 s, with the decode step from 4 to 5 s."""
    rows = ((0, 4, output), (2.5, 4, 3))
    assert token_times(play(engine, rows))[1] == [4.5, *later]
    assert token_times(play(engine, rows, asynchronous=False))[1] == [4.5, 6, 7]


@ENGINES
@pytest.mark.parametrize("scarce", [{"max_batch": 2}, {"kv_tokens": 28}])
def test_a_prefill_step_counts_on_nothing_that_came_free_since_the_one_before_began(
    engine: str, scarce: dict[str, Any]
) -> None:
    """At 2.5 s there is no seat, or no block, for request 2; request 0 ends at 6 s. The step that begins at 7.5 s was
    formed at 2.5 s, with the last 4 tokens of request 1 alone.
    """
    rows = ((0, 4, 5), (2.5, 20, 1), (2.5, 4, 1))
    options: dict[str, Any] = {"token_budget": 16} | scarce
    assert token_times(play(engine, rows, **options))[1:] == [[9.5], [11.5]]
    assert token_times(play(engine, rows, asynchronous=False, **options))[1:] == [[10.5], [10.5]]


@ENGINES
def test_room_that_came_free_counts_at_once_where_no_prefill_step_runs(engine: str) -> None:
    """Request 1 waits for a seat with nothing to prefill; request 0 ends at 4 s, and its seat is known then."""
    rows = ((0, 4, 3), (2.5, 4, 1))
    assert token_times(play(engine, rows, max_batch=1)) == [[2, 3, 4], [6]]


@ENGINES
def test_what_ends_with_a_prefill_step_frees_its_blocks_then(engine: str) -> None:
    """Request 1 ends at 4.5 s. With it, of 12 blocks, request 0 has 6 at 4 s and 7 at 5 s: none is short."""
    result = play(engine, ((0, 4, 8), (2.5, 4, 1)), kv_tokens=12)
    assert token_times(result) == [[2, 3, 4, 5, 6, 7, 8, 9], [4.5]]
    blocks_s = 4 * 2 + sum(range(5, 12)) + 4 * 2  # request 0 while it prefills and decodes; request 1 for 2 s
    assert result.instances["kv_block_s"][0] == blocks_s


@ENGINES
def test_a_prefill_step_takes_what_its_host_does(engine: str) -> None:
    """4 s for the 4 tokens of request 0, and 6 s for 12 tokens, which no graph holds."""
    row = StepRow(base_s=1.0, per_prefill_token_s=0.25, host_s=4.0, eager_s=2.0, graph_tokens=8.0)
    result = play(engine, ((0, 4, 1), (10, 12, 1)), row)
    assert token_times(result) == [[4], [16]]
