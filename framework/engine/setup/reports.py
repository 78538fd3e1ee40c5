"""The reports of one run in the compiled engine: those under way, and the last that has arrived."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from framework.policy.inspection import Inspection, View
from framework.policy.reports import Reported, Views


class Reports:
    """What the front end sees is `shown`: at first the state before the first event."""

    def __init__(self, present: Inspection, views: Views) -> None:
        self.shown = Reported(present)
        self.hooks = views.readers
        self._views = views
        self._under_way: deque[tuple[float, NDArray[np.void]]] = deque()  # when each arrives, and its columns

    def take(self, number: int) -> None:
        """Take the report of that number from the records, which are up to date."""
        columns = self.shown.present.instances
        kept = np.frombuffer(columns.tobytes(), columns.dtype)  # bytes: numpy copies records by fields
        self._under_way.append((number * self._views.period_s + self._views.delay_s, kept))

    def latest(self) -> View:
        """What the front end sees now, for compiled code."""
        self.follow()
        return View(*self.shown.view[:4])

    def follow(self) -> None:
        """Show the last report that has arrived by now, and the present roles."""
        now_s, last = self.shown.now_s, None
        while self._under_way and self._under_way[0][0] <= now_s:
            last = self._under_way.popleft()[1]
        if last is not None:
            self.shown.show(last)
        self.shown.follow_roles()
