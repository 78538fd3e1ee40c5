"""One figure of a run, and how it is made from its key, its meaning and its names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

_LONG_MS = 1000.0  # milliseconds from which a latency reads better in seconds
_IN_WORDS = {"req/s": "requests/s", "tok/s": "tokens/s"}


class Better(IntEnum):
    """Which way a figure is better; as a number, the sign of a change for the better, 0 if no change is."""

    HIGHER = 1
    NEITHER = 0
    LOWER = -1


@dataclass(frozen=True)
class Metric:
    """A key of summary.json, or of one class of requests as KEY@CLASS. Its value times `scale` is in `unit`.

    `meaning` states it in one line. `name` is for tables (P99 TTFT), `short` for pages (TTFT P99), `spoken` for
    readers who know no abbreviation (P99 time to first token); `heading` stands over a narrow column, in lines.
    """

    key: str
    meaning: str
    name: str
    unit: str
    scale: float
    better: Better
    short: str
    spoken: str
    heading: str
    is_latency: bool = False

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """The value in its unit, None if the summary has none."""
        value = summary.get(self.key)
        return None if value is None else float(value) * self.scale

    @property
    def in_table(self) -> str:
        """The heading of a column: `P99 TTFT, s`."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def on_page(self) -> str:
        """The name of a row: `TTFT P99 (s)`."""
        return f"{self.short}{self._behind}"

    @property
    def on_axis(self) -> str:
        """The name of an axis: `P99 time to first token (s)`."""
        return f"{self.spoken}{self._behind}"

    @property
    def _behind(self) -> str:
        return f" ({_IN_WORDS.get(self.unit, self.unit)})" if self.unit else ""

    def readable(self, value_ms: float) -> Metric:
        """The metric, a latency, in the unit in which `value_ms` reads well: seconds or milliseconds."""
        if not self.is_latency:
            return self
        unit, scale = ("s", 1e-3) if value_ms >= _LONG_MS else ("ms", 1.0)
        return replace(self, unit=unit, scale=scale)


def row(
    key: str,
    meaning: str,
    name: str = "",
    unit: str = "",
    better: Better = Better.NEITHER,
    *,
    short: str = "",
    spoken: str = "",
    heading: str = "",
) -> Metric:
    """A row. Names that are not given equal `name`; a share is shown in %."""
    name = name or key
    folded = "\n".join([*re.split(r"[ _]", name), *([unit] if unit else [])])
    scale = 100.0 if unit == "%" else 1.0
    return Metric(key, meaning, name, unit, scale, better, short or spoken or name, spoken or name, heading or folded)


@dataclass(frozen=True)
class Latency:
    """A latency with statistics in the summary, in ms; tables and pages of fixed columns show it in `unit`."""

    meaning: str
    unit: str
    short: str
    name: str
    spoken: str

    def rows(self, key: str) -> Iterator[Metric]:
        """One row for each statistic: its meaning, its name, and its name after that of the latency."""
        scale = 1e-3 if self.unit == "s" else 1.0
        for statistic, (meaning, name, behind) in _STATISTICS.items():
            yield Metric(
                *(f"{statistic}_{key}_ms", f"ms: {meaning}, {self.meaning}", f"{name} {self.name}", self.unit, scale),
                *(Better.LOWER, f"{self.short} {behind}", f"{name} {self.spoken}"),
                *(f"{self.short} {self.unit}\n{behind}", True),
            )


_STATISTICS = {
    "mean": ("mean", "mean", "mean"),
    "median": ("median", "median", "P50"),
    "std": ("standard deviation", "std", "std"),
    "p90": ("90th percentile", "P90", "P90"),
    "p95": ("95th percentile", "P95", "P95"),
    "p99": ("99th percentile", "P99", "P99"),
}
