"""The arithmetic of workloads against plain definitions of the same, request by request, on drawn workloads."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framework.errors import InputError
from framework.workload import (
    Workload,
    at_rate,
    block_names,
    chosen,
    consecutive,
    dense,
    first,
    ids_in_order,
    longest_tokens,
    period_s,
    rate_rps,
    read_only,
    repeated,
    small,
    within_context,
)

INT32 = 2**31 - 1


def drawn(seed: int, requests: int = 12) -> Workload:
    """Sessions whose prompts share blocks of 8 tokens, with every column there is."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, requests)
    prompts = np.maximum(1, counts * 8 + rng.integers(-7, 20, requests))
    previous = np.array([rng.integers(-1, r) if r else -1 for r in range(requests)])
    return Workload(
        np.sort(rng.uniform(1.0, 9.0, requests)),
        prompts,
        rng.integers(1, 9, requests),
        hash_ids=rng.integers(3, 6, counts.sum()),
        hash_spans=consecutive(counts),
        hash_block_tokens=8,
        previous=previous,
        think_s=rng.uniform(0.0, 1.0, requests),
        session_id=rng.integers(-1, 3, requests),
        turn=rng.integers(0, 3, requests),
        slo_class=tuple(rng.choice(["chat", "batch"], requests).tolist()),
        priority=rng.integers(0, 3, requests),
        tenant=tuple(rng.choice(["a", "b", "c"], requests).tolist()),
        notes=("drawn",),
    )


def without_prefixes(requests: int = 3) -> Workload:
    return Workload(np.arange(float(requests)), np.full(requests, 9), np.full(requests, 2))


def ids(workload: Workload) -> list[list[int]]:
    return [workload.hash_ids_of(r).tolist() for r in range(len(workload))]


def listed(column: NDArray[Any] | None) -> list[Any]:
    assert column is not None
    return list(column.tolist())


# --- what a workload is -----------------------------------------------------------------------------------------------


def test_a_workload_without_prefixes() -> None:
    plain = without_prefixes()
    assert (plain.hash_block_tokens, plain.has_prefixes) == (0, False)
    assert plain.hash_counts.tolist() == [0, 0, 0]
    assert ids(replace(plain, hash_ids=np.array([4, 5]))) == [[], [], []]
    spans = np.zeros((3, 2), np.int64)
    assert not replace(plain, hash_spans=spans, hash_block_tokens=1).has_prefixes
    assert replace(plain, hash_spans=spans, hash_block_tokens=1, hash_ids=np.array([7])).has_prefixes


def test_a_workload_has_requests() -> None:
    with pytest.raises(InputError, match="no requests"):
        Workload(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))


@pytest.mark.parametrize("spans", [[[-1, 1], [0, 1]], [[0, 1], [1, 0]], [[0, 1], [1, 3]]])
def test_one_span_outside_of_the_ids_is_enough(spans: list[list[int]]) -> None:
    known = {"hash_ids": np.array([4, 5]), "hash_block_tokens": 8}
    Workload(np.arange(2.0), np.full(2, 9), np.full(2, 2), hash_spans=np.array([[0, 2], [1, 2]]), **known)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="within the 2 hash_ids"):
        Workload(np.arange(2.0), np.full(2, 9), np.full(2, 2), hash_spans=np.array(spans), **known)  # type: ignore[arg-type]


def test_ids_lie_in_the_order_of_requests_wherever_their_spans_do() -> None:
    spans = np.array([[2, 4], [0, 0], [1, 3]])
    workload = replace(without_prefixes(), hash_ids=np.array([5, 6, 7, 8]), hash_spans=spans, hash_block_tokens=4)
    assert ids_in_order(workload).tolist() == [7, 8, 6, 7]
    assert ids(workload) == [[7, 8], [], [6, 7]]
    assert ids_in_order(without_prefixes()).tolist() == []


