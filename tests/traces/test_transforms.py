"""Transforms of traces: what they keep, what they change, and what they refuse."""

from __future__ import annotations

import math
import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from framework.errors import InputError
from traces import formats, transforms
from traces.frame import Trace, to_workload
from traces.load import Transforms, load
from traces.statistics import dispersion

TIMES = [0.0, 0.0, 3.0, 3.0, 3.0, 9.0]


def trace(times: list[float] | None = None, **columns: object) -> Trace:
    arrival = TIMES if times is None else times
    count = len(arrival)
    frame = pl.DataFrame(
        {"arrival_s": arrival, "input_tokens": range(10, 10 + count), "output_tokens": range(1, 1 + count), **columns},
        schema_overrides={"think_s": pl.Float64, "session_id": pl.Int64},
    )
    return Trace(frame, "t", "real", "abc", hash_block_tokens=4 if "hash_ids" in columns else 0)


def chat() -> Trace:
    return trace(
        session_id=[0, None, 0, 2, 2, 0],
        turn=[0, None, 1, 0, 1, 2],
        think_s=[None, None, 1.0, None, 0.0, 5.0],
        hash_ids=[[0, 1, 2], [3], [0, 1], [7, 8], [7, 9], []],
    )


def outputs(result: Trace) -> list[int]:
    return result.frame["output_tokens"].to_list()


def times(result: Trace) -> list[float]:
    return result.frame["arrival_s"].to_list()


many = st.lists(st.floats(0, 1e4), min_size=2, max_size=60).map(lambda gaps: np.cumsum([0.0, *gaps]).tolist())


def test_limit():
    assert outputs(transforms.limit(trace(), 2)) == [1, 2]
    assert outputs(transforms.limit(trace(), 99)) == [1, 2, 3, 4, 5, 6]


def test_limit_says_in_what_the_beginning_is_unlike_the_rest():
    rng = np.random.default_rng(0)
    even = np.arange(2000.0)
    lengths = {"input_tokens": rng.integers(50, 150, 2000), "output_tokens": rng.integers(50, 150, 2000)}
    assert transforms.limit(trace(even.tolist(), **lengths), 500).caveat == ""
    longer = np.where(even < 500, 2 * lengths["input_tokens"], lengths["input_tokens"])
    caveat = transforms.limit(trace(even.tolist(), **{**lengths, "input_tokens": longer}), 500).caveat
    assert caveat == (
        f"the first 500 of 2,000 requests are unlike the rest: prompts of {longer[:500].mean():,.0f} tokens on average "
        f"(all: {longer.mean():,.0f})"
    )
    late = np.where(even < 500, even, 500 + 2 * (even - 500))
    assert "recorded at 1 requests/s (all: 0.571)" in transforms.limit(trace(late.tolist(), **lengths), 500).caveat
    ids = [[0] if row > 500 and row % 2 else [row] for row in range(2000)]
    caveat = transforms.limit(trace(even.tolist(), **lengths, hash_ids=ids), 500).caveat
    assert caveat.endswith("unlike the rest: 0 % of hash blocks came before (all: 38 %)")


def test_chance_is_no_caveat_of_a_short_beginning():
    heavy = np.random.default_rng(1).lognormal(5, 1.5, 2000).astype(int) + 1
    same = trace(np.arange(2000.0).tolist(), input_tokens=heavy, output_tokens=np.full(2000, 10))
    assert abs(heavy[:30].mean() / heavy.mean() - 1) > 0.1
    assert transforms.limit(same, 30).caveat == ""


def test_window_is_half_open_and_starts_at_0():
    result = transforms.window(trace(), 3.0, 9.0)
    assert (times(result), outputs(result)) == ([0.0, 0.0, 0.0], [3, 4, 5])
    assert result.notes == ("window of 3 to 9 s",)


def test_window_of_a_session_makes_its_first_turn_open():
    workload = to_workload(transforms.window(chat(), 3.0, 10.0))
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, -1, 1, 0]


def test_length_filters_say_what_they_left_out():
    result = transforms.keep_lengths(trace(), (11, None), (None, 4))
    assert outputs(result) == [2, 3, 4]
    assert result.notes[0].startswith("3 of 6 requests left out")


@given(many, st.floats(0.01, 100.0))
@settings(max_examples=50, deadline=None)
def test_rate_is_met_and_burstiness_keeps_its_shape(arrivals, rate):
    original = trace(arrivals)
    if math.isinf(transforms.rate_rps(original)) or not math.isfinite(rate / transforms.rate_rps(original)):
        return  # all at once, or nearly: no rate to be stretched
    result = transforms.set_rate(original, rate)
    assert transforms.rate_rps(result) == pytest.approx(rate, rel=1e-9)
    span = np.array(arrivals) / arrivals[-1]
    np.testing.assert_allclose(result.arrival_s / result.arrival_s[-1], span, rtol=1e-9, atol=1e-12)


