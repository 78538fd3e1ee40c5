"""Parts of figures by hand: gaps of first steps, tokens behind a time, waits of readers, stretches of leaps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.metrics import series
from framework.metrics.clock import _window
from framework.metrics.figure import Better
from framework.metrics.figures import METRICS, direction, metric
from framework.metrics.load_state import _grows_at_last
from framework.metrics.paper_scores import gaps_of
from framework.metrics.phases import DecodeClock, _decoding
from framework.metrics.request_table import _of_the_trace, is_counted
from framework.metrics.service import crashes, pacing
from framework.metrics.service.by_position import _edges, _with_gaps
from framework.metrics.service.cancellations import cancellations
from framework.metrics.service.static_batches import idle_seats
from framework.metrics.service.tail import tail_figures
from framework.metrics.service.token_times import TokenTimes, _single_s
from framework.metrics.slo import Slo
from framework.metrics.slowdown import alone_s
from framework.metrics.statistics import _resampled, _resamples, compare
from framework.metrics.summary import git_revision
from framework.metrics.token_gaps import _ranks_around, gap_shares
from framework.metrics.token_gaps_compiled import BINS, count_values
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers.results import reduced_result, small_result

ANY: Any = None


def test_a_request_that_was_sent_three_times_was_sent_again_twice() -> None:
    """One waits to be sent, one is sent once, one is given up at the third time."""
    ended = {"state": ["failed", "finished", "cancelled"], "reason": [None, None, "gave up"], "attempts": [0, 1, 3]}
    assert cancellations(pl.DataFrame(ended)) == {"cancelled": 1, "gave_up": 1, "sent_again": 2}


def test_a_first_step_that_gave_the_first_token_has_no_gap_before_it() -> None:
    """Rows of steps 2 to 5, of which step 2 gave token 1; of a step that gave no more; of steps 3 to 5; of one gap."""
    kind = [("instance", "i4"), ("first_step", "i4"), ("last_step", "i4"), ("previous_token_s", "f8")]
    rows = np.array([(1, 2, 5, np.nan), (0, 7, 8, np.nan), (1, 3, 5, 0.5), (-1, 0, 0, 0.25)], kind)
    clock: Any = SimpleNamespace(end_s=lambda instance, step: 100.0 * instance + step + 0.5)
    assert _with_gaps(rows, clock).tolist() == [(1, 3, 5, 103.5), (1, 3, 5, 0.5), (-1, 0, 0, 0.25)]
    assert rows["first_step"].tolist() == [2, 7, 3, 0]
    known = rows[2:]
    assert _with_gaps(known, clock) is known


def test_without_a_window_the_headline_is_over_the_time_of_sending() -> None:
    result = replace(small_result(), window=None)
    counted = np.ones(5, np.bool_)
    assert _window(result, Slo(), 9.0, counted & (result.requests["state"] == 1), lambda chosen: 0.0) == (
        1.5,
        "first to last request sent",
    )
    window_s, name = _window(result, Slo(), 9.0, counted, lambda chosen: float(chosen.sum()))  # 3 served, 2 not
    assert window_s == pytest.approx(5.0 * (1 + 2 / 3))
    assert name.endswith(", longer for what was not served")


def test_a_key_of_which_nothing_is_known_is_answered_with_those_that_have_a_direction() -> None:
    with pytest.raises(
        InputError, match=r"^here: nothing tells whether more or less of goodputt is better; ask"
    ) as caught:
        direction("goodputt", "here", "ask")
    listed = str(caught.value).split("or one of ")[1]
    for one in METRICS.values():
        if one.is_latency or one.better is Better.NEITHER:
            assert f" {one.key}," not in f" {listed},", one.key
        else:
            assert one.key in listed


def test_a_wait_that_was_as_long_before_does_not_grow_at_last() -> None:
    at_s, even = np.arange(6.0), np.full(6, 10)
    assert not _grows_at_last(at_s, np.array([1.0, 1.0, 5.0, 5.0, 9.0, 14.0]), even, 1.0)
    assert _grows_at_last(at_s, np.array([1.0, 1.0, 5.0, 5.5, 9.0, 14.0]), even, 1.0)
    assert not _grows_at_last(at_s, np.array([1.0, 1.0, 5.0, 5.5, 5.5, 14.0]), even, 1.0)
    assert not _grows_at_last(at_s, np.array([1.0, 1.0, 5.0, 5.5, 9.0, 14.0]), even, 1200.0)


def test_one_row_of_decodes_lasts_as_its_steps_do() -> None:
    result = small_result()
    one = replace(result, token_log=result.token_log[:1])
    found = _decoding(one, DecodeClock(one.step_log))
    assert list(vars(found).values())[1].tolist() == [0.375, 0.0, 0.0, 0.0, 0.0]
    none = replace(result, token_log=result.token_log[:0])
    columns = list(vars(_decoding(none, DecodeClock(none.step_log))).values())
    assert [values.tolist() for values in columns[1:]] == [[0.0] * 5] * 3


# --- crashes, readers -------------------------------------------------------------------------------------------------


def test_recoveries_have_a_median_and_a_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "next_tokens_s", lambda result: np.zeros(5))
    monkeypatch.setattr(crashes, "recoveries_s", lambda result, next_s: np.array([1.0, np.nan, 3.0, 9.0, 4.0]))
    monkeypatch.setattr(crashes, "_availability", lambda result, clock: 0.5)
    monkeypatch.setattr(crashes, "_rows", lambda result, next_s: iter([{"at": 1}]))
    drops = np.array([(3, 0), (4, 1), (0, 1), (0, 2), (0, 3)], [("lost_tokens", "i8"), ("recovery", "i1")])
    instances = np.array([(5,), (6,)], [("restored_tokens", "i8")])
    result: Any = SimpleNamespace(engine=SimpleNamespace(faults=True), drops=drops, instances=instances)
    assert crashes.crash_figures(result, ANY) == {
        "availability": 0.5,
        "dropped": 5,
        "lost_tokens": 7,
        "dropped_recomputed": 1,
        "dropped_restored": 2,
        "dropped_failed": 1,
        "restored_tokens": 11,
        "median_recovery_s": 3.5,
        "p99_recovery_s": pytest.approx(8.85),
        "crashes": [{"at": 1}],
    }


def times(**changes: Any) -> TokenTimes:
    """Of two requests: 1 has steps 0 to 1 of instance 0 and 1 to 2 of instance 1; 0 has one token of its own."""
    known: dict[str, Any] = {
        "ends_s": (np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0, 7.0])),
        "request": np.array([1, 1]),
        "instance": np.array([0, 1]),
        "first": np.array([0, 1]),
        "last": np.array([2, 3]),
        "per_step": np.array([1.0, 2.0]),
        "index": np.array([1, 3]),
        "single_request": np.array([0, 1]),
        "single_s": np.array([2.5, 0.5]),
        "single_index": np.array([0, 0]),
    }
    return TokenTimes(**(known | changes))


def test_tokens_behind_a_time() -> None:
    every = np.ones(2, np.bool_)

    def after(request: int, after_s: float) -> list[float]:
        return list(crashes._tokens_after_s(times(), every, every, request, after_s))

    assert after(1, 0.0) == [1.0, 5.0, 0.5]
    assert after(1, 1.0) == [2.0, 5.0]
    assert after(1, 2.0) == [5.0]
    assert after(1, 6.0) == []
    assert (after(0, 2.0), after(0, 2.5)) == ([2.5], [])


def test_instances_are_up_but_for_the_time_of_crashes() -> None:
    down = np.array([(0.0, 2.0, 1), (4.0, 99.0, 2)], [("at_s", "f8"), ("back_s", "f8"), ("instances", "i8")])
    result: Any = SimpleNamespace(
        requests={"arrival_s": np.array([1.0, np.nan])},
        crashes=down,
        end_s=6.0,
        instances=[0, 1, 2],
        hung=np.zeros(3, np.bool_),
    )
    assert crashes._availability(result, SimpleNamespace(run_s=5.0)) == pytest.approx(1 - (1 + 2 * 2) / 15)  # type: ignore[arg-type]
    assert crashes._availability(result, SimpleNamespace(run_s=0.0)) is None  # type: ignore[arg-type]


def test_a_reader_waits_for_what_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tokens a second. Request 0 has one that comes 2 s late; The last step of 1 is the latest by 1.25 s."""
    late = times(
        single_request=np.array([0, 1, 0]), single_s=np.array([2.5, 0.5, 6.5]), single_index=np.array([0, 0, 8])
    )
    monkeypatch.setattr(pacing, "token_times", lambda result: late)
    requests = np.array([(1, 2.5), (1, 0.5), (2, 0.5)], [("state", "i8"), ("first_token_s", "f8")])
    result: Any = SimpleNamespace(engine=SimpleNamespace(log="full"), requests=requests)
    waits_s = pacing.reader_wait_s(result, 4.0)
    assert waits_s[:2].tolist() == [6.5 - 8 / 4 - 2.5, 6.0 - 5 / 4 - 0.5]
    assert np.isnan(waits_s[2])


