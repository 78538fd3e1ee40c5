"""Macro-instances of any coming and going: who is where, and how many there are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import InputError
from policies._macro_instances import MacroInstances


def after(macro: MacroInstances, ids: range | set[int]) -> list[list[int]]:
    macro.update(np.array(sorted(ids), np.int64))
    return list(macro.groups.values())


def test_a_full_one_splits_and_the_two_smallest_merge() -> None:
    """As the paper draws it: the larger is filled first, then the smaller; on the way back the smaller gives first."""
    macro = MacroInstances(least=2, most=4)
    assert after(macro, range(4)) == [[0, 1, 2, 3]]
    assert after(macro, range(5)) == [[0, 1, 2], [3, 4]]
    assert after(macro, range(6)) == [[0, 1, 2, 5], [3, 4]]
    assert after(macro, range(8)) == [[0, 1, 2, 5], [3, 4, 6, 7]]
    assert after(macro, range(9)) == [[0, 1, 2], [3, 4, 6, 7], [5, 8]]
    assert macro.spare() == 2  # of the smallest that has more than two
    assert after(macro, {0, 1, 3, 4, 5, 6, 7, 8}) == [[0, 1, 5, 8], [3, 4, 6, 7]]
    assert after(macro, {1, 3, 4, 5, 6, 7}) == [[1, 5], [3, 4, 6, 7]]
    assert macro.spare() == 7
    assert after(macro, {3, 4, 5, 6, 7}) == [[5, 7], [3, 4, 6]]


def test_groups_of_a_fixed_size_are_neighbours() -> None:
    assert after(MacroInstances(least=1, most=2), range(5)) == [[0, 1], [2, 3], [4]]


@given(st.integers(1, 5), st.integers(0, 6), st.lists(st.sets(st.integers(0, 24)), min_size=2, max_size=12))
def test_every_instance_is_in_one_group_of_a_size_that_is_allowed(
    least: int, more: int, present: list[set[int]]
) -> None:
    macro, most = MacroInstances(least, 2 * least - 1 + more), 2 * least - 1 + more
    for before, ids in pairwise(present):
        groups = after(macro, ids)
        assert sorted(i for group in groups for i in group) == sorted(ids)
        assert all(1 <= len(group) <= most for group in groups)
        assert len(groups) <= 1 or min(map(len, groups)) >= least
        if before > ids and len(groups) > 1:  # some have gone, none has come
            first, second, *_ = sorted(map(len, groups))
            assert first + second > most
        if ids:
            assert macro.spare() in ids


def test_without_a_most_all_are_one() -> None:
    assert after(MacroInstances(least=4, most=0), range(30)) == [list(range(30))]


def test_a_split_that_leaves_too_few_is_refused() -> None:
    with pytest.raises(InputError, match="set most_members to at least 7"):
        MacroInstances(least=4, most=6)