def test_rate_scale_and_think_times():
    result = transforms.scale_rate(chat(), 2.0)
    assert times(result) == [0.0, 0.0, 1.5, 1.5, 1.5, 4.5]
    assert result.frame["think_s"].equals(chat().frame["think_s"])
    assert transforms.rate_rps(result) == 2 * transforms.rate_rps(chat())


def test_tile_repeats_with_new_names():
    original = chat()
    result = transforms.tile(original, 3)
    period = transforms.period_s(original)
    assert period == 9.0 * 6 / 5
    np.testing.assert_allclose(result.arrival_s, np.concatenate([np.array(TIMES) + k * period for k in range(3)]))
    assert transforms.rate_rps(result) == pytest.approx(transforms.rate_rps(original))
    copies = [set(result.frame["hash_ids"].slice(6 * k, 6).explode().drop_nulls()) for k in range(3)]
    assert all(len(copy) == 7 for copy in copies)
    assert len(set.union(*copies)) == 21
    workload = to_workload(result)
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, -1, 0, -1, 3, 2, -1, -1, 6, -1, 9, 8, -1, -1, 12, -1, 15, 14]
    shared = [workload.hash_ids_of(r) for r in (6, 8)]
    assert shared[0][:2].tolist() == shared[1].tolist()


def test_tile_then_limit_is_quick_at_a_million():
    arrivals = np.arange(10_000) * 0.25
    original = trace(arrivals.tolist(), hash_ids=pl.Series([[i, i + 1, i + 2] for i in range(10_000)]))
    started = time.process_time()
    workload = to_workload(Transforms(tile=101, limit=1_000_000, rate=8.0).apply(original, 0))
    assert time.process_time() - started < 4.0
    assert len(workload) == 1_000_000
    assert len(np.unique(workload.hash_ids[: 3 * 10_000 + 3])) == 10_002 + 3
    assert (len(workload) - 1) / workload.arrival_s[-1] == pytest.approx(8.0)


def test_resampled_blocks_are_stretches_of_the_recording():
    arrivals = np.cumsum(np.random.default_rng(0).exponential(size=500))
    original = trace((arrivals - arrivals[0]).tolist())
    period = transforms.period_s(original)
    block = period / 7.5
    result = transforms.resample(original, block, 3)
    row = result.frame["output_tokens"].to_numpy() - 1
    played, recorded = result.arrival_s, original.arrival_s[row]
    lag = (played - recorded) % period  # one for each block, but for the shift to 0 s
    within = np.abs(np.diff(lag)) < 1e-9
    assert np.count_nonzero(~within) == 7
    assert np.array_equal(np.diff(row)[within] % 500, np.ones(within.sum()))  # whole stretches, once around the end
    edges = played[1:][~within]
    assert np.all(np.abs(edges / block - np.arange(1, 8)) < 0.2)
    assert result.notes == (f"8 blocks of {block:g} s drawn with replacement (seed 3)",)


def test_resampling_draws_each_request_once_on_average():
    original = trace(np.arange(200.0).tolist())
    drawn = np.zeros(200)
    replicates = [transforms.resample(original, 30.0, seed) for seed in range(400)]
    for replicate in replicates:
        np.add.at(drawn, replicate.frame["output_tokens"].to_numpy() - 1, 1)
    assert np.mean([len(replicate) for replicate in replicates]) == pytest.approx(200, abs=0.5)
    assert drawn.mean() == pytest.approx(400, rel=0.01)
    assert np.abs(drawn - 400).max() < 5 * 400**0.5  # as likely at the ends as in the middle
    spread = np.std([len(replicate) for replicate in replicates])
    assert spread < 5  # regular arrivals: only the edges of blocks vary
    again = transforms.resample(original, 30.0, 5)
    assert again.frame.equals(replicates[5].frame)
    assert not again.frame.equals(replicates[6].frame)


def test_resampling_keeps_the_rate_and_bursts_of_a_recording(real_trace):
    for file in ("conversation_trace.jsonl", "AzureLLMInferenceTrace_conv.csv"):
        original = formats.read(real_trace(file))
        replicates = [transforms.resample(original, 300.0, seed) for seed in range(20)]
        rates = [transforms.rate_rps(replicate) for replicate in replicates]
        assert np.mean(rates) == pytest.approx(transforms.rate_rps(original), rel=0.05)
        bursts = [dispersion(replicate.arrival_s, 10.0) for replicate in replicates]
        assert np.mean(bursts) == pytest.approx(dispersion(original.arrival_s, 10.0), rel=0.15)