def test_single_gaps_follow_the_token_before() -> None:
    kind = [("request", "i4"), ("instance", "i4"), ("last_step", "i4"), ("previous_token_s", "f8")]
    rows = [
        (0, -1, 0, 0.25),
        (0, 0, 2, 9.0),
        (0, -1, 0, 0.5),
        (0, -1, 0, 0.5),
        (1, 0, 1, 9.0),
        (2, 1, 1, 9.0),
        (2, -1, 0, 1.0),
    ]
    result: Any = SimpleNamespace(requests={"first_token_s": np.array([0.5, 0.0, 0.0])})
    log: Any = np.array(rows, kind)
    found = _single_s(result, log, (np.array([1.0, 2.0, 3.0]), np.array([7.0, 8.0])))
    assert found.tolist() == [0.75, 2.5, 3.0, 8.0]


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_requests_that_are_alone_decode_and_emit_alone() -> None:
    row = StepRow(base_s=1.0, per_prefill_token_s=0.25, per_sequence_s=8.0, per_sampled_s=64.0, per_context_token_s=2.0)
    first_s, rest_s = alone_s(row, np.array([4, 2, 4]), np.array([3, 1, 2]))
    assert first_s.tolist() == [66.0, 65.5, 66.0]
    steps = {context: 1.0 + 8.0 + 64.0 + 2.0 * context for context in (5, 6)}
    assert rest_s.tolist() == [steps[5] + steps[6], 0.0, steps[5]]


