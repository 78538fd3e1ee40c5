"""Groups of instances that split and merge as instances come and go (mitosis scaling of EcoServe: arXiv 2504.18154)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError


class MacroInstances:
    """Groups of at most `most` instances (0: one group of all), and of at least `least` where there are several.

    An instance that comes joins the largest group with room. If none has room it joins the largest, whose last `least`
    members then form a group of their own. Where one goes, the two smallest groups merge once they fit into one; else a
    group that has become too small takes a member of the largest. Groups keep their numbers. Raises InputError if a
    group that splits would leave too few.
    """

    def __init__(self, least: int, most: int) -> None:
        if most and most + 1 < 2 * least:
            raise InputError(
                f"policy.most_members={most} and policy.least_members={least}: a macro-instance that splits would leave"
                f" fewer than the least; set most_members to at least {2 * least - 1}"
            )
        self._least, self._most = least, most
        self.groups: dict[int, list[int]] = {}  # members by number of the group, in the order in which they joined
        self._made = 0  # groups so far

    def update(self, ids: NDArray[np.int64]) -> None:
        """Let instances come and go until the members are `ids`."""
        present = set(ids.tolist())
        members = {i for group in self.groups.values() for i in group}
        for i in sorted(members - present):
            self._leave(i)
        for i in sorted(present - members):
            self._join(i)

    def spare(self) -> int:
        """The member that goes first if there are too many: the last of the smallest group with more than the least,
        of the largest if none has more.
        """
        larger = [number for number, group in self.groups.items() if len(group) > self._least]
        return self.groups[self._smallest(larger) if larger else self._largest(self.groups)][-1]

    def _join(self, i: int) -> None:
        if not self.groups:
            self._found([i])
            return
        open_ones = [number for number, group in self.groups.items() if not self._most or len(group) < self._most]
        group = self.groups[self._largest(open_ones or self.groups)]
        group.append(i)
        if not open_ones:
            self._found(group[-self._least :])
            del group[-self._least :]

    def _leave(self, i: int) -> None:
        number = next(number for number, group in self.groups.items() if i in group)
        self.groups[number].remove(i)
        while len(self.groups) > 1:
            first, second = sorted(sorted(self.groups, key=lambda one: (len(self.groups[one]), one))[:2])
            if len(self.groups[first]) + len(self.groups[second]) > self._most:
                break
            self.groups[first] += self.groups.pop(second)
        smallest = self.groups[self._smallest(self.groups)]
        if len(self.groups) > 1 and len(smallest) < self._least:
            smallest.append(self.groups[self._largest(self.groups)].pop())
        if not smallest:
            self.groups.clear()

    def _found(self, members: list[int]) -> None:
        self.groups[self._made] = list(members)
        self._made += 1

    def _largest(self, numbers: Collection[int]) -> int:
        return max(numbers, key=lambda one: (len(self.groups[one]), -one))

    def _smallest(self, numbers: Collection[int]) -> int:
        return min(numbers, key=lambda one: (len(self.groups[one]), one))