def test_an_array_that_can_only_be_read_stays_itself() -> None:
    array = np.arange(3)
    view = read_only(array)
    assert not view.flags.writeable
    assert np.shares_memory(view, array)
    assert read_only(view) is view


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [[0, 5], [-INT32, 3, INT32], [], [9, 9, -4]])
def test_names_with_room_in_32_bits_stay(names: list[int]) -> None:
    found = small(np.array(names, np.int64))
    assert found.dtype == np.int32
    assert found.tolist() == names


@pytest.mark.parametrize("names", [[2**31, 5, 2**31], [-(2**31), 7, -(2**31)], [2**40, -(2**40), 2**40]])
def test_names_without_room_are_numbered_anew(names: list[int]) -> None:
    found = small(np.array(names, np.int64)).tolist()
    assert sorted(set(found)) == [0, 1]
    assert (found[0] < found[1]) == (names[0] < names[1])
    assert found[0] == found[2]


def test_names_that_are_wide_apart_are_numbered_anew() -> None:
    for kept in ([0, 1032], [3, 3], []):
        names = np.array(kept, np.int64)
        assert dense(names) is names
    for wide, expected in (([0, 1033, 0], [0, 1033, 0]), ([0, 1037, 0], [0, 1, 0]), ([-1, 4, -1], [0, 1, 0])):
        assert dense(np.array(wide)).tolist() == expected
    assert dense(np.array([0, 1033])).tolist() == [0, 1]