def test_of_many_values_resamples_are_drawn_and_the_sample_is_one_of_them() -> None:
    counts, weights = _resamples(12)
    assert counts[0].tolist() == [12.0] + [0.0] * 11
    assert (counts.sum(axis=1) == 12).all()
    assert weights.sum() == pytest.approx(1.0)
    assert len(set(weights.tolist())) == 1
    few, shares = _resamples(2)
    assert sorted(zip(few.tolist(), shares.tolist(), strict=True)) == [
        ([0.0, 2.0], pytest.approx(0.25)),
        ([1.0, 1.0], pytest.approx(0.5)),
        ([2.0, 0.0], pytest.approx(0.25)),
    ]


def test_a_trace_may_know_sessions_and_no_turns() -> None:
    plain = Workload(np.arange(2.0), np.full(2, 4), np.full(2, 4), session_id=np.array([-1, 3]))
    columns = _of_the_trace(plain)
    assert list(columns) == ["session_id"]
    assert columns["session_id"].to_list() == [None, 3]
    turns = _of_the_trace(replace(plain, turn=np.array([0, 7])))
    assert turns["turn"].to_list() == [None, 7]


def test_a_folder_of_a_repository_is_none() -> None:
    assert git_revision(ROOT / "tests") is None


def test_ranks_around_quantiles_lie_within() -> None:
    assert set(_ranks_around(1).tolist()) == {0}
    half = len(_ranks_around(5)) // 2
    assert (_ranks_around(5)[half:] - _ranks_around(5)[:half] == 1).all()
    assert _ranks_around(5).max() == 4


