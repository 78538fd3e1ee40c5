"""How to read a file: what a user may state in addition to its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from framework.checks import Count, check_fields, is_number
from framework.errors import InputError, shown

BAD_RECORDS = 0.05
TICKS_PER_S = MappingProxyType({"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9})
DATE = "date"  # the unit of arrivals that are dates and times


@dataclass(frozen=True)
class How:
    """`block_tokens`: tokens per hash block, None: the format's own. `bad_records`: the share of unreadable records
    that may be left out. `unit`: of the arrivals, s, ms, us or ns; None: the format's own. `result`: which of the
    results in the file, from 1. `window_s`: the wanted [start, end) of the recording; a reader may give more than that,
    at the same times. `seed`: of drawn requests, if a format has distributions.
    """

    block_tokens: Count | None = None
    bad_records: float = BAD_RECORDS
    unit: str | None = None
    result: Count | None = None
    window_s: tuple[float, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for invalid values."""
        check_fields(self, "trace.")
        if not is_number(self.bad_records) or not 0 <= self.bad_records < 1:
            raise InputError(f"trace.bad_records is {shown(self.bad_records)}, must be a share from 0 to below 1")
        if self.unit is not None and (not isinstance(self.unit, str) or self.unit not in TICKS_PER_S):
            raise InputError(f"trace.unit is {shown(self.unit)}, must be one of {', '.join(TICKS_PER_S)}")

    def clock(self, own: str) -> tuple[str, float]:
        """The unit of the arrivals in a format whose own is `own`, and its ticks per second."""
        unit = self.unit or own
        return unit, TICKS_PER_S[unit]

    def without_unit(self, why: str) -> None:
        """Raise InputError if a unit was set although there is none to choose."""
        if self.unit is not None:
            raise InputError(f"trace.unit={self.unit}: {why}; leave it out")

    def chosen(self, path: object, results: Sequence[Any], what: str) -> Any:
        """The wanted result of those in a file. Raises InputError if there are several and none is named."""
        if self.result is None and len(results) == 1:
            return results[0]
        if self.result is None:
            raise InputError(
                f"{path}: holds {len(results)} results ({what}); choose one by trace.result=1 to {len(results)}"
            )
        if self.result > len(results):
            raise InputError(f"trace.result is {self.result}, {path} holds {len(results)}")
        return results[self.result - 1]


AS_IT_IS = How()  # a file without further statements
