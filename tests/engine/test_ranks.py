"""Ranks of a data-parallel instance, worked out by hand in both engines. A block is 1 token."""

from __future__ import annotations

from typing import Any

import pytest

from framework.engine.durations.speculation import Speculation
from framework.errors import InputError
from framework.system.cluster import PoolSpec
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow, Surface
from servelab.testing.worlds import GPU, MODEL
from tests.helpers.agreement import disagreement
from tests.helpers.differences import run_engine
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import Scenario, at_once

Rows = list[tuple[int, int]]
READ = StepRow(base_s=1.0, per_context_token_s=0.25)


def scenario(rows: Rows, row: StepRow, budget: int = 1000, ranks: int = 2, **options: Any) -> Scenario:
    """Requests (prompt, output) that arrive at once, on one mixed instance of so many ranks."""
    pool = {name: options.pop(name) for name in ("rank_choice",) if name in options}
    spec = PoolSpec("all", "mixed", 1, GPU, Parallelism(dp=ranks), **({"rank_choice": "kv"} | pool))
    return at_once(rows, spec, row, MODEL, token_budget=budget, **options)


def times(one: Scenario) -> list[list[float]]:
    """When each request's tokens appear: the same in both engines."""
    assert not disagreement(one, 0.0)
    return [[float(time_s) for time_s in row] for row in token_times(run_engine(one)[0])]


def test_a_step_waits_for_the_heaviest_rank() -> None:
    # 8 and 2 tokens of context on a rank of their own: as if both had 9, then 10 (the heaviest reads p + g)
    told_apart = times(scenario([(8, 3), (2, 3)], READ))
    assert told_apart[0] == [1.0, 1 + 1 + 0.25 * 18, 1 + 5.5 + 1 + 0.25 * 20]
    even = times(scenario([(8, 3), (2, 3)], READ, rank_choice="even"))
    assert even[0] == [1.0, 1 + 1 + 0.25 * 12, 1 + 4 + 1 + 0.25 * 14]


def test_by_kv_and_by_requests() -> None:
    rows: Rows = [(9, 4), (2, 4), (3, 4)]
    # By KV: 9 | 2 + 3, by requests too; the heaviest reads 10, and all are as if both ranks did.
    assert times(scenario(rows, READ))[0][1] == 1 + 1 + 0.25 * 20
    # In turn: 9 + 3 | 2.
    assert times(scenario(rows, READ, rank_choice="round_robin"))[0][1] == 1 + 1 + 0.25 * 2 * (10 + 4)
    more: Rows = [(9, 4), (2, 4), (3, 4), (2, 4)]
    # The fourth: by KV to 2 + 3 (5 < 9), by requests to the 9.
    assert times(scenario(more, READ))[0][1] == 1 + 1 + 0.25 * 2 * 10
    assert times(scenario(more, READ, rank_choice="requests"))[0][1] == 1 + 1 + 0.25 * 2 * (10 + 3)


def test_a_rank_of_more_requests_overtakes_a_longer_one_within_a_leap() -> None:
    # 10 | 2 + 2 + 2: they read 11 + j and 9 + 3 j tokens in step j: alike at j = 1.
    rows: Rows = [(10, 7), (2, 7), (2, 7), (2, 7)]
    expected, now = [1.0], 1.0
    for j in range(6):
        now += 1 + 0.25 * 2 * max(11 + j, 9 + 3 * j)
        expected.append(now)
    assert times(scenario(rows, READ))[0] == expected


def test_a_lighter_rank_bends() -> None:
    # The step time of 2 to 8 tokens is flat, then steep: the light rank comes to the knot first.
    row = StepRow(base_s=1.0, decode=Surface((1.0, 2.0), (0.0, 16.0, 32.0), ((0.0, 1.0, 17.0), (0.0, 1.0, 17.0))))
    rows: Rows = [(6, 9), (2, 9), (3, 9)]
    times(scenario(rows, row))


def test_chunks_share_the_budget_by_rank() -> None:
    # 4 tokens a step on each rank: the long prompt takes 3 steps, the short one fills the other rank.
    row = StepRow(per_prefill_token_s=0.125)
    told_apart = times(scenario([(12, 1), (4, 1)], row, budget=4))
    assert told_apart == [[3.0], [1.0]]
    even = times(scenario([(12, 1), (4, 1)], row, budget=4, rank_choice="even"))
    assert even == [[2.0], [2.0]]


def test_prefill_attention_of_the_slowest_rank() -> None:
    row = StepRow(prefill_quadratic_s=0.25)
    assert times(scenario([(4, 1), (2, 1)], row)) == [[0.25 * 2 * 16]] * 2
    assert times(scenario([(4, 1), (2, 1)], row, rank_choice="even")) == [[0.25 * (16 + 4)]] * 2


def test_accepted_drafts_lengthen_their_rank() -> None:
    options = Speculation(depth=1, acceptance=1.0, draft_cost=0.0)
    rows: Rows = [(8, 5), (2, 5)]
    # Two tokens a step; the heaviest reads p + g + 1: 10, then 12, as if both ranks did.
    assert times(scenario(rows, READ, speculation=options))[0] == [1.0, 7.0, 7.0, 14.0, 14.0]


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="rank_choice must be one of even, kv, requests, round_robin"):
        PoolSpec("all", "mixed", 1, GPU, rank_choice="least")  # type: ignore[arg-type]


def test_decodes_that_waited_on_another_rank_give_way_in_their_order() -> None:
    """Ranks a, c, e | b, d, f, each of 3 tokens a step, of which a decode takes 2 with its draft; 18 blocks.

    e and f wait while two decode on their ranks. b ends at 2 s, so that f decodes and e does not. At 3 s f, which was
    admitted behind e, finds 3 + 3 + 3 + 2 + 1 tokens and the 6 of this step there: it gives way itself. e does for d at
    4 s. Both start again at 6 s.
    """
    rows: Rows = [(1, 6), (1, 2), (1, 6), (1, 6), (1, 6), (1, 6)]
    drafts = Speculation(depth=1, draft_cost=0.0)
    options: dict[str, Any] = {"batching": "unified", "step_order": "admission", "speculation": drafts, "kv_tokens": 18}
    one = scenario(rows, StepRow(base_s=1.0), budget=3, rank_choice="round_robin", **options)
    assert times(one)[1] == [1, 2]
    assert times(one)[4:] == [[1, 7, 8, 9, 10, 11], [1, 3, 7, 8, 9, 10]]
    kv_token_s = 6 + 6 + 8 + (3 + 3 + 3 + 1) + 12 + 15 + 5 + 5 + 7 + 9 + 5
    assert run_engine(one)[0].instances["kv_token_s"].tolist() == [kv_token_s]
