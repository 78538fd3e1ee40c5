"""Gaps recovered from leaps against gaps between single tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from framework.engine.memory.records import STEP_LOG, TOKEN_LOG
from framework.errors import InvariantError
from framework.metrics import token_gaps
from framework.metrics.token_gaps import GapReducer, recover, slowest_mean
from framework.result import Gaps


class Log(NamedTuple):
    leaps: np.ndarray
    memberships: np.ndarray
    output_tokens: np.ndarray
    instances: int
    gaps: list[np.ndarray]  # of each request, from its token times
    leap_end_s: np.ndarray
    closed_s: np.ndarray  # of each membership


def random_log(seed: int, requests: int = 40, instances: int = 3, steps: int = 300) -> Log:
    """Decode steps with dyadic durations, and requests whose tokens lie on one or more intervals of them."""
    rng = np.random.default_rng(seed)
    ends: list[np.ndarray] = []
    pieces = []
    for _ in range(instances):
        end_s, time_s, made = [], float(rng.integers(0, 64)) / 64, 0
        piece = []
        while made < steps:
            count = int(min(rng.geometric(0.2), steps - made))
            start_s = time_s + float(rng.integers(0, 3)) * rng.integers(0, 2)
            first_s = float(rng.integers(1, 64)) / 1024
            increment_s = float(rng.integers(0, 8)) / 2**14
            durations = first_s + increment_s * np.arange(count)
            end_s += list(start_s + np.cumsum(durations))
            piece.append((start_s, first_s, increment_s, made, count))
            made, time_s = made + count, end_s[-1]
        ends.append(np.array(end_s))
        pieces.append(piece)

    rows, tokens = [], []
    for r in range(requests):
        anchor = r < instances  # spans all steps, so that every step has a decode
        own: list[float] = []
        row_of_request = []
        for _ in range(1 if anchor else int(rng.integers(1, 4))):
            i = r if anchor else int(rng.integers(0, instances))
            after = int(np.searchsorted(ends[i], own[-1], side="right")) if own else int(rng.integers(0, steps - 1))
            first = 0 if anchor else after + int(rng.integers(0, 5)) * (not own)
            last = steps if anchor else min(steps, first + int(rng.geometric(0.03)))
            if first >= last:
                continue
            own = own or [ends[i][first] - float(rng.integers(0, 64)) / 64]
            row_of_request.append((first, last, own[-1], r, i, 0, ends[i][last - 1]))
            own = own + list(ends[i][first:last])
            if rng.random() < 0.3 and not anchor:  # a token emitted by a prefill between two intervals
                gap_s = float(rng.integers(1, 64)) / 32
                row_of_request.append((0, 0, gap_s, r, -1, 0, own[-1] + gap_s))
                own = [*own, own[-1] + gap_s]
        rows += row_of_request
        tokens.append(np.array(own if own else [0.0]))
    rows.sort(key=lambda row: row[-1])
    memberships = np.array([row[:-1] for row in rows], TOKEN_LOG)

    cut = []
    for i, piece in enumerate(pieces):
        on_i = memberships[memberships["instance"] == i]
        batch = np.zeros(steps + 1, np.int64)
        np.add.at(batch, on_i["first_step"], 1)
        np.add.at(batch, on_i["last_step"], -1)
        batch = np.cumsum(batch)
        bounds = np.unique([on_i["first_step"], on_i["last_step"]])
        for start_s, first_s, increment_s, made, count in piece:
            inner = [int(at) - made for at in bounds if made < at < made + count]
            edges = [0, *inner, count]
            for low, high in pairwise(edges):
                at_s = start_s if low == 0 else ends[i][made + low - 1]
                leap = (
                    at_s,
                    first_s + low * increment_s,
                    increment_s,
                    made + low,
                    0,
                    i,
                    high - low,
                    batch[made + low],
                    0,
                    0,
                    0,
                )
                cut.append((ends[i][made + high - 1], leap))
            if rng.random() < 0.2:  # a step without decodes lies between
                end_s = ends[i][made + count - 1]
                cut.append((end_s, (end_s, 0.0, 0.0, made + count, 0, i, 1, 0, 512, 0, 0)))
    cut.sort(key=lambda made: made[0])
    leaps = np.array([leap for _, leap in cut], STEP_LOG)
    output_tokens = np.array([max(len(own), 1) for own in tokens])
    gaps = [np.diff(own) for own in tokens]
    leap_end_s, closed_s = np.array([end_s for end_s, _ in cut]), np.array([row[-1] for row in rows])
    return Log(leaps, memberships, output_tokens, instances, gaps, leap_end_s, closed_s)


def assert_matches(gaps: Gaps, log: Log, quantile_error: float) -> None:
    expected = [(np.percentile(own, 99), own.max()) if len(own) else (np.nan, np.nan) for own in log.gaps]
    np.testing.assert_array_equal(np.stack([gaps.request_p99_s, gaps.request_max_s], 1), np.array(expected))
    every = np.concatenate(log.gaps)
    assert gaps.tokens.count == len(every)
    assert gaps.tokens.mean_s == pytest.approx(every.mean(), rel=1e-12)
    assert gaps.tokens.std_s == pytest.approx(every.std(), rel=1e-9)
    found = [gaps.tokens.median_s, gaps.tokens.p90_s, gaps.tokens.p95_s, gaps.tokens.p99_s]
    np.testing.assert_allclose(found, np.percentile(every, [50, 90, 95, 99]), rtol=quantile_error, atol=0)


def reduced(log: Log, rng: np.random.Generator) -> Gaps:
    """The log handed over in pieces, cut at random times."""
    leaps, memberships = log.leaps, log.memberships
    reducer = GapReducer(log.output_tokens, log.instances)
    leap_done = member_done = 0
    for until_s in [*np.sort(rng.uniform(0, log.leap_end_s[-1], 6)), np.inf]:
        leap_to, member_to = (
            int(np.searchsorted(ends, until_s, side="right")) for ends in (log.leap_end_s, log.closed_s)
        )
        keep = np.zeros(log.instances, np.int64)
        for i in range(log.instances):
            logged = leaps[:leap_to][(leaps[:leap_to]["instance"] == i) & (leaps[:leap_to]["batch"] > 0)]
            still = memberships[member_to:][memberships[member_to:]["instance"] == i]["first_step"]
            keep[i] = min(int(logged["steps"].sum()), int(still.min(initial=10**9)))
        reducer.add(leaps[leap_done:leap_to], memberships[member_done:member_to], keep)
        leap_done, member_done = leap_to, member_to
    return reducer.finish()


@pytest.mark.parametrize("seed", range(20))
def test_recovered_gaps_are_those_between_single_tokens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_gaps, "_ROWS_AT_ONCE", 7)
    log = random_log(seed)
    assert max(np.bincount(log.memberships["request"])) > 1  # some requests lie on several intervals
    assert_matches(recover(*log[:4]), log, 1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_reducer_agrees_whatever_the_pieces(seed: int) -> None:
    log = random_log(seed)
    assert_matches(reduced(log, np.random.default_rng(seed)), log, 0.004)


def test_long_requests_use_the_skipping_scan() -> None:
    log = random_log(3, requests=6, instances=1, steps=5000)
    assert_matches(recover(*log[:4]), log, 1e-15)


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_slowest_mean(fraction: float) -> None:
    log = random_log(5)
    found = slowest_mean(*log[:4], fraction)
    for value, own in zip(found, log.gaps, strict=True):
        if len(own):
            assert value == pytest.approx(np.sort(own)[-int(np.ceil(fraction * len(own))) :].mean(), rel=1e-12)
        else:
            assert np.isnan(value)


def test_request_that_did_not_emit_all_its_tokens_has_no_tail() -> None:
    log = random_log(1)
    longer = log.output_tokens + (np.arange(len(log.output_tokens)) == 0)
    gaps = recover(log.leaps, log.memberships, longer, log.instances)
    assert np.isnan(gaps.request_p99_s[0])
    assert np.isnan(gaps.request_max_s[0])
    assert gaps.tokens.count == len(np.concatenate(log.gaps))  # its gaps were seen by a client all the same


def test_empty_log() -> None:
    none = np.zeros(0, STEP_LOG), np.zeros(0, TOKEN_LOG), np.array([1, 5]), 2
    reducer = GapReducer(*none[2:])
    reducer.add(*none[:2], np.zeros(2, np.int64))
    for gaps in (recover(*none), reducer.finish()):
        assert gaps.tokens.count == 0
        assert gaps.messages == gaps.tokens
        assert np.isnan(
            [gaps.tokens.mean_s, gaps.tokens.std_s, gaps.tokens.median_s, gaps.tokens.p99_s, *gaps.request_p99_s]
        ).all()


@pytest.mark.parametrize(("field", "value"), [("last_step", 301), ("first_step", -1), ("request", 3)])
def test_membership_that_does_not_fit_is_an_error(field: str, value: int) -> None:
    log = random_log(2)
    broken = log.memberships.copy()
    broken[field][broken["instance"] == 0] = value
    with pytest.raises(InvariantError, match="membership"):
        recover(log.leaps, broken, log.output_tokens, log.instances)


def test_membership_begins_with_a_leap() -> None:
    log = random_log(2)
    long = int(np.flatnonzero((log.leaps["steps"] > 1) & (log.leaps["batch"] > 0) & (log.leaps["instance"] == 0))[0])
    broken = log.memberships.copy()
    broken["first_step"][0], broken["instance"][0] = log.leaps["step0"][long] + 1, 0
    with pytest.raises(InvariantError, match="membership"):
        recover(log.leaps, broken, log.output_tokens, log.instances)


@pytest.mark.parametrize("increment_s", [-1 / 64, 0.0, 1 / 64])
def test_gaps_may_fall_within_a_leap(increment_s: float) -> None:
    """Two leaps of 150 steps, the second after a pause of 1 s."""
    steps = np.arange(150)
    durations = 3.0 + increment_s * steps
    start_s = [0.0, float(durations.sum()) + 1.0]
    leaps = np.array([(start_s[k], 3.0, increment_s, 150 * k, 0, 0, 150, 1, 0, 0, 0) for k in range(2)], STEP_LOG)
    ends_s = np.concatenate([at_s + np.cumsum(durations) for at_s in start_s])
    gaps = recover(leaps, np.array([(0, 300, -1.0, 0, 0, 0)], TOKEN_LOG), np.array([301]), 1)
    own = np.diff(np.concatenate([[-1.0], ends_s]))
    assert (gaps.request_p99_s[0], gaps.request_max_s[0]) == (np.percentile(own, 99), own.max())
    found = [gaps.tokens.median_s, gaps.tokens.p90_s, gaps.tokens.p95_s, gaps.tokens.p99_s]
    np.testing.assert_array_equal(found, np.percentile(own, [50, 90, 95, 99]))


def test_missing_leap_is_an_error() -> None:
    log = random_log(2)
    with pytest.raises(InvariantError, match="leap"):
        recover(log.leaps[1:], log.memberships, log.output_tokens, log.instances)


def test_step_forgotten_too_early_is_an_error() -> None:
    log = random_log(2)
    reducer = GapReducer(log.output_tokens, log.instances)
    reducer.add(log.leaps, log.memberships[:0], np.full(log.instances, 10))
    with pytest.raises(InvariantError, match="membership"):
        reducer.add(log.leaps[:0], log.memberships, np.full(log.instances, 10))
