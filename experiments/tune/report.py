"""The results of a study, for a terminal of 100 columns."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from experiments.tune.result import Findings, Row
from experiments.tune.space import override_text
from experiments.tune.study import SHOWN
from framework.cli.arguments import program
from framework.metrics.figures import HEADLINE, metric
from framework.report.numbers import NONE, number
from framework.report.table_words import named

_TOP = 10
_FRONT = 20
_FLAT_SHARE = 0.5  # share of the trials that are near the best
_FLAT_ATTAINMENT = 0.97
_BAR = 30
_MARGIN = 12
_NAME_COLUMNS = 12


def report(found: Findings, replay: Sequence[str], columns: int) -> Iterator[RenderableType]:
    """What was run, the best result and the commands to run it again (`replay`), and what made the difference."""
    yield _extent(found)
    yield Text()
    yield from _best(found, [line for command in replay for line in _continued(command, columns)])
    yield Text()
    if found.importances:
        yield _importances(found)
        yield Text()
    yield from _table(found, columns)


def _extent(found: Findings) -> Text:
    text = Text.assemble((found.name, "bold"), f"  {found.count('complete'):,} trials")
    for outcome in ("pruned", "infeasible"):
        if found.count(outcome):
            text.append(f", {found.count(outcome):,} {outcome}")
    size = (
        ""
        if found.feasible is None
        else f": {found.space.size:,.0f} points, {found.feasible:,} configurations that fit"
    )
    text.append(f"; space {found.space.name}{size}")
    if found.space.missing:
        text.append(f"; the policy has no {' or '.join(found.space.missing)}")
    return text


def _best(found: Findings, replay: Sequence[str]) -> Iterator[RenderableType]:
    best, several = found.ranked[0], len(found.goals) > 1
    values = ", ".join(named(goal.key, value) for goal, value in zip(found.goals, best.values, strict=True))
    attained = best.figures.get("slo_attainment")
    attainment = f", SLO met {100 * attained:.1f} %" if attained is not None else ""
    yield Text.assemble(("best  ", "bold"), f"{values}{attainment} (trial {best.number})")
    yield from (Text(line) for line in replay)
    if several:
        front = "1 trial is" if len(found.front) == 1 else f"{len(found.front)} trials are"
        yield Text(f"      {front} on the Pareto front; the best by {metric(found.goals[0].key).name} is shown")
        return
    share = found.near / len(found.ranked)
    near = f"{found.near} of {len(found.ranked)} configurations ({100 * share:.0f} %)"
    yield Text(f"      {near} {'is' if found.near == 1 else 'are'} within 1 % of it, itself included")
    if found.goals[0].key == HEADLINE and attained is not None and attained > _FLAT_ATTAINMENT:
        yield Text(
            "flat: the best serves nearly all that is offered, so none can be much better; raise trace.rate, or set"
            " objective=capacity",
            style="yellow",
        )
    elif share >= _FLAT_SHARE and len(found.ranked) > 1:
        yield Text("flat: what is searched here makes little difference to this objective", style="yellow")


def _importances(found: Findings) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for place, (name, share) in enumerate(found.importances.items()):
        bar = Text("█" * round(share * _BAR), style="cyan")
        table.add_row("importance" if place == 0 else "", name, f"{100 * share:.0f} %", bar)
    return table


def _table(found: Findings, columns: int) -> Iterator[RenderableType]:
    """The front, or the best trials; the least important settings are left out if they find no room."""
    several = len(found.goals) > 1
    rows = found.front[:_FRONT] if several else found.ranked[:_TOP]
    shown = [_Column("trial", [str(row.number) for row in rows]), *_figures(found, rows)]
    settings = _settings(found, rows)
    fitting = _fitting(found, settings, columns - sum(column.width for column in shown))
    shown += [column for name, column in settings.items() if name in fitting]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for column in shown:
        table.add_column(column.heading, justify="right", style=column.style, no_wrap=True)
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    title = "the Pareto front" if several else f"the best {len(rows)}"
    if several and len(found.front) > len(rows):
        title += f", {len(rows)} of {len(found.front)}"
    yield Text(title, style="bold")
    yield table
    if len(fitting) < len(settings):
        yield Text(f"not shown: {', '.join(name for name in settings if name not in fitting)} (see trials.csv)")


@dataclass(frozen=True)
class _Column:
    heading: str
    cells: Sequence[str]
    style: str = ""

    @property
    def width(self) -> int:
        lines = [line for text in (self.heading, *self.cells) for line in text.splitlines()]
        return max(map(len, lines)) + 1  # One more is the gap.


def _figures(found: Findings, rows: Sequence[Row]) -> list[_Column]:
    """The goals, and other figures that differ between the trials."""
    keys = [goal.key for goal in found.goals]
    own = {key: [row.values[place] for row in rows] for place, key in enumerate(keys)}
    known = own | {key: [row.figures.get(key) for row in rows] for key in SHOWN if key not in own}
    columns = []
    for key in [*(key for key in keys if key not in SHOWN), *SHOWN]:
        cells = [_cell(key, value) for value in known[key]]
        if key in own or len(set(cells)) > 1:
            columns.append(_Column(metric(key).heading, cells))
    return columns


def _settings(found: Findings, rows: Sequence[Row]) -> dict[str, _Column]:
    """Settings in which trials of the study differ, in the order of the space, by their shortest names."""
    names = dict.fromkeys(name for row in rows for name in row.point.settings)
    varying = [name for name in names if len({repr(row.point.settings.get(name)) for row in found.ranked}) > 1]
    last = [name.split(".")[-1] for name in varying]
    return {
        name: _Column(_heading(end if last.count(end) == 1 else name), [_setting(row, name) for row in rows], "cyan")
        for name, end in zip(varying, last, strict=True)
    }


def _fitting(found: Findings, settings: Mapping[str, _Column], room: int) -> set[str]:
    """The settings that find room, the most important first; derived settings precede them all."""
    fitting: set[str] = set()
    for name in sorted(settings, key=lambda name: found.importances.get(name, 1.0), reverse=True):
        if settings[name].width <= room:
            fitting.add(name)
            room -= settings[name].width
    return fitting


def _heading(name: str) -> str:
    """A dotted or underscored name in short lines."""
    return name.replace(".", "\n").replace("_", "\n")


def _setting(row: Row, name: str) -> str:
    value = row.point.settings.get(name)
    if isinstance(value, float):
        return f"{value:.3g}"
    return _folded(str(value)) if isinstance(value, str) else override_text(value)


def _folded(name: str) -> str:
    """A name over as many lines as it needs, broken behind underscores."""
    lines = [""]
    for part in re.findall(r"[^_]*_?", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip("_")) > _NAME_COLUMNS:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _cell(key: str, value: float | None) -> str:
    return NONE if value is None else number(value * metric(key).scale)


def _continued(command: str, columns: int) -> Iterator[str]:
    """A command over as many lines as it needs, which a shell reads as one."""
    lines = textwrap.wrap(command, columns - _MARGIN, break_long_words=False, break_on_hyphens=False)
    for place, line in enumerate(lines):
        yield ("      " if place == 0 else "        ") + line + (" \\" if line is not lines[-1] else "")


def command_line(overrides: Sequence[str]) -> str:
    """The command that runs a configuration."""
    return " ".join((program(), *(shlex.quote(word) for word in overrides)))