def partition(names: Iterable[Hashable]) -> list[int]:
    """Each name by the place where it first came."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(name, place) for place, name in enumerate(names)]


def plain_names(workload: Workload, block_tokens: int) -> list[list[Hashable]]:
    """`block_names` as its docstring says it."""
    size, own_ids = workload.hash_block_tokens, ids(workload)
    prompts, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    names: list[list[Hashable]] = []
    for r, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        named = min(len(own_ids[r]) * size, prompt) // block_tokens
        tokens = ((k * block_tokens) for k in range((prompt + output - 1) // block_tokens))
        names.append(
            [(own_ids[r][at // size], at % size) if k < named else (r, k, "own") for k, at in enumerate(tokens)]
        )
    for later in reversed(range(len(workload))):
        r = listed(workload.previous)[later]
        full = own_ids[r][: prompts[r] // size]
        if (
            r >= 0
            and prompts[later] >= prompts[r] + outputs[r]
            and own_ids[later][: prompts[later] // size][: len(full)] == full
        ):
            names[r] = names[later][: len(names[r])]
    return names


@pytest.mark.parametrize("seed", range(25))
def test_blocks_are_named_as_the_definition_says(seed: int) -> None:
    workload = drawn(seed)
    for block_tokens in (1, 2, 4, 8):
        names, offsets = block_names(workload, block_tokens)
        expected = plain_names(workload, block_tokens)
        assert np.diff(offsets).tolist() == [len(own) for own in expected]
        assert offsets[0] == 0
        assert partition(names.tolist()) == partition(itertools.chain.from_iterable(expected))


def test_without_ids_every_block_is_its_own() -> None:
    names, offsets = block_names(without_prefixes(), 4)
    assert (names.tolist(), offsets.tolist()) == ([0, 1, 2, 3, 4, 5], [0, 2, 4, 6])


# --- other workloads made of one --------------------------------------------------------------------------------------


def test_a_rate_is_that_of_the_span_between_arrivals() -> None:
    workload = replace(without_prefixes(), arrival_s=np.array([2.0, 2.25, 2.5]))
    assert (period_s(workload), rate_rps(workload)) == (0.75, 4.0)
    assert at_rate(workload, 8.0).arrival_s.tolist() == [1.0, 1.125, 1.25]
    assert at_rate(workload, 8.0).notes == ("arrival times divided by 2",)
    assert at_rate(workload, 4.0) is workload


def test_outputs_that_just_fit_leave_the_workload_as_it_is() -> None:
    workload = without_prefixes()
    assert within_context(workload, 11) is workload
    assert within_context(workload, 10).output_tokens.tolist() == [1, 1, 1]


@pytest.mark.parametrize("times", [2, 3])
def test_copies_follow_each_other_and_share_no_names(times: int) -> None:
    one = drawn(5)
    many, count = repeated(one, times), len(one)
    assert len(many) == times * count
    steps = {"arrival_s": period_s(one), "previous": count, "session_id": max(listed(one.session_id)) + 1}
    for name in ("arrival_s", "input_tokens", "output_tokens", "previous", "think_s", "session_id", "turn", "priority"):
        own, step = getattr(one, name).tolist(), steps.get(name, 0)
        expected = [value if value < 0 else value + step * copy for copy in range(times) for value in own]
        assert listed(getattr(many, name)) == pytest.approx(expected), name
    assert many.slo_class == (one.slo_class or ()) * times
    assert many.tenant == (one.tenant or ()) * times
    assert many.notes == ("drawn", f"tiled {times} times, {period_s(one):.6g} s apart")
    own, step = ids(one), int(one.hash_ids.max()) + 1
    assert ids(many) == [[name + step * copy for name in names] for copy in range(times) for names in own]


def test_copies_of_what_has_no_columns_have_none() -> None:
    many = repeated(without_prefixes(), 2)
    optional = ("hash_spans", "previous", "think_s", "session_id", "turn", "slo_class", "priority", "tenant")
    assert [getattr(many, name) for name in optional] == [None] * len(optional)
    assert many.hash_ids.tolist() == []
    assert repeated(many, 1) is many


def check_chosen(one: Workload, some: Workload, kept: list[int]) -> None:
    """Each column has the values of the requests `kept`; turns follow what is kept."""
    assert len(some) == len(kept)
    for name in ("arrival_s", "input_tokens", "output_tokens", "think_s", "session_id", "turn", "priority"):
        assert listed(getattr(some, name)) == [getattr(one, name).tolist()[r] for r in kept], name
    for name in ("slo_class", "tenant"):
        assert getattr(some, name) == tuple(getattr(one, name)[r] for r in kept), name
    before = (listed(one.previous)[r] for r in kept)
    assert listed(some.previous) == [kept.index(r) if r in kept else -1 for r in before]
    assert ids(some) == [ids(one)[r] for r in kept]
    assert (some.hash_block_tokens, some.notes) == (one.hash_block_tokens, one.notes)


@pytest.mark.parametrize("seed", range(10))
def test_chosen_requests_keep_what_is_theirs(seed: int) -> None:
    one = drawn(seed)
    kept = np.random.default_rng(seed).random(len(one)) < 0.6
    check_chosen(one, chosen(one, kept), np.flatnonzero(kept).tolist())
    check_chosen(one, first(one, 7), list(range(7)))
    assert len(chosen(one, kept).hash_ids) == one.hash_counts[kept].sum()  # no id that nobody has
    assert chosen(one, np.ones(len(one), np.bool_)) is one
    assert first(one, 12) is first(one, 13) is one


def test_chosen_requests_may_share_ids_and_leave_others() -> None:
    spans = np.array([[0, 2], [1, 4], [5, 6]])
    one = replace(without_prefixes(), hash_ids=np.arange(10, 17), hash_spans=spans, hash_block_tokens=4)
    some = chosen(one, np.array([True, True, False]))
    assert (some.hash_ids.tolist(), ids(some)) == ([10, 11, 12, 13], [[10, 11], [11, 12, 13]])
    last = chosen(one, np.array([False, True, True]))
    assert (last.hash_ids.tolist(), ids(last)) == ([11, 12, 13, 15], [[11, 12, 13], [15]])


@pytest.mark.parametrize(("max_context", "longest"), [(100, 20), (19, 19), (9, 9), (8, 7), (6, 6)])
def test_the_longest_request_is_one_that_a_context_has_room_for(max_context: int, longest: int) -> None:
    """Prompts of 6, 8 and 9 tokens, outputs of 1, 2 and 11."""
    workload = Workload(np.zeros(3), np.array([6, 8, 9]), np.array([1, 2, 11]))
    assert longest_tokens(workload, max_context) == longest
