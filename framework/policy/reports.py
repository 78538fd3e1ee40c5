"""What the front end of a fleet sees of its instances: their last report, which is old (SEMANTICS.md: Reports)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, check_fields
from framework.errors import InputError
from framework.policy.hooks import FRONT_END
from framework.policy.inspection import Floats, Inspection, Integers
from framework.timing.table import StepTables

_MOST_UNDER_WAY = 1000  # reports
_KNOWN_AT_ONCE = ("role", "draining_role", "next_role")  # columns that the front end itself keeps


@dataclass(frozen=True)
class Views:
    """How old the columns of instances are that a front end sees: each instance reports every `every_s`, and a report
    arrives `delay_s` later. Both 0: they are current. Only `every_s` 0: a report follows the last one's arrival.
    `hooks`: all of a front end go by reports, or `on_tick` alone, like an autoscaler of scraped metrics.

    Raises InputError for a value out of range.
    """

    every_s: NotNegative = 0.0
    delay_s: NotNegative = 0.0
    hooks: Literal["front_end", "on_tick"] = "front_end"

    def __post_init__(self) -> None:
        check_fields(self, "engine.views.")
        if self.delay_s > _MOST_UNDER_WAY * self.period_s:
            raise InputError(
                f"engine.views.delay_s={self.delay_s:g} is more than {_MOST_UNDER_WAY} times"
                f" engine.views.every_s={self.every_s:g}; set a longer period"
            )

    def __bool__(self) -> bool:
        """Whether columns are old."""
        return self.period_s > 0

    @property
    def period_s(self) -> float:
        """Seconds between two reports, 0: there are none."""
        return self.every_s or self.delay_s

    @property
    def readers(self) -> frozenset[str]:
        """The hooks that see columns as reported."""
        return FRONT_END if self.hooks == "front_end" else frozenset({self.hooks})

    def engine_options(self) -> dict[str, float]:
        """Those of `framework.engine.memory.options`."""
        routes = self.hooks == "front_end"
        return {"report_every_s": self.period_s, "report_delay_s": self.delay_s, "goes_by_reports": routes}


CURRENT = Views()


class Reported:
    """A run as `framework.policy.inspection.Inspection`, with the columns of instances as last reported.

    Roles and all about requests are current. What no report holds raises ValueError.
    """

    def __init__(self, present: Inspection) -> None:
        self.present = present
        self.requests = present.requests
        self.instances = present.instances.copy()
        self.view = present.view._replace(instances=self.instances)

    def show(self, columns: NDArray[np.void]) -> None:
        """Show these columns, those of a report that has arrived; shape (M,)."""
        self.instances.view(np.uint8)[:] = columns.view(np.uint8)  # bytes: numpy copies records by fields

    def follow_roles(self) -> None:
        """Show the present roles."""
        for name in _KNOWN_AT_ONCE:
            self.instances[name] = self.present.instances[name]

    # --- what is current ---

    @property
    def tables(self) -> StepTables:
        return self.present.tables

    @property
    def block_tokens(self) -> int:
        return self.present.block_tokens

    @property
    def copy_bytes_per_token(self) -> float:
        return self.present.copy_bytes_per_token

    @property
    def now_s(self) -> float:
        return self.present.now_s

    @property
    def role_changes(self) -> int:
        return self.present.role_changes

    @property
    def finished(self) -> Integers:
        return self.present.finished

    @property
    def suspended(self) -> Integers:
        return self.present.suspended

    def migrating(self, ids: Integers) -> NDArray[np.bool_]:
        return self.present.migrating(ids)

    def generated(self, ids: Integers) -> Integers:
        return self.present.generated(ids)

    def kv_tokens(self, ids: Integers) -> Integers:
        return self.present.kv_tokens(ids)

    def cached_tokens(self, ids: Integers, r: int) -> Integers:
        return self.present.cached_tokens(ids, r)

    def prefill_times_s(self, ids: Integers, r: int, cached: Integers, most: int) -> Floats:
        return self.present.prefill_times_s(ids, r, cached, most)

    # --- what no report holds ---

    def decoding(self, i: int) -> Integers:
        _refuse("the requests that decode on an instance")

    def prefilling(self, i: int) -> Integers:
        _refuse("the requests that prefill on an instance")

    def queued(self, i: int) -> Integers:
        _refuse("the requests that wait on an instance")

    def decoding_on(self, ids: Integers) -> tuple[Integers, Integers]:
        _refuse("the requests that decode on instances")

    def residents(self, ids: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        _refuse("the requests with KV on instances")

    def step_times_s(self, ids: Integers) -> Floats:
        _refuse("the time of an instance's next step")

    def stream_times_s(self, i: int) -> tuple[Floats, Floats]:
        _refuse("the times of an instance's streams")


def _refuse(what: str) -> NoReturn:
    raise ValueError(f"no report holds {what}: with engine.views, routing and ticks see columns of instances alone")
