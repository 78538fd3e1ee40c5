"""What a step would take, for those who plan: against whole steps, put together from their parts."""

from __future__ import annotations

import numpy as np
import pytest

from framework.timing.estimate import StepTimes, chunked_s, estimate_s, estimates_s, prefill_alone_s, step_alone_s
from framework.timing.kernels.interpolate import _go_on_together
from framework.timing.table import Curve, StepRow, StepTables, stack, step_s

QUICK = StepRow(base_s=0.5, per_prefill_token_s=0.25, per_sequence_s=0.125, per_context_token_s=2.0**-6)
SLOW = StepRow(
    base_s=1.0,
    linear=Curve((1.0, 8.0, 64.0), (2.0, 2.5, 16.0)),
    attention=Curve((0.0, 16.0, 64.0), (0.0, 1.0, 16.0)),
    per_sequence_s=0.25,
    per_context_token_s=2.0**-5,
    per_sampled_s=0.5,
    skew_s=2.0**-4,
    host_s=4.0,
    host_sequence_s=1.0,
    eager_s=100.0,
    graph_tokens=40.0,
    decode_rows=16.0,
    tile_row_s=2.0**-6,
    tile_pair_s=2.0**-9,
)
TABLES: StepTables = stack([QUICK, SLOW])
TIMES = StepTimes(TABLES.rows, TABLES.data, np.array([1, 0, 0]), np.array([1, 1, 2]))
QUICK_HOST = StepTimes(TABLES.rows, TABLES.data, np.array([0]), np.array([1]))


@pytest.mark.parametrize(("prompt", "decodes", "context"), [(10, 0, 0), (0, 3, 60), (10, 3, 60), (1, 1, 1), (0, 0, 0)])
def test_a_prompt_and_decodes(prompt: int, decodes: int, context: int) -> None:
    """On one stage a whole step, but for the host; on two each stage computes the prompt of a micro-batch."""
    chunks = [prompt] if prompt else []
    whole_s = step_s(TABLES, 0, [0] * len(chunks), chunks, decodes, context)
    assert step_alone_s(TABLES, 0, 1, prompt, decodes, context) == pytest.approx(whole_s)
    assert estimate_s(TIMES, 1, prompt, decodes, context) == pytest.approx(whole_s)
    two_s = step_s(TABLES, 0, [0] * 2 * len(chunks), 2 * chunks, decodes, context)
    assert step_alone_s(TABLES, 0, 2, prompt, decodes, context) == pytest.approx(two_s)
    found = estimates_s(TIMES, prompt, decodes, context)
    assert found.tolist() == [estimate_s(TIMES, i, prompt, decodes, context) for i in range(3)]
    assert found[2] == pytest.approx(two_s)


def test_a_prompt_attends_to_what_is_cached_before_it() -> None:
    whole_s = step_s(TABLES, 0, [7], [10], 3, 60)
    assert estimate_s(TIMES, 1, 10, 3, 60, 7) == pytest.approx(whole_s)
    assert estimates_s(TIMES, 10, 3, 60, 7)[1] == pytest.approx(whole_s)


@pytest.mark.parametrize(
    ("tokens", "chunks"),
    [(1, [1]), (12, [12]), (13, [12, 1]), (30, [12, 18]), (33, [12, 20, 1]), (99, [12, 20, 8])],
)
@pytest.mark.parametrize("decodes", [0, 1, 5])
def test_tokens_go_to_prompts_in_their_order(tokens: int, chunks: list[int], decodes: int) -> None:
    """Prompts that lack 12, 20 and 8 tokens behind 4, 0 and 30; the rest of a budget stays unused."""
    prompts = np.array([[4, 0, 30], [12, 20, 8]])
    context, longest = 20 * decodes, 40
    prefixes = [4, 0, 30][: len(chunks)]
    for times, k in ((TIMES, 1), (QUICK_HOST, 0)):
        expected = step_s(TABLES, k, prefixes, chunks, decodes, context, longest=longest)
        assert chunked_s(times, 0, prompts, tokens, decodes, context, longest) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cached", "prompt", "most", "chunks"),
    [(0, 10, 16, [10]), (0, 10, 4, [4, 4, 2]), (3, 10, 4, [4, 3]), (6, 10, 4, [4]), (10, 10, 4, [])],
)
def test_a_prompt_alone_takes_its_steps(cached: int, prompt: int, most: int, chunks: list[int]) -> None:
    done, expected = cached, 0.0
    for chunk in chunks:
        expected += step_s(TABLES, 0, [done], [chunk], 0, 0)
        done += chunk
    assert prefill_alone_s(TABLES, 0, 1, cached, prompt, most) == pytest.approx(expected)


def test_stages_share_the_tokens_of_a_step() -> None:
    """Steps of 5 tokens on two stages have chunks of 3, of which one in each micro-batch."""
    expected = sum(step_s(TABLES, 0, [done] * 2, [chunk] * 2, 0, 0) for done, chunk in ((0, 3), (3, 3), (6, 1)))
    assert prefill_alone_s(TABLES, 0, 2, 0, 7, 5) == pytest.approx(expected)


def test_rows_of_a_table_go_on_as_earlier_rows_do() -> None:
    """Sizes of 1, 2, 4 and 1 to 16. The third row ends at 2: its value at 4 is that at 2 and what the first row gains
    from 8 to 16, where products are the same; beyond no row has such products. A row of which nothing is known stays.
    """
    nan = np.nan
    grid = np.array([[-4.0, -3.0, -2.0, -1.5, -1.25], [nan] * 5, [-2.0, -1.0, nan, nan, nan]])
    _go_on_together(grid, np.array([0.0, 1.0, 2.0]), np.arange(5.0))
    assert grid[2, :3].tolist() == [-2.0, -1.0, -0.75]
    assert np.isnan(grid[2, 3:]).all()
    assert np.isnan(grid[1]).all()


def test_rows_of_a_table_never_go_on_above_what_is_possible() -> None:
    grid = np.array([[-4.0, -3.0, -2.0, -0.5], [-1.0, -0.25, np.nan, np.nan]])
    _go_on_together(grid, np.array([0.0, 1.0]), np.arange(4.0))
    assert grid[1, 2] == 0.0
    assert np.isnan(grid[1, 3])