def test_accepted_drafts_are_gaps_of_nothing() -> None:
    result = small_result()
    log = result.token_log.copy()
    log["accepted"][0] = 5
    outputs = np.array([8, 1, 10, 5, 4])
    upto_s, shares = gap_shares(result.step_log, log, outputs, 2)
    plain_s, _ = gap_shares(result.step_log, result.token_log, np.array([3, 1, 10, 5, 4]), 2)
    assert upto_s[0] < 1e-10
    assert upto_s[1:].tolist() == plain_s.tolist()
    assert shares.tolist() == [0.5, 0.7, 1.0]


def test_one_gap_is_all_of_them() -> None:
    result = small_result()
    _, shares = gap_shares(result.step_log[:0], result.token_log[:0], np.array([1]), 1)
    assert len(shares) == 0
    single = result.token_log[:1].copy()
    single["instance"], single["previous_token_s"], single["accepted"] = -1, 0.25, 0
    upto_s, shares = gap_shares(result.step_log[:0], single, np.array([2]), 1)
    assert shares.tolist() == [1.0]
    assert 0.25 <= upto_s[0] <= 0.25 * 1.005


def leaps(*rows: tuple[float, float, float, float, float]) -> Any:
    return series._Reads(*np.array(rows).T)


@pytest.mark.parametrize("elapsed_s", [0.0, 0.3, 1.0, 1.25, 2.7, 4.5, 5.5])
def test_tokens_read_since_the_start_of_a_leap(elapsed_s: float) -> None:
    """Steps of 1, 1.5, 2 and 1 s; of two decodes that read 7 tokens, then 9, 11; and of steps that get shorter."""
    for first_s, increment_s, batch, context, steps in ((1.0, 0.5, 2.0, 7.0, 3.0), (2.0, -0.25, 1.0, 5.0, 3.0)):
        expected, left_s = 0.0, elapsed_s
        for step in range(int(steps) + 1):
            lasting_s = first_s + increment_s * step if step < steps else np.inf
            expected += (context + batch * step) * min(left_s, lasting_s)
            left_s -= min(left_s, lasting_s)
        found = series._context_until(leaps((first_s, increment_s, batch, context, steps)), np.array([elapsed_s]))
        assert found.tolist() == [pytest.approx(expected)]
    assert series._context_until(leaps((0.0, 0.0, 1.0, 5.0, 1.0)), np.array([0.0])).tolist() == [0.0]


def test_long_leaps_last_as_long_as_their_steps() -> None:
    rows = np.array([(1.0, 0.5)], [("first_s", "f8"), ("increment_s", "f8")])
    assert series._lasting_s(rows, np.array([100_000], np.int32)).tolist() == [100_000 + 0.5 * 100_000 * 99_999 / 2]


def test_leaps_in_turn_have_an_order_where_instances_are_few() -> None:
    begin_s, end_s = np.array([0.0, 1.0, 1.0]), np.array([1.0, 3.0, 2.0])
    order = series._in_turn(np.array([1, 0, 1]), begin_s, end_s)
    assert order is not None
    assert order.tolist() == [1, 0, 2]
    assert series._in_turn(np.array([0, 0, 1]), begin_s, np.array([4.0, 3.0, 2.0])) is None
    assert series._in_turn(np.array([0, 32_766, 5]), begin_s, end_s) is not None
    assert series._in_turn(np.array([0, 32_767, 5]), begin_s, end_s) is None


