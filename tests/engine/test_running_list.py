"""Unified steps in order of admission, and what else a server's settings say of them, worked out by hand in both
engines. A step lasts 1 s, a block is 1 token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.system.cluster import ChunkSchedule
from tests.engine.test_batching import Rows, scenario, times
from tests.helpers.differences import run_engine
from tests.helpers.scenarios import Scenario


def listed(rows: Rows, kv_tokens: int = 100, budget: int = 100, **engine: Any) -> Scenario:
    """Requests (arrival, prompt, output) on one instance whose unified steps are formed in order of admission."""
    one = scenario(rows, kv_tokens=kv_tokens, budget=budget, batching="unified")
    return replace(one, engine=replace(one.engine, **{"step_order": "admission", **engine}))


# --- one list ---------------------------------------------------------------------------------------------------------


def test_decodes_beyond_the_budget_wait() -> None:
    """Each decode counts for 2 tokens, of which one is a draft that is never right. The budget is 3: the first takes 2,
    the second, for which one is left, takes part, the third waits until the others have their 3 tokens.
    """
    drafts = Speculation(depth=1, draft_cost=0.0)
    rows: Rows = [(0, 1, 3), (0, 1, 3), (0, 1, 3)]
    assert times(listed(rows, budget=3, speculation=drafts)) == [[1, 2, 3], [1, 2, 3], [1, 4, 5]]
    together = listed(rows, budget=3, speculation=drafts, step_order="decodes_first")
    assert times(together) == [[1, 2, 3]] * 3


def test_a_chunk_takes_the_blocks_of_a_decode_behind_it() -> None:
    """7 blocks. The first prompt is computed 2 tokens a step. After 2 s it has 4 blocks and the second request 2, so
    that its last chunk finds one block for two: the second gives way, at 2 s, and computes 1 + 2 tokens from 3 s on.
    """
    rows: Rows = [(0, 6, 1), (0, 1, 6)]
    one = listed(rows, kv_tokens=7, longest_chunk=2)
    assert times(one) == [[3], [1, 2, 5, 6, 7, 8]]
    assert run_engine(one)[0].requests["preemptions"].tolist() == [0, 1]
    # decodes first: the second one's growth takes the last block, and the prompt gives way itself
    other = listed(rows, kv_tokens=7, longest_chunk=2, step_order="decodes_first")
    assert times(other)[1] == [1, 2, 3, 4, 5, 6]
    assert run_engine(other)[0].requests["preemptions"][0] > 0


def test_who_decodes_takes_its_turn_behind_longer_prompts() -> None:
    """Chunks of at most 2 tokens: 2 + 2 + 1, then 2 + 1 and a decode, then 2 and two decodes, then two decodes."""
    rows: Rows = [(0, 6, 2), (0, 3, 3), (0, 1, 3)]
    one = listed(rows, budget=5, longest_chunk=2)
    assert times(one) == [[3, 4], [2, 3, 4], [1, 2, 3]]
    assert [tuple(row) for row in run_engine(one)[0].instances[["prefill_tokens", "decode_tokens"]]] == [(10, 5)]


# --- what is admitted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["admission", "decodes_first"])
def test_a_prompt_may_be_admitted_for_its_first_chunk(order: str) -> None:
    """10 blocks. At 1 s the first request has 5, and 3 of the budget's 4 tokens are left: a second prompt of 6 tokens
    does not fit, 3 of them do. At 2 s these lack 3 more blocks, and 1 is left: it starts again, at 3 s.
    """
    rows: Rows = [(0, 4, 4), (0, 6, 1)]
    whole = listed(rows, kv_tokens=10, budget=4, step_order=order)
    assert times(whole) == [[1, 2, 3, 4], [6]]
    assert run_engine(whole)[0].requests["start_s"].tolist() == [0, 4]
    chunk = replace(whole, engine=replace(whole.engine, admission_room="chunk"))
    assert times(chunk) == [[1, 2, 3, 4], [5]]
    assert run_engine(chunk)[0].requests["start_s"].tolist() == [0, 1]
    assert run_engine(chunk)[0].requests["preemptions"].tolist() == [0, 1]


@pytest.mark.parametrize("order", ["admission", "decodes_first"])
def test_without_chunks_a_prompt_waits_until_the_budget_has_room_for_it(order: str) -> None:
    """A budget of 4: with a decode 3 are left, too few for 4. One of 9 is computed alone."""
    rows: Rows = [(0, 2, 3), (0, 4, 1), (0, 9, 1), (0, 1, 1)]
    one = listed(rows, budget=4, chunked_prefill=False, step_order=order)
    assert times(one) == [[1, 2, 3], [4], [5], [6]]
    chunked = listed(rows, budget=4, step_order=order)
    assert times(chunked) == [[1, 2, 3], [2], [5], [5]]  # 2 + 2; 1 + 2 + 1; 1 + 3; 4; 1 + 1


def test_a_longest_chunk_makes_parts_where_there_are_no_chunks_otherwise() -> None:
    """Parts of 3 in a budget of 4: the second prompt's first part, of 2 tokens, comes with the last one of 2."""
    one = listed([(0, 5, 1), (0, 2, 1)], budget=4, chunked_prefill=False, longest_chunk=3)
    assert times(one) == [[2], [2]]
    assert run_engine(one)[0].requests["start_s"].tolist() == [0, 1]


def test_a_chunk_schedule_needs_chunks() -> None:
    one = scenario([(0, 4, 1)], batching="unified", chunk_schedule=ChunkSchedule((4, 2), 4))
    engine = replace(one.engine, chunked_prefill=False)
    object.__setattr__(one, "engine", engine)
    with pytest.raises(InputError, match=r"a chunk schedule needs engine\.chunked_prefill=true"):
        run_engine(one)


# --- the watermark ----------------------------------------------------------------------------------------------------


def test_a_watermark_may_be_one_with_others_alone() -> None:
    """8 blocks, 2 of them behind the watermark. A prompt of 5 tokens with one of 2 leaves 1: it waits for its end.
    One of 7 fits where nothing runs.
    """
    rows: Rows = [(0, 2, 4), (0, 5, 1), (0, 7, 1)]
    one = listed(rows, kv_tokens=8, watermark=0.25, idle_watermark=False)
    assert times(one) == [[1, 2, 3, 4], [5], [6]]
    always = listed(rows, kv_tokens=8, watermark=0.25)
    assert times(always) == [[1, 2, 3, 4], [5], []]
    result, _ = run_engine(always)
    assert result.reasons[result.requests["reason"][2]] == "kv"


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_order": "fair"}, "engine.step_order must be one of decodes_first, admission; got 'fair'"),
        ({"admission_room": "all"}, "engine.admission_room must be one of prompt, chunk; got 'all'"),
        ({"longest_chunk": 0}, "engine.longest_chunk must be a whole number of at least 1, got 0"),
        ({"chunked_prefill": 1}, "engine.chunked_prefill must be true or false, got 1"),
        ({"idle_watermark": None}, "engine.idle_watermark must be true or false, got None"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        EngineConfig(**settings)
    assert str(error.value).startswith(message)
