"""The terminal's table of a run's sensitivity to wrong step times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from framework.metrics.figures import metric
from framework.metrics.load_state import OVERLOADED
from framework.objective.sensitivity import Sensitivity
from framework.report.load_words import STYLES
from framework.report.table_words import add_numbers, plain_table, scaled


def sensitivity_table(found: Sensitivity, summary: Mapping[str, Any]) -> RenderableType:
    """The run's figures, `summary`, between their least and largest values."""
    width = found.width
    percent = f"{100 * width.steps:.3g} %"
    table = plain_table(f"step times off by {percent}", "")
    add_numbers(table, "least", "this run", "largest")
    for key, ends in found.ranges.items():
        shown = metric(key).readable((ends or (0.0, summary[key] or 0.0))[1])
        low, high = ends or (None, None)
        table.add_row(Text(shown.name, "bold"), shown.unit, *(scaled(shown, one) for one in (low, summary[key], high)))
    lines: list[RenderableType] = [table]
    if width.of:
        lines.append(Text(f"8 of 10 measured {width.of} kept to steps within {percent} and to such TTFT", "dim"))
    if summary.get("load_state") != OVERLOADED and found.load_states[1] == OVERLOADED:
        lines.append(Text("at the edge of its capacity: overloaded if steps take as long as that", STYLES[OVERLOADED]))
    return Group(*lines)
