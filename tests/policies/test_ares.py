"""Which moves of decoding requests pay: by hand, and in runs."""

from __future__ import annotations

import numpy as np
import pytest

from framework.errors import InputError
from framework.objective.goodput import Goodput
from framework.run.compose import compose
from framework.timing.estimate import StepTimes
from framework.timing.table import StepRow, stack
from policies._rescheduling import GRID_TOKENS, Pool, Run, saving_s
from policies.ares import Ares
from tests.golden.configurations import EXACT
from tests.helpers.composing import configured

BASE_S, SEQUENCE_S, TOKEN_S = 2.0**-7, 2.0**-12, 2.0**-20


def step_s(batch: int, context: int) -> float:
    return BASE_S + batch * SEQUENCE_S + context * TOKEN_S


def saved_s(batch: tuple[int, int], context: tuple[int, int], kv: int, remaining: float, points: int = 9) -> float:
    """Of a move of a request with so many KV tokens from the first instance to the second."""
    tables = stack([StepRow(base_s=BASE_S, per_sequence_s=SEQUENCE_S, per_context_token_s=TOKEN_S)])
    times = StepTimes(tables.rows, tables.data, np.zeros(2, np.int64), np.ones(2, np.int64))
    none = np.zeros(0)
    run = Run(np.zeros(0, np.int64), none, none, none, none, np.ones(points))
    request = np.array([0.0, 1.0, 0.0, float(kv), remaining, 0.0])
    return float(saving_s(request, Pool(times, np.array(batch), np.array(context)), 0, 1, run))


def test_a_move_saves_what_all_requests_of_both_instances_decode_for_less() -> None:
    before_s = 5 * step_s(5, 5000) + 1 * step_s(1, 1000)
    after_s = 4 * step_s(4, 3000) + 2 * step_s(2, 3000)
    assert saved_s((5, 1), (5000, 1000), 2000, 100.0) == pytest.approx(100 * (before_s - after_s), rel=1e-12)


def test_it_saves_no_longer_than_to_the_horizon() -> None:
    whole = saved_s((5, 1), (5000, 1000), 2000, 8.0 * GRID_TOKENS)
    assert saved_s((5, 1), (5000, 1000), 2000, np.inf) == whole > 0
    assert saved_s((5, 1), (5000, 1000), 2000, 8.0 * GRID_TOKENS, points=1) == whole  # no horizon: to its own end
    assert saved_s((5, 1), (5000, 1000), 2000, 4.0 * GRID_TOKENS) == whole / 2


def test_a_move_to_where_no_fewer_decode_saves_nothing() -> None:
    assert saved_s((2, 2), (4000, 4000), 2000, 100.0) == 0.0
    assert saved_s((1, 0), (2000, 0), 2000, 100.0) == 0.0  # it is as slow there


def moves(*further: str) -> int:
    summary = Goodput().measure(compose(configured(*EXACT["ares_saving"].overrides, *further))).evaluation.summary
    return int(summary["migrations"])


def test_moves_are_made_where_steps_are_noticed_or_memory_is_full() -> None:
    unnoticed = "policy.near=1000"
    assert moves() > 0
    assert moves("policy.tpot_s=null", unnoticed) >= moves()
    assert moves(unnoticed) == 0
    assert moves(unnoticed, "policy.amortised_by=decoding") > 0
    assert moves(unnoticed, "policy.full=0.001") > 0
    assert moves("policy.amortisation=1000") == 0


@pytest.mark.parametrize("setting", [{"amortised_by": "hope"}, {"tpot_s": 0.0}, {"near": -1.0}, {"full": 1.5}])
def test_settings_that_cannot_be(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(setting))):
        Ares(**setting)  # type: ignore[arg-type]