def test_buckets_of_gaps_reach_as_far_as_the_longest() -> None:
    assert [_edges(longest) for longest in (0, 16, 17, 64, 65)] == [
        [1, 17],
        [1, 17],
        [1, 17, 65],
        [1, 17, 65],
        [1, 17, 65, 257],
    ]


def test_resamples_without_spread_are_as_far_as_can_be_unless_they_are_the_mean() -> None:
    """Of two values: both twice are infinitely far, one of each is the mean."""
    sizes, weights = _resampled(np.array([1.0, 3.0]))
    assert sorted(zip(sizes.tolist(), weights.tolist(), strict=True)) == [(0.0, 0.5), (np.inf, 0.25), (np.inf, 0.25)]
    assert _resampled(np.array([2.0, 2.0]))[0].tolist() == [np.inf, 0.0, np.inf]


def test_of_ten_thousand_resamples_five_hundred_are_beyond_the_interval() -> None:
    values = np.random.default_rng(2).normal(size=12)
    sizes = np.sort(_resampled(values)[0])[::-1]
    error = values.std(ddof=1) / np.sqrt(12)
    assert compare(values).bootstrap_half_width == pytest.approx(sizes[500] * error, rel=1e-12)
    assert sizes[499] > sizes[500]


def test_seats_are_idle_for_as_long_as_steps_last() -> None:
    """Three steps of 1, 1.5 and 2 s of two requests, then two of 2 and 1.5 s of one: 3.5 of 2 x 8 s."""
    kind = [(name, "f8") for name in ("first_s", "increment_s")]
    kind += [(name, "i4") for name in ("instance", "steps", "batch", "prefill_tokens")]
    log = np.array([(0.5, 0.0, 0, 1, 0, 9), (1.0, 0.5, 0, 3, 2, 0), (2.0, -0.5, 0, 2, 1, 0)], kind)
    result: Any = SimpleNamespace(
        engine=SimpleNamespace(batching_of=lambda pool: "static"),
        cluster=SimpleNamespace(pools=["one"]),
        step_log=log,
        instances=np.zeros(1, [("pool", "i4")]),
    )
    assert idle_seats(result) == {"idle_seat_share": pytest.approx(3.5 / 16)}


def test_a_share_is_shown_in_percent_and_nothing_else_is() -> None:
    assert (metric("slo_attainment").scale, metric("slo_attainment").unit) == (100.0, "%")
    assert metric("goodput_rps").scale == 1.0


def test_a_window_longer_than_the_run_is_the_only_one() -> None:
    assert series.windows_of(small_result(), 1000.0).count == 1


def test_a_reduced_log_cannot_tell_how_long_readers_wait() -> None:
    result = reduced_result(gaps_of(small_result()))
    with pytest.raises(InputError, match=r"set engine\.log=full"):
        pacing.reader_wait_s(result, 10.0)


def test_a_run_with_a_request_that_was_never_sent_has_no_tail() -> None:
    requests = small_result().requests.copy()
    requests["arrival_s"] = [0.0, 0.0, 0.0, 0.0, np.nan]
    assert tail_figures(small_result(requests=requests)) == {}


def test_requests_count_that_the_table_says_count() -> None:
    table = pl.DataFrame({"id": [0, 1]})
    assert is_counted(table).tolist() == [True, True]
    assert is_counted(table.with_columns(counted=pl.Series([True, False]))).tolist() == [True, False]


def test_what_lies_beyond_the_bins_is_in_the_first_and_the_last() -> None:
    counts = np.zeros(BINS, np.int64)
    count_values(np.array([0.0, 1e-300, 1e300]), counts, np.zeros(2))
    assert (counts[0], counts[-1], counts.sum()) == (2, 1, 3)
