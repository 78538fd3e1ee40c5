"""How evenly tenants were served: the largest difference against all windows, Jain's index, slowdowns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from framework.metrics.service.difference import Given, Steps, Waits, largest_difference
from framework.metrics.service.tenants import jain_index
from framework.objective.goodput import Goodput
from framework.run.compose import compose
from tests.helpers.composing import configured

TENANTS, INSTANCES, LAST = 3, 2, 12


@st.composite
def runs(draw: st.DrawFn) -> tuple[Given, Steps, Waits]:
    """Service and waits of three tenants at whole seconds, decode steps of two instances at some of them."""
    second, tenant = st.integers(0, LAST), st.integers(-1, TENANTS - 1)
    amounts = draw(st.lists(st.tuples(second, tenant, st.integers(1, 9)), max_size=12))
    amounts.sort(key=lambda row: row[0])
    ends = sorted(draw(st.lists(st.tuples(second, st.integers(0, INSTANCES - 1)), max_size=16, unique=True)))
    changes: list[tuple[int, int, int, int]] = []
    for instance in range(INSTANCES):
        steps = sum(one == instance for _, one in ends)
        for _ in range(draw(st.integers(0, 3)) if steps else 0):
            first = draw(st.integers(0, steps - 1))
            last, whose, more = draw(st.integers(first + 1, steps)), draw(tenant), draw(st.integers(1, 3))
            changes += [(instance, first, whose, more), (instance, last, whose, -more)]
    changes.sort(key=lambda row: row[:2])
    edges = []
    for whose in range(TENANTS):
        times = sorted(draw(st.lists(second, max_size=6, unique=True)))
        times = times[: len(times) // 2 * 2]
        edges += [(time, bool(k % 2 == 0), whose) for k, time in enumerate(times)]
    edges.sort()
    at = np.searchsorted([row[0] for row in changes], np.arange(INSTANCES + 1))
    steps_ = Steps(
        _floats(ends, 0), _ints(ends, 1), at.astype(np.int64), _ints(changes, 1), _ints(changes, 2), _floats(changes, 3)
    )
    waits = Waits(_floats(edges, 0), _ints(edges, 2), np.array([row[1] for row in edges], np.bool_))
    return Given(_floats(amounts, 0), _ints(amounts, 1), _floats(amounts, 2)), steps_, waits


def _ints(rows: Sequence[tuple[int, ...]], column: int) -> NDArray[np.int64]:
    return np.array([row[column] for row in rows], np.int64)


def _floats(rows: Sequence[tuple[int, ...]], column: int) -> NDArray[np.float64]:
    return np.array([row[column] for row in rows], np.float64)


def brute_force(given_: Given, steps: Steps, waits: Waits) -> float:
    """Over all pairs and all windows (t1, t2] of whole seconds throughout which both wait."""
    got = np.zeros((TENANTS, LAST + 1))  # in each second
    for time, whose, amount in zip(*given_, strict=True):
        if whose >= 0:
            got[whose, int(time)] += amount
    done = [0] * INSTANCES
    for time, instance in zip(steps.end_s, steps.instance, strict=True):
        for k in range(steps.change_at[instance], steps.change_at[instance + 1]):
            if steps.change_step[k] <= done[instance] and steps.change_tenant[k] >= 0:
                got[steps.change_tenant[k], int(time)] += steps.change[k]
        done[instance] += 1
    spans: list[list[tuple[float, float]]] = [[] for _ in range(TENANTS)]
    for whose in range(TENANTS):
        times = [(time, opens) for time, one, opens in zip(*waits, strict=True) if one == whose]
        spans[whose] = [(a[0], b[0]) for a, b in itertools.pairwise(times) if a[1]]
    most = 0.0
    for one, other in itertools.combinations(range(TENANTS), 2):
        for t1, t2 in itertools.combinations(range(LAST + 1), 2):
            if all(any(a <= t1 and t2 < b for a, b in spans[whose]) for whose in (one, other)):
                difference = got[one, t1 + 1 : t2 + 1].sum() - got[other, t1 + 1 : t2 + 1].sum()
                most = max(most, abs(difference))
    return most


@settings(max_examples=300, deadline=None)
@given(runs())
def test_the_largest_difference_is_that_of_all_windows(run: tuple[Given, Steps, Waits]) -> None:
    assert largest_difference(*run, TENANTS) == brute_force(*run)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.just(0.0) | st.floats(1e-6, 1), st.floats(0.1, 1e6)), min_size=1, max_size=8))
def test_jains_index_lies_between_a_share_for_one_and_shares_for_all(rows: list[tuple[float, float]]) -> None:
    asked = np.array([row[1] for row in rows])
    served = np.array([row[0] for row in rows]) * asked
    found = jain_index(served, asked)
    if served.sum() <= 0:
        assert found is None
        return
    assert found is not None
    assert 1 / len(rows) - 1e-9 <= found <= 1 + 1e-9
    assert jain_index(3 * served, 3 * asked) == pytest.approx(found)
    assert jain_index(asked, asked) == pytest.approx(1.0)


def test_jains_index_knows_what_is_fair() -> None:
    """Of 60 tokens two who ask for 10 and 100 get 10 and 50; shares of what they ask for are not even."""
    asked = np.array([10.0, 100.0])
    assert jain_index(np.array([10.0, 50.0]), asked) == pytest.approx(1.0)
    ratios = np.array([60 / 110, 60 * 100 / 110 / 50])
    assert jain_index(60 / 110 * asked, asked) == pytest.approx(ratios.sum() ** 2 / (2 * (ratios**2).sum()))


def test_a_request_alone_on_its_instance_has_a_slowdown_of_one() -> None:
    """And the worst tenant is the one whose requests wait for others."""
    fixed = {"requests": 1, "input.law": "fixed", "input.mean": 100, "output.law": "fixed", "output.mean": 20}
    words = [f"trace.{name}={value}" for name, value in fixed.items()]
    cluster = (
        "policy=chunked",
        "cluster.instances=1",
        "timing=roofline",
        "server=none",
        "trace=synthetic",
        "trace.tenants=2",
    )
    alone = Goodput().measure(compose(configured(*cluster, *words))).evaluation.summary
    assert alone["worst_slowdown"] == pytest.approx(1.0)
    crowd = Goodput().measure(compose(configured(*cluster, *words, "trace.requests=40", "trace.rate=1000")))
    means = [one["mean_slowdown"] for one in crowd.evaluation.summary["tenants"].values()]
    assert crowd.evaluation.summary["worst_slowdown"] == max(means) > 1.1
