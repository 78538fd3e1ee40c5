"""Transforms of short traces, to the last row and word."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from traces import transforms
from traces.frame import Trace
from traces.load import Transforms
from traces.transforms import (
    burst,
    jitter,
    keep_lengths,
    limit,
    mix,
    period_s,
    poisson,
    rate_rps,
    resample,
    tile,
    window,
)

SIX = [0.0, 0.0, 3.0, 3.0, 4.0, 9.0]


def trace(arrival_s: list[float] | None = None, **columns: object) -> Trace:
    arrivals = SIX if arrival_s is None else arrival_s
    count = len(arrivals)
    rows = {"arrival_s": arrivals, "input_tokens": range(10, 10 + count), "output_tokens": range(1, 1 + count)}
    frame = pl.DataFrame(rows | columns, schema_overrides={"session_id": pl.Int64, "hash_ids": pl.List(pl.Int64)})
    return Trace(frame, "t", "real", "0123456789abcdef", hash_block_tokens=4 if "hash_ids" in columns else 0)


def outputs(found: Trace) -> list[int]:
    return found.frame["output_tokens"].to_list()


def test_a_period_has_a_mean_gap_behind_the_last_arrival() -> None:
    assert [period_s(trace()), rate_rps(trace())] == pytest.approx([10.8, 6 / 10.8])
    assert (period_s(trace([0.0])), rate_rps(trace([0.0]))) == (0.0, math.inf)
    assert rate_rps(trace([0.0, 0.25])) == 4.0
    assert (period_s(trace([0.0, 0.0])), rate_rps(trace([0.0, 0.0]))) == (0.0, math.inf)


def test_a_limit_that_all_meet_changes_nothing() -> None:
    whole = trace()
    assert limit(whole, 6) is whole
    assert outputs(limit(whole, 5)) == [1, 2, 3, 4, 5]
    with pytest.raises(InputError, match=r"trace\.limit must be a whole number of at least 1"):
        limit(whole, 0)


def test_a_window_begins_at_its_first_request() -> None:
    found = window(trace(), 3.0, 9.0)
    assert (outputs(found), found.arrival_s.tolist()) == ([3, 4, 5], [0.0, 0.0, 1.0])
    assert found.notes == ("window of 3 to 9 s",)
    for start_s, end_s, words in (
        (4.0, 4.0, r"is \[4, 4\], must be \[start, end\] with start < end"),
        (0.0, math.nan, "the end of trace.window_s must be a finite number above 0"),
        (-1.0, 4.0, "the start of trace.window_s"),
        (10.0, 11.0, r"no request is left by trace\.window_s"),
    ):
        with pytest.raises(InputError, match=words):
            window(trace(), start_s, end_s)


def test_lengths_are_kept_from_end_to_end() -> None:
    both = keep_lengths(trace(), (11, 13), (None, 3))
    assert (outputs(both), both.arrival_s.tolist()) == ([2, 3], [0.0, 3.0])
    assert both.notes == ("4 of 6 requests left out: kept input_tokens from 11 to 13 and output_tokens from 1 to 3",)
    only = keep_lengths(trace(), (15, None))
    assert outputs(only) == [6]
    assert only.notes == ("5 of 6 requests left out: kept input_tokens from 15 to any",)
    assert outputs(keep_lengths(trace(), (12, 12))) == [3]
    for lengths, words in (
        ((12, 11), r"trace\.min_input_tokens is 12, more than trace\.max_input_tokens, 11"),
        ((0, None), r"trace\.min_input_tokens must be a whole number of at least 1"),
        ((None, 2.5), r"trace\.max_input_tokens must be"),
        ((99, None), "no request is left by the length filters"),
    ):
        with pytest.raises(InputError, match=words):
            keep_lengths(trace(), lengths)  # type: ignore[arg-type]


def test_what_would_last_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "MOST_S", 18.0)
    assert transforms.scale_rate(trace(), 0.5).arrival_s.tolist() == [0.0, 0.0, 6.0, 6.0, 8.0, 18.0]
    with pytest.raises(InputError, match=r"last request would arrive after 18\.8 s, at most 18 s are played"):
        transforms.scale_rate(trace(), 0.48)
    with pytest.raises(InputError, match=r"trace\.rate_scale must be a finite number above 0"):
        transforms.scale_rate(trace(), -1.0)
    with pytest.raises(InputError, match=r"trace\.rate must be"):
        transforms.set_rate(trace(), 2e6)


def test_copies_follow_one_period_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [[0, 1], [], [2], [0], [], [1]]
    found = tile(trace(session_id=[0, None, 0, 4, None, 4], hash_ids=ids), 3)
    assert found.arrival_s.tolist() == pytest.approx([copy * 10.8 + time for copy in range(3) for time in SIX])
    own = (0, None, 0, 4, None, 4)
    sessions = [None if name is None else name + 5 * copy for copy in range(3) for name in own]
    assert found.frame["session_id"].to_list() == sessions
    assert found.frame["hash_ids"].to_list() == [[name + 3 * copy for name in own] for copy in range(3) for own in ids]
    assert found.notes == ("tiled 3 times, 10.8 s apart",)
    nothing = tile(trace(session_id=[None] * 6, hash_ids=[[]] * 6), 2)
    assert nothing.frame["session_id"].to_list() == [None] * 12
    monkeypatch.setattr(transforms, "MOST_REQUESTS", 12)
    assert len(tile(trace(), 2)) == 12
    with pytest.raises(InputError, match=r"trace\.tile makes 18 requests, at most 12 can be played"):
        tile(trace(), 3)
    with pytest.raises(InputError, match=r"trace\.tile must be a whole number of at least 1"):
        tile(trace(), 0)


def test_a_mixture_says_what_it_is_of() -> None:
    plain, blocks = trace([0.0, 3.5]), trace([0.0, 3.0], hash_ids=[[0], [2]], session_id=[None, None])
    noted = Trace(blocks.frame, "n", "twin", "fedcba9876543210", 4, ("said",))
    found = mix([plain, blocks, noted])
    assert (found.name, found.source, found.sha256, found.hash_block_tokens) == ("mix", "twin", "", 4)
    assert found.notes == (
        "mix of t (real, sha256 0123456789ab), t (real, sha256 0123456789ab), n (twin, sha256 fedcba987654)",
        "n (twin): said",
    )
    assert found.frame["hash_ids"].to_list() == [[], [0], [3], [2], [5], []]
    assert found.frame["session_id"].to_list() == [None] * 6
    assert (mix([plain, plain]).source, mix([plain, plain]).hash_block_tokens) == ("real", 0)


def test_poisson_arrivals_are_those_of_the_seed_within_the_span() -> None:
    gaps = np.random.default_rng([5, 1]).exponential(size=2)
    expected = [0.0, 8.0 * gaps[0] / gaps.sum(), 8.0]
    assert poisson(trace([0.0, 1.0, 8.0]), 5).arrival_s.tolist() == pytest.approx(expected)
    pair = trace([0.0, 8.0])
    assert poisson(pair, 5) is pair


def test_a_burst_is_denser_within_an_unchanged_period() -> None:
    even = trace([float(second) for second in range(10)])  # one a second, a period of 10 s
    moved = burst(even, 0.2, 0.4, 3.0)
    # Outside the rate is 1 / (1 + 2 x 0.2) = 5/7: 10/7 requests in the first 2 s, 30/7 in the next two.
    expected = [second * 7 / 5 if second < 10 / 7 else 2 + (second - 10 / 7) * 7 / 15 for second in range(6)]
    assert moved.arrival_s[:6].tolist() == pytest.approx(expected)
    assert moved.arrival_s[9] == pytest.approx(10 - 7 / 5)
    assert burst(even, 0.5, 1.0, 3.0).arrival_s[9] == pytest.approx(10 - 2 / 3)
    for start, end in ((0.5, 0.4), (0.5, 1.5), (-0.5, 0.5)):
        with pytest.raises(InputError, match=rf"trace\.burst is from {start} to {end}"):
            burst(even, start, end, 3.0)
    with pytest.raises(InputError, match=r"trace\.burst is 3, must be \[start, end, factor\]"):
        Transforms(burst=3)  # type: ignore[arg-type]


def test_jittered_arrivals_are_those_of_the_seed() -> None:
    moved = sorted(np.array(SIX) + np.random.default_rng([5, 2]).uniform(0.0, 1.5, 6))
    assert jitter(trace(), 1.5, 5).arrival_s.tolist() == pytest.approx([time - moved[0] for time in moved])
    with pytest.raises(InputError, match=r"trace\.jitter_s must be"):
        jitter(trace(), -1.0, 5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_s", [1.8, 4.0, 10.8])
def test_a_sample_is_of_circular_blocks(block_s: float, seed: int) -> None:
    """Each block begins anywhere and goes on from the period's end at its beginning; the last one is cut."""
    ids = [[0, 1], [], [2], [0], [], [1]]
    one = trace(session_id=[0, None, 0, 4, None, 4], turn=[0, None, 1, 0, None, 1], hash_ids=ids)
    period, rows = 10.8, list(zip(SIX, ids, one.frame["session_id"].to_list(), strict=True))
    begins = np.random.default_rng([seed, 3]).uniform(0.0, period, math.ceil(period / block_s))
    drawn: list[tuple[float, int, int]] = []  # when, which request, and in which piece
    for block, begin in enumerate(begins):
        length = min(block_s, period - block * block_s)
        for wrapped in (0, 1):
            drawn += [
                (block * block_s + time + wrapped * period - begin, row, 2 * block + wrapped)
                for row, time in enumerate(SIX)
                if begin <= time + wrapped * period < begin + length
            ]
    found = resample(one, block_s, seed)
    assert outputs(found) == [row + 1 for _, row, _ in drawn]
    assert found.arrival_s.tolist() == pytest.approx([time - drawn[0][0] for time, _, _ in drawn], abs=1e-9)
    before = [sum(row == earlier for _, earlier, _ in drawn[:place]) for place, (_, row, _) in enumerate(drawn)]
    names = [[name + 3 * count for name in rows[row][1]] for count, (_, row, _) in zip(before, drawn, strict=True)]
    assert found.frame["hash_ids"].to_list() == names
    sessions = [None if (own := rows[row][2]) is None else own + 5 * piece for _, row, piece in drawn]
    assert found.frame["session_id"].to_list() == sessions
    opening = [name is None or name not in sessions[:place] for place, name in enumerate(sessions)]
    cut = sum(opens and row in (2, 5) for opens, (_, row, _) in zip(opening, drawn, strict=True))
    every = [name for own in names for name in own]
    repeated = (len(every) - len(set(every))) / max(len(every), 1)
    note = (
        f"{len(begins)} blocks of {block_s:g} s drawn with replacement (seed {seed}); {cut} later turns became first"
        f" turns at the edges of blocks; {repeated:.1%} of the hash blocks came before, 40.0% as recorded"
    )
    assert found.notes == (note,)


@pytest.mark.parametrize("block_s", [1.79, 10.81, 0.0])
def test_blocks_are_no_shorter_than_a_gap_and_no_longer_than_the_period(block_s: float) -> None:
    with pytest.raises(InputError, match=r"trace\.resample_s (is|must be)"):
        resample(trace(), block_s, 0)
