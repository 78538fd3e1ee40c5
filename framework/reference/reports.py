"""Reports of instances to the front end (SEMANTICS.md: Reports)."""

from __future__ import annotations

from typing import Generic, TypeVar

from framework.policy.reports import Views

Columns = TypeVar("Columns")


class Reports(Generic[Columns]):
    """All reports that have been taken and may still be needed; `first`: the state before the first event."""

    def __init__(self, views: Views, first: Columns) -> None:
        self._views = views
        self._taken = {0: first}

    def keep(self, number: int, columns: Columns) -> None:
        """Keep the report of that number, which has just been taken."""
        self._taken[number] = columns

    def arrived(self, now_s: float) -> Columns:
        """The last report that has arrived by now, or the first state."""
        every_s, delay_s = self._views.period_s, self._views.delay_s
        last = max(number for number in self._taken if number == 0 or number * every_s + delay_s <= now_s)
        self._taken = {number: columns for number, columns in self._taken.items() if number >= last}
        return self._taken[last]