def test_what_is_drawn_again_has_new_blocks():
    ids = pl.Series([[i // 10, 100 + i] for i in range(100)])
    original = trace(np.arange(100.0).tolist(), hash_ids=ids)
    result = transforms.resample(original, 40.0, 1)
    row = result.frame["output_tokens"].to_numpy() - 1
    seen: dict[int, int] = {}
    for request, (shared, own) in zip(row.tolist(), result.frame["hash_ids"].to_list(), strict=True):
        copy = seen.get(request, 0)
        seen[request] = copy + 1
        assert (shared, own) == (request // 10 + 200 * copy, 100 + request + 200 * copy)
    assert max(seen.values()) > 1
    assert result.notes[0].endswith("as recorded")
    assert ", 45.0% as recorded" in result.notes[0]


def test_sessions_of_a_sample_hold_within_its_blocks():
    turns = np.arange(120)
    original = trace(
        turns.astype(float).tolist(), session_id=(turns % 3).tolist(), turn=(turns // 3).tolist(), think_s=[1.0] * 120
    )
    result = transforms.resample(original, 25.0, 2)
    workload = to_workload(result)
    assert workload.previous is not None
    later = np.flatnonzero(workload.previous >= 0)
    row = result.frame["output_tokens"].to_numpy() - 1
    assert np.all(row[later] - row[workload.previous[later]] == 3)
    assert np.all(later - workload.previous[later] == 3)
    cut = len(workload) - len(later) - np.count_nonzero(row < 3)
    assert result.notes[0].endswith(f"{cut} later turns became first turns at the edges of blocks")
    assert cut >= 12


def test_a_sample_may_be_of_a_twin_and_is_cut_and_stretched_like_a_recording():
    workload = load(name="reasoning", resample_s=60.0, limit=500, rate=3.0, seed=4)
    assert len(workload) == 500
    assert [note.split()[1] for note in workload.notes[1:]] == ["blocks", "times"]
    other = load(name="reasoning", resample_s=60.0, limit=500, rate=3.0, seed=4)
    np.testing.assert_array_equal(workload.output_tokens, other.output_tokens)


def test_mix_keeps_traces_apart():
    a = chat()
    b = Trace(trace([0.0, 3.0, 4.0], hash_ids=[[0], [0, 1], [5]]).frame, "b", "twin", hash_block_tokens=4)
    c = trace([0.0, 9.0])
    result = transforms.mix([a, b, c], "all")
    assert (result.name, result.source, result.hash_block_tokens, len(result)) == ("all", "twin", 4, 11)
    assert times(result) == sorted([*TIMES, 0.0, 3.0, 4.0, 0.0, 9.0])
    assert outputs(result) == [1, 2, 1, 1, 3, 4, 5, 2, 3, 6, 2]  # ties in the order given
    workload = to_workload(result)
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, -1, -1, -1, 0, -1, 5, -1, -1, 4, -1]
    ids = result.frame["hash_ids"].to_list()
    assert ids[2] == [10]
    assert ids[7] == [10, 11]
    assert ids[3] == []
    assert transforms.mix([c, c]).hash_block_tokens == 0


def test_mix_needs_one_block_size():
    other = Trace(trace(hash_ids=[[0]] * 6).frame, "o", "real", hash_block_tokens=8)
    with pytest.raises(InputError, match="hash blocks of 4 and 8 tokens cannot be mixed"):
        transforms.mix([chat(), other])
    with pytest.raises(InputError, match="no traces"):
        transforms.mix([])


def test_poisson_keeps_span_order_and_rate():
    original = trace(np.repeat(np.arange(1000.0), 5).tolist())
    result = transforms.poisson(original, 7)
    assert outputs(result) == outputs(original)
    assert transforms.rate_rps(result) == pytest.approx(transforms.rate_rps(original))
    gaps = np.diff(result.arrival_s)
    assert stats.kstest(gaps / gaps.mean(), "expon").pvalue > 0.01
    assert times(result) == times(transforms.poisson(original, 7))
    assert times(result) != times(transforms.poisson(original, 8))
    assert "Poisson" in result.notes[0]


def test_jitter_spreads_ticks_within_their_width():
    original = trace(np.repeat(np.arange(0.0, 300.0, 3.0), 20).tolist())
    result = transforms.jitter(original, 3.0, 1)
    assert outputs(result) == outputs(original)
    moved = result.arrival_s - original.arrival_s
    assert moved.max() < 3.0
    assert moved.min() > -3.0
    assert len(np.unique(result.arrival_s)) == 2000
    assert result.arrival_s[0] == 0
    assert np.all(np.diff(result.arrival_s) >= 0)
    within = (result.arrival_s + moved[0]) % 3.0
    assert stats.kstest(within / 3.0, "uniform").pvalue > 1e-4
    assert result.notes == ("arrivals moved by uniform times below 3 s",)
    assert transforms.jitter(original, 0.0, 1) is original


@given(many, st.integers(1, 5), st.integers(1, 50), st.booleans(), st.floats(0, 3), st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_any_chain_gives_a_valid_workload(arrivals, tile, limit, poisson, jitter_s, scale):
    steps = Transforms(tile=tile, limit=limit, poisson=poisson, jitter_s=jitter_s, rate_scale=scale)
    workload = to_workload(steps.apply(trace(arrivals), 0))
    assert len(workload) == min(limit, tile * len(arrivals))
    assert workload.arrival_s[0] == 0
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert workload.sha256 == "abc"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({"rate": 1.0, "rate_scale": 2.0}, "exclude each other"),
        ({"rate": 0}, "trace.rate must be a finite number above 0, got 0"),
        ({"rate": "fast"}, "trace.rate must be a finite number above 0, got 'fast'"),
        ({"rate_scale": -1.0}, "trace.rate_scale must be a finite number above 0, got -1.0"),
        ({"rate_scale": float("nan")}, "trace.rate_scale must be a finite number above 0, got nan"),
        ({"limit": 0}, "trace.limit must be a whole number of at least 1, got 0"),
        ({"limit": 2.5}, "trace.limit must be a whole number of at least 1, got 2.5"),
        ({"tile": 0}, "trace.tile must be a whole number of at least 1, got 0"),
        ({"window_s": 5}, "trace.window_s is 5, must be .start, end."),
        ({"window_s": [1]}, "must be .start, end."),
        ({"window_s": [2, 1]}, "with start < end"),
        ({"window_s": [-1, 1]}, "start of trace.window_s must be a finite number of at least 0, got -1"),
        ({"window_s": [100, 200]}, "no request is left by trace.window_s"),
        ({"min_input_tokens": 99}, "no request is left by the length filters"),
        ({"min_input_tokens": 9, "max_input_tokens": 8}, "trace.min_input_tokens is 9, more than"),
        ({"max_output_tokens": "x"}, "trace.max_output_tokens must be a whole number of at least 1, got 'x'"),
        ({"resample_s": 0}, "trace.resample_s must be a finite number above 0, got 0"),
        ({"resample_s": True}, "trace.resample_s must be a finite number above 0, got True"),
        ({"resample_s": 10.9}, "trace.resample_s is 10.9, must lie between the mean gap and the period of 10.8 s"),
        ({"resample_s": 1.7}, "trace.resample_s is 1.7, must lie between the mean gap and the period"),
        ({"jitter_s": -1}, "trace.jitter_s must be a finite number of at least 0, got -1"),
        ({"poisson": 3}, "trace.poisson must be true or false, got 3"),
    ],
)
def test_mistakes(steps, reason):
    with pytest.raises(InputError, match=reason) as raised:
        Transforms(**steps).apply(trace(), 0)
    assert "\n" not in str(raised.value)


def test_no_rate_without_time():
    with pytest.raises(InputError, match="all requests arrive at once"):
        transforms.set_rate(trace([0.0, 0.0]), 1.0)


def test_no_sample_of_one_moment_or_of_silence():
    with pytest.raises(InputError, match=r"trace\.resample_s is 1, must lie between"):
        transforms.resample(trace([0.0, 0.0]), 1.0, 0)
    with pytest.raises(InputError, match=r"no request is left by trace\.resample_s; take longer blocks"):
        transforms.resample(trace([0.0, 1.0, 2.0, 900.0]), 301.0, 22)


def test_load_applies_them_to_a_file(tmp_path):
    path = tmp_path / "t.parquet"
    formats.write_parquet(trace(), path)
    workload = load(path=str(path), window_s=[0.0, 9.0], min_output_tokens=2, tile=2, limit=5, rate=2.0, jitter_s=0.5)
    assert len(workload) == 5
    assert workload.output_tokens.tolist() == [2, 3, 4, 5, 2]
    assert workload.arrival_s[-1] == pytest.approx(2.0)
    assert len(workload.notes) == 5


def test_a_rate_is_refused_before_anything_is_read() -> None:
    for rate in (-3, 0, "fast"):
        with pytest.raises(InputError, match=r"trace\.rate must be a finite number above 0"):
            load(path="nowhere.csv", rate=rate)
