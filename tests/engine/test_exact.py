"""The compiled engine against the reference engine, on random runs; `tests.helpers.differences` says what is equal."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.agreement import agree, agree_in_floats, drawn
from tests.helpers.differences import differences, run_engine, run_reference
from tests.helpers.families import FAMILIES
from tests.helpers.kept_counts import COUNTED, KeptCounts
from tests.reach import first_seed

# Those that are counted, of which the rarest families have most, and those of anything with anything.
QUICK = {family: max(3, COUNTED[family]) for family in FAMILIES} | {"scenarios": 12, "meeting": 12}
FOUND = [  # among a hundred thousand
    *(("clocked", seed) for seed in (200248, 201470, 202939)),
    *(("staged", seed) for seed in (500993, 501102)),  # steps that seem to get shorter, down to what the host needs
    *(("ranked", seed) for seed in (511023, 511070, 511730, 512830)),  # the rank of least KV changes within a leap
    ("sharing", 1000559),  # a store that instances share gains the prefix of a prompt that waits where it does not fit
    *(("fetching", seed) for seed in (1000528, 1001050)),  # the same at a boundary, and a hook looks at this time
    ("sharing", 10348),  # decodes evict a block of a prompt that waits for room for its first chunk, which then has it
    ("moving", 500122),  # KV comes to an instance whose running leap has evicted blocks of the same names
    *(("spanning", seed) for seed in (100216, 100486)),  # a claim ends while instances stand ready for it
    ("tiered", 970874),  # a prompt whose KV was sent ahead ends with its only token where others end in order
    ("tiered", 970998),  # a run stalls that has suspended a request whose KV had been sent, before its first token
    ("prefetched", 30015),  # KV waits for a pinned room while a prefill step is under way, beside nothing else
    ("impatient", 300005),  # a crash ends a leap after its first step, which ends now, before a hook looks
    ("crossing", 5233),  # a block is found that nobody holds, before one of its name that is held for another instance
]
_BLOCK = 25  # runs of one test, so that processes share them out
_THOROUGH = 10_000  # first seed of the long tests
_MANY, _FEWER = 4000, 750  # runs of the family of anything with anything, and of each other one


def blocks(runs: dict[str, int]) -> list[tuple[str, int]]:
    """(family, first run) of every block of runs."""
    return [(family, first) for family, count in runs.items() for first in range(0, count, _BLOCK)]


@pytest.mark.parametrize(("family", "first"), blocks(QUICK))
def test_exact(family: str, first: int, kept_counts: KeptCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in range(first, min(first + _BLOCK, QUICK[family])):
        seed = first_seed(family) + run
        monkeypatch.setattr("tests.helpers.differences.run_reference", kept_counts.reference(family, seed))
        agree(family, [seed])


@pytest.mark.parametrize(("family", "seed"), FOUND)
def test_where_they_have_disagreed(family: str, seed: int) -> None:
    agree(family, [seed])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_thoroughly(family: str) -> None:
    agree(family, range(_THOROUGH, _THOROUGH + (_MANY if family == "scenarios" else _FEWER)))


@pytest.mark.parametrize(("family", "count"), [("scenarios", 12), ("shared", 6)])
def test_floats(family: str, count: int) -> None:
    agree_in_floats(family, range(count))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [("scenarios", _MANY), ("shared", _FEWER)])
def test_floats_thoroughly(family: str, count: int) -> None:
    agree_in_floats(family, range(_THOROUGH, _THOROUGH + count))


@pytest.mark.parametrize(("one_of", "count"), [(6, 1), pytest.param(1, 20, marks=pytest.mark.slow)])
def test_a_log_that_is_reduced_changes_nothing_else(one_of: int, count: int) -> None:
    for family, seed in itertools.product(list(FAMILIES)[::one_of], range(2000, 2000 + count)):
        scenario = drawn(family, seed)
        result, notes = run_engine(scenario)
        reduced, same = run_engine(replace(scenario, engine=replace(scenario.engine, log="reduced")))
        assert same == notes
        assert reduced.requests.tobytes() == result.requests.tobytes()
        assert reduced.instances.tobytes() == result.instances.tobytes()


def test_unlike_things_differ() -> None:
    pairs: list[tuple[Any, Any]] = [
        ([1, 2], 3),
        (3, [1]),
        ("a", 1.0),
        (None, 0.5),
        ({"a": 1}, [1]),
        ({"a": 1}, {}),
        (1.0, 2),
    ]
    for ours, theirs in pairs:
        assert len(differences(ours, theirs, 0.0)) == 1, (ours, theirs)
    assert differences([1.0, math.nan, "a"], [1, math.nan, "a"], 0.0) == []


def test_reference_keeps_its_books() -> None:
    for seed in range(3000, 3040):
        simulation, _ = run_reference(drawn("scenarios", seed))
        for r in simulation.requests:
            assert r.state != 0
            assert len(r.token_s) == r.emitted
            assert r.state != 1 or r.emitted == r.output_tokens
            assert r.token_s == sorted(r.token_s)
            assert all(math.ldexp(t, 40).is_integer() for t in r.token_s), "a time is not dyadic"
        stalled = any(r.reason == "stalled" for r in simulation.requests)
        for i in simulation.instances:
            for stream in ([step for step in i.steps if step[2]], [step for step in i.steps if not step[2]]):
                assert all(a[1] <= b[0] for a, b in itertools.pairwise(stream))
            assert stalled or (i.cache.used, i.seats, i.waiting, i.incoming, i.swapped) == (0, 0, [], [], [])
            assert stalled or i.cache.available == i.cache.total
