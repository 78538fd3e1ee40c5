"""Workloads played at another rate, several times over, and in part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.workload import (
    Workload,
    at_rate,
    chosen,
    consecutive,
    first,
    ids_in_order,
    period_s,
    rate_rps,
    repeated,
    within_context,
)
from traces import formats, transforms
from traces.drawn.distributions import Arrivals, Distribution
from traces.drawn.synthetic import Lengths, Sessions, conversations, independent, with_classes
from traces.fitted.fitted_trace import sample_fitted
from traces.frame import Trace, to_workload


def chats(requests: int = 400) -> Trace:
    """Sessions of several turns, of two classes, whose prompts share prefixes."""
    lengths = Lengths(Distribution("lognormal", mean=200.0, cv=1.0), Distribution("exponential", mean=50.0))
    sessions = Sessions(
        Distribution("fixed", mean=4), Distribution("exponential", mean=20.0), prefix_tokens=64, prefixes=2
    )
    trace = conversations(requests, lengths, Arrivals("poisson", rate=1.0), sessions, 3)
    return with_classes(trace, {"chat": 0.7, "batch": 0.3}, 3)


def plain() -> Trace:
    return independent(
        50, Lengths(Distribution("fixed", mean=8), Distribution("fixed", mean=3)), Arrivals("gamma", 2.0, cv=3.0), 1
    )


def assert_same(found: Workload, expected: Workload) -> None:
    assert found.hash_ids.dtype == expected.hash_ids.dtype
    assert np.array_equal(found.hash_counts, expected.hash_counts)
    assert np.array_equal(ids_in_order(found), ids_in_order(expected))  # wherever they lie
    for field in (field for field in fields(Workload) if field.name not in ("caveat", "hash_ids", "hash_spans")):
        values = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(values[1], np.ndarray):
            assert values[0].dtype == values[1].dtype, field.name
            np.testing.assert_array_equal(*values, err_msg=field.name)
        else:
            assert values[0] == values[1], field.name


@pytest.mark.parametrize("trace", [chats(), plain(), sample_fitted("mooncake", 500, 1)], ids=["chats", "plain", "twin"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_repeated_is_what_tiling_the_trace_gives(trace: Trace, times: int) -> None:
    assert_same(repeated(to_workload(trace), times), to_workload(transforms.tile(trace, times)))


def test_recordings_are_repeated_stretched_and_cut_as_traces_are(real_trace: Callable[[str], Path]) -> None:
    for file in ("conversation_trace.jsonl", "AzureLLMInferenceTrace_conv.csv"):
        trace = formats.read(real_trace(file))
        workload = to_workload(trace)
        assert rate_rps(workload) == transforms.rate_rps(trace)
        assert_same(repeated(workload, 3), to_workload(transforms.tile(trace, 3)))
        assert_same(at_rate(workload, 7.5), to_workload(transforms.set_rate(trace, 7.5)))
        assert_same(first(workload, 1000), to_workload(transforms.limit(trace, 1000)))


def test_rate_of_the_whole_and_of_copies() -> None:
    workload = to_workload(plain())
    stretched = at_rate(workload, 4.0)
    assert rate_rps(stretched) == pytest.approx(4.0)
    assert rate_rps(repeated(stretched, 10)) == pytest.approx(4.0)
    np.testing.assert_allclose(
        stretched.arrival_s / period_s(stretched), workload.arrival_s / period_s(workload), rtol=1e-12
    )
    assert at_rate(workload, rate_rps(workload)) is workload


def test_think_times_are_not_stretched() -> None:
    workload = to_workload(chats())
    assert_same(at_rate(workload, 2.0), to_workload(transforms.set_rate(chats(), 2.0)))
    np.testing.assert_array_equal(at_rate(workload, 2.0).think_s, workload.think_s)


def test_first_keeps_links_within() -> None:
    workload = first(to_workload(chats()), 150)
    assert_same(workload, to_workload(transforms.limit(chats(), 150)))
    assert workload.previous is not None
    assert (workload.previous >= 0).sum() > 50
    assert first(workload, 150) is workload
    assert len(first(to_workload(plain()), 1)) == 1


def test_what_cannot_be() -> None:
    at_once = Workload(np.zeros(2), np.array([4, 4]), np.array([1, 1]))
    assert math.isinf(rate_rps(at_once))
    with pytest.raises(InputError, match="all requests arrive at once"):
        at_rate(at_once, 1.0)
    with pytest.raises(InputError, match="rate must be a finite number above 0, got 0"):
        at_rate(to_workload(plain()), 0)
    with pytest.raises(InputError, match="times must be a whole number of at least 1, got 0"):
        repeated(at_once, 0)
    with pytest.raises(InputError, match="requests must be a whole number of at least 1, got 0"):
        first(at_once, 0)
    np.testing.assert_array_equal(repeated(at_once, 2).arrival_s, np.zeros(4))


def test_workloads_share_arrays_that_nobody_can_alter() -> None:
    output_tokens = np.array([3, 2])
    workload = Workload(np.array([0.0, 1.0]), np.array([4, 4]), output_tokens)
    faster = at_rate(workload, 9.0)
    assert np.shares_memory(faster.output_tokens, workload.output_tokens)
    with pytest.raises(ValueError, match="read-only"):
        faster.output_tokens[0] = 7
    assert output_tokens.flags.writeable  # what it was made of stays the maker's


def test_outputs_end_where_the_context_does() -> None:
    """A context of 10 tokens leaves an output what its prompt leaves; one that leaves nothing is refused elsewhere."""
    workload = Workload(np.arange(5.0), np.array([4, 4, 9, 10, 11]), np.array([5, 7, 3, 2, 2]))
    assert within_context(workload, 10).output_tokens.tolist() == [5, 6, 1, 2, 2]
    assert within_context(workload, 13).output_tokens.tolist() == [5, 7, 3, 2, 2]
    assert within_context(workload, 99) is workload


def test_a_period_is_a_mean_gap_longer_than_its_arrivals() -> None:
    workload = Workload(np.array([0.0, 1.0, 6.0]), np.ones(3, np.int64), np.ones(3, np.int64))
    assert period_s(workload) == 9.0
    assert rate_rps(workload) == 1 / 3
    assert at_rate(workload, 1.0).arrival_s.tolist() == pytest.approx([0.0, 1 / 3, 2.0])
    assert period_s(first(workload, 1)) == 0.0
    assert repeated(workload, 2).arrival_s.tolist() == [0.0, 1.0, 6.0, 9.0, 10.0, 15.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrival_s": np.array([0.0, np.nan, 2.0])}, "arrival_s must be finite"),
        ({"arrival_s": np.array([0.0, 2.0, 1.0])}, "non-decreasing"),
        ({"arrival_s": np.array([-1.0, 0.0, 1.0])}, "non-negative"),
        ({"input_tokens": np.array([1, 0, 2])}, "must be at least 1"),
        ({"output_tokens": np.array([1, 0, 2])}, "must be at least 1"),
        ({"output_tokens": np.array([1, 2])}, "output_tokens has 2 rows, arrival_s has 3"),
        ({"hash_spans": consecutive([0, 0]), "hash_block_tokens": 4}, "a begin and an end for each request"),
        ({"hash_spans": consecutive([0, 0, 1]), "hash_block_tokens": 4}, "within the 0 hash_ids"),
        ({"hash_spans": np.array([[0, 0], [1, 0], [0, 0]]), "hash_block_tokens": 4}, "begins before ends"),
        ({"hash_spans": consecutive([0, 0, 0]), "hash_block_tokens": 0}, "hash_block_tokens >= 1"),
    ],
)
def test_requests_that_cannot_be(change: dict[str, Any], words: str) -> None:
    known: dict[str, Any] = {
        "arrival_s": np.array([0.0, 1.0, 1.0]),
        "input_tokens": np.array([1, 1, 2]),
        "output_tokens": np.array([1, 3, 1]),
    }
    assert len(Workload(**known)) == 3
    assert len(Workload(**known, hash_spans=np.zeros((3, 2), np.int64), hash_block_tokens=1)) == 3
    with pytest.raises(InputError, match=words):
        Workload(**(known | change))


def test_each_copy_has_the_priorities_of_the_first() -> None:
    one = Workload(np.arange(2.0), np.full(2, 4), np.full(2, 2), priority=np.array([3, 1]))
    copies = repeated(one, 2).priority
    assert copies is not None
    assert copies.tolist() == [3, 1, 3, 1]


def test_some_requests_of_those_without_classes_have_none() -> None:
    some = chosen(Workload(np.arange(3.0), np.array([4, 5, 6]), np.full(3, 2)), np.array([True, False, True]))
    assert (some.input_tokens.tolist(), some.slo_class, some.tenant) == ([4, 6], None, None)
