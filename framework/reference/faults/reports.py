"""Reports of instances to the front end (SEMANTICS.md: Reports)."""

from __future__ import annotations

from typing import Generic, TypeVar

from framework.policy.reports import Views

Columns = TypeVar("Columns")


class Reports(Generic[Columns]):
    """All reports that have been taken and may still be needed; `first`: the state before the first event."""

    def __init__(self, views: Views, first: Columns) -> None:
        self._views = views
        self.taken = {0: first}

    def keep(self, number: int, columns: Columns) -> None:
        """Keep the report of that number, which has just been taken."""
        self.taken[number] = columns

    def arrives_s(self, number: int) -> float:
        """When the report of that number arrives."""
        return number * self._views.period_s + self._views.delay_s if number else 0.0

    def arrived(self, now_s: float) -> Columns:
        """The last report that has arrived by now, or the first state."""
        last = max(number for number in self.taken if self.arrives_s(number) <= now_s)
        self.taken = {number: columns for number, columns in self.taken.items() if number >= last}
        return self.taken[last]
