"""What is said of requests that a warm-up or a cool-down leaves out of the figures."""

from __future__ import annotations

import polars as pl
import pytest

from framework.metrics.service.left_out import left_out
from framework.report.load_words import WORSE, footnotes, mark, worse_others
from framework.report.sweep_groups import mean_of


def table(counted_good: int, counted: int, other_good: int, others: int) -> pl.DataFrame:
    good = [k < counted_good for k in range(counted)] + [k < other_good for k in range(others)]
    return pl.DataFrame({"counted": [True] * counted + [False] * others, "good": good})


def test_nothing_is_said_where_all_count() -> None:
    assert left_out(pl.DataFrame({"good": [True, False]})) == {}
    assert (mark({}), worse_others({}), footnotes([{}])) == ("", "", [])


@pytest.mark.parametrize(
    ("rows", "share", "is_worse"),
    [
        ((90, 100, 0, 10), 0.0, True),
        ((90, 100, 7, 10), 0.7, False),  # 20 points are 1.85 standard errors of ten and a hundred
        ((180, 200, 14, 20), 0.7, True),  # and 2.6 of twice as many
        ((60, 100, 46, 100), 0.46, True),  # 1.98 standard errors
        ((50, 100, 10, 10), 1.0, False),  # better is no reason to say so
        ((100, 100, 10, 10), 1.0, False),
        ((0, 100, 0, 10), 0.0, False),
    ],
)
def test_worse_is_what_chance_does_not_explain(rows: tuple[int, int, int, int], share: float, is_worse: bool) -> None:
    assert left_out(table(*rows)) == {"uncounted_attainment": share, "uncounted_is_worse": is_worse}


def test_the_words_and_marks_of_such_a_run() -> None:
    bad = {"slo_attainment": 0.993, "uncounted_attainment": 0.5, "uncounted_is_worse": True}
    fair = bad | {"uncounted_is_worse": False}
    assert worse_others(bad).endswith("were served worse: 50.0 % kept the SLO, of those counted 99.3 %")
    assert (worse_others(fair), mark(fair), mark(fair, bad)) == ("", "", WORSE)
    assert len(footnotes([fair, bad])) == 1
    assert mean_of([fair, bad])["uncounted_is_worse"] is True
    assert mean_of([fair, fair])["uncounted_is_worse"] is False
