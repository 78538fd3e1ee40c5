"""Lists of block ids as one array: every row keeps its ids, and turns share the place of their session's last turn."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from traces.block_ids import flat_ids, list_column


def chunked(rows: list[list[int] | None], sizes: list[int]) -> list[pl.Series]:
    ends = np.cumsum(sizes).tolist()
    return [pl.Series(rows[end - size : end], dtype=pl.List(pl.Int64)) for size, end in zip(sizes, ends, strict=True)]


def held(ids: np.ndarray, spans: np.ndarray) -> list[list[int]]:
    return [ids[begin:end].tolist() for begin, end in spans.tolist()]


def test_turns_lie_in_the_last_turn_of_their_session() -> None:
    rows: list[list[int] | None] = [[1, 2], [7], [1, 2, 3], [7, 8], [1, 2, 3, 4]]
    ids, spans = flat_ids(chunked(rows, [2, 3]), np.array([-1, -1, 0, 1, 2]))
    assert held(ids, spans) == rows
    assert sorted(ids.tolist()) == [1, 2, 3, 4, 7, 8]


def test_a_turn_that_goes_on_otherwise_keeps_ids_of_its_own() -> None:
    rows: list[list[int] | None] = [[1, 2, 9], [1, 2, 3], [1, 2]]  # edited, and cut
    ids, spans = flat_ids(chunked(rows, [3]), np.array([-1, 0, 1]))
    assert held(ids, spans) == rows
    assert len(ids) == 8


def test_empty_and_missing_lists_have_empty_spans() -> None:
    rows: list[list[int] | None] = [[], None, [5], None]
    ids, spans = flat_ids(chunked(rows, [1, 3]), np.array([-1, 0, -1, 2]))
    assert held(ids, spans) == [[], [], [5], []]
    assert len(flat_ids(chunked([None, []], [2]), np.array([-1, 0]))[0]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_every_row_keeps_its_ids(seed: int) -> None:
    """Twelve thousand turns in chunks of any size: grown, repeated, cut, edited, and alone."""
    random = np.random.default_rng(seed)
    rows: list[list[int] | None] = []
    previous = []
    for r in range(12_000 if seed == 0 else 300):
        before = int(random.integers(-3, r)) if r else -1
        known = list(rows[before] or []) if before >= 0 else []
        kept = len(known) if random.random() < 0.8 else int(random.integers(0, len(known) + 1))
        rows.append(known[:kept] + random.integers(0, 10**9, random.integers(0, 4)).tolist())
        previous.append(before)
    sizes = np.diff([0, *np.sort(random.integers(0, len(rows), 5)), len(rows)]).tolist()
    ids, spans = flat_ids(chunked(rows, [size for size in sizes if size]), np.array(previous))
    names: dict[int, int] = {}  # ids may be numbered anew
    for row, found in zip(rows, held(ids, spans), strict=True):
        assert [names.setdefault(name, its) for name, its in zip(row or [], found, strict=True)] == found
    assert len(set(names.values())) == len(names)


def test_lists_come_back_from_values_and_offsets() -> None:
    assert list_column(np.array([4, 5, 6]), np.array([0, 2, 2, 3])).to_list() == [[4, 5], [], [6]]
