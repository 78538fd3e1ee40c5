"""What distinguishes Heddle: the longest trajectories first, with few neighbours, on wider instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.timing.table import StepRow
from policies.autellix import Autellix
from policies.heddle import Heddle, _cut
from policies.sticky import Sticky
from tests.helpers.by_hand import fleet, play
from tests.helpers.scenarios import prefixes

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
STORES = PrefixStores({"host": Tier(capacity_tokens=1000, bandwidth_bytes_s=1e15)})


def calls(*rows: tuple[int, int, int, float]) -> dict[str, Any]:
    """Of (session, prompt, the call that it waits for, seconds after it): a prompt begins as those of its session."""
    sessions, prompts, previous, think_s = zip(*rows, strict=True)
    ids = [[100 * (1 + session) + j for j in range(tokens)] for session, tokens in zip(sessions, prompts, strict=True)]
    columns = {"session_id": np.array(sessions), "previous": np.array(previous), "think_s": np.array(think_s)}
    return columns | prefixes(ids, 1)


@ENGINES
def test_the_longest_trajectory_goes_first(implementation: str) -> None:
    """One seat, which request 1 has until 15 s. Request 2 begins a trajectory, request 3 goes on with one of 10 tokens:
    it comes later and goes first. By attained service it would be last.
    """
    columns = calls((0, 4, -1, 0), (1, 4, -1, 0), (2, 4, -1, 0), (0, 4, 0, 3.0))
    rows = [(0.0, 4, 10), (9.5, 4, 5), (12.0, 4, 2), (13.0, 4, 3)]
    settings: dict[str, Any] = {"columns": columns, "max_batch": 1, "implementation": implementation}
    assert play(Heddle(wide=0), rows, **settings).requests["end_s"].tolist() == [10, 15, 20, 18]
    for neighbour in (Autellix(quantum_s=8.0), Sticky()):
        assert play(neighbour, rows, **settings).requests["end_s"].tolist() == [10, 15, 17, 20]


@pytest.mark.parametrize(
    ("lengths", "alone_s", "slope_s", "counts"),
    [
        ([100.0, 10.0, 10.0, 10.0], [1.0, 1.0], [0.5, 0.5], [1, 3]),
        ([10.0, 10.0, 10.0, 10.0], [1.0, 1.0], [0.5, 0.5], [2, 2]),
        ([100.0, 50.0, 50.0, 50.0], [0.5, 1.0], [0.25, 0.5], [2, 2]),  # the first is twice as fast: 75 s each
        ([], [1.0, 1.0], [0.5, 0.5], [0, 0]),
    ],
)
def test_ranges_are_cut_so_that_the_slowest_is_fastest(
    lengths: list[float], alone_s: list[float], slope_s: list[float], counts: list[int]
) -> None:
    assert _cut(np.array(lengths), np.array(alone_s), np.array(slope_s)).tolist() == counts


@ENGINES
def test_a_trajectory_that_has_become_the_longest_moves_with_its_context(implementation: str) -> None:
    """Trajectory 1 begins on instance 1. After 20 tokens it is the longest, its range is that of instance 0, and its 4
    cached tokens have been copied there. `sticky` leaves it where it was.
    """
    columns = calls((0, 4, -1, 0), (1, 4, -1, 0), (0, 6, 0, 1.0), (1, 6, 1, 1.0))
    rows = [(0.0, 4, 2), (0.0, 4, 20), (4.0, 6, 30), (31.0, 6, 2)]
    settings: dict[str, Any] = {
        "columns": columns,
        "prefix_cache": True,
        "prefix_stores": STORES,
        "row": StepRow(base_s=1.0, per_sequence_s=0.5),
        "implementation": implementation,
    }
    moved = play(Heddle(wide=0, first_tokens=1.0, period_s=0.5), rows, fleet(mixed=2), **settings)
    assert moved.requests["prefill_instance"].tolist() == [0, 1, 0, 0]
    assert moved.requests["cached_tokens"].tolist() == [0, 0, 4, 4]
    neighbour = play(Sticky(), rows, fleet(mixed=2), **settings)
    assert neighbour.requests["prefill_instance"].tolist() == [0, 1, 0, 1]


def test_wide_instances_take_the_gpus_of_narrow_ones() -> None:
    spec = Heddle(wide=1, width=2).layout(fleet(mixed=4))
    assert [(pool.instances, pool.parallelism.tp) for pool in spec.pools] == [(2, 1), (1, 2)]
    assert spec.gpus == 4
    assert len(Heddle(wide=1, width=4).layout(fleet(mixed=4)).pools) == 1  # no narrow one would be left
