"""The table of several runs, one below the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from framework.cli.safe_text import printable
from framework.metrics.figures import HEADLINE, HEADLINE_PER_GPU, metric
from framework.report.load_words import footnotes, mark
from framework.report.numbers import number
from framework.report.table_words import (
    COMPARED,
    WARNING,
    Summary,
    add_numbers,
    alike,
    attainment,
    caveats,
    estimated,
    extrapolated,
    gpus_of,
    headings,
    plain_table,
    scaled,
    source_of,
    without_loads,
    without_place,
)

_COUNTED = ("preemptions", "migrations")


def comparison_table(
    summaries: Sequence[Summary], labels: Sequence[str] | None = None, groups: Sequence[Hashable] | None = None
) -> RenderableType:
    """The runs one below the other, for `rich.console.Console.print`; the best of each group is bold and marked.

    Runs of one group, which stand together, can be compared; without `groups` all can. Without `labels` a run is named
    by what distinguishes it. Runs on different numbers of GPUs are compared by goodput per GPU, and runs at capacity by
    that.
    """
    named = [Text(printable(label)) for label in labels] if labels else _distinguishing(summaries)
    return _Comparison(summaries, named, groups or [0] * len(summaries))


@dataclass(frozen=True)
class _Comparison:
    summaries: Sequence[Summary]
    labels: Sequence[Text]
    groups: Sequence[Hashable]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _common_lines(self.summaries)
        yield self._runs()
        yield from (Text(line, style="dim") for line in (*footnotes(self.summaries), *self._equals()))

    def _best(self) -> list[bool]:
        """Whether each run is the best of its group, or as good."""
        ranking = _ranking(self.summaries)
        best: dict[Hashable, float] = {}
        for group, summary in zip(self.groups, self.summaries, strict=True):
            best[group] = max(best.get(group, 0.0), summary[ranking])
        return [
            self.groups.count(group) > 1 and 0 < best[group] == summary[ranking]
            for group, summary in zip(self.groups, self.summaries, strict=True)
        ]

    def _equals(self) -> list[str]:
        """What would distinguish runs that are equally good because they serve all that is offered."""
        chosen = zip(self.groups, self.summaries, self._best(), strict=True)
        whole = [group for group, summary, best in chosen if best and summary["slo_attainment"] == 1.0]
        if len(set(whole)) == len(whole) or any(one["load"] != "open" for one in self.summaries):
            return []
        return ["▸ several times: each serves all that is offered; a higher trace.rate distinguishes them"]

    def _runs(self) -> Table:
        """One row for each run: what ranks it, latencies, then counts."""
        ranking = _ranking(self.summaries)
        table = plain_table("", "run", between=0)
        table.add_column("")
        figures = headings(ranking, "slo_attainment", *COMPARED)
        add_numbers(table, *figures, "not\nserved", *headings(*_COUNTED))
        before = self.groups[0]
        rows = zip(self.labels, self.groups, self.summaries, self._best(), strict=True)
        for label, group, summary, is_best in rows:
            if group != before:
                table.add_section()
            before = group
            unserved = summary["rejected"] + summary["failed"] + summary.get("cancelled", 0)
            table.add_row(
                *("▸" if is_best else "", label, mark(summary)),
                *(number(summary[ranking]), attainment(summary["slo_attainment"], unit="")),
                *(scaled(metric(key), summary[key]) for key in COMPARED),
                *(f"{count:,.0f}" for count in (unserved, *(summary[key] for key in _COUNTED))),
                style="bold" if is_best else "",
            )
        return table


def _ranking(summaries: Sequence[Summary]) -> str:
    """The key by which runs are compared."""
    several_sizes = len({summary["gpus"] for summary in summaries}) > 1
    if all("capacity" in summary for summary in summaries):
        return "capacity_per_gpu" if several_sizes else "capacity"
    return HEADLINE_PER_GPU if several_sizes else HEADLINE


def _common_lines(summaries: Sequence[Summary]) -> list[RenderableType]:
    """The trace and the timing of all runs, if they agree, and how far step times were extrapolated."""

    def agrees(*keys: str) -> bool:
        return len({tuple(alike(summary, key) for key in keys) for summary in summaries}) == 1

    only = summaries[0]
    lines: list[RenderableType] = []
    if agrees("trace", "trace_source"):
        line = Text.assemble((str(only["trace"]), "bold"), " ", source_of(only))
        line.append(f"  {only['offered']:,} requests" if agrees("offered") else "")
        lines.append(line.append(f"  {gpus_of(only)}" if agrees("gpus") else ""))
    if agrees("timing_source"):
        source, fitted = without_loads(without_place(str(only["timing_source"])))
        lines += [Text(f"timing {source}", style="dim"), *fitted]
    else:
        sources = dict.fromkeys(without_loads(without_place(str(one["timing_source"])))[0] for one in summaries)
        lines += [Text(f"timing differs: {'; '.join(sources)}", style="dim")]
    return [*lines, *caveats(*summaries), *estimated(*summaries), *extrapolated(*summaries), Text()]


def _distinguishing(summaries: Sequence[Summary]) -> list[Text]:
    def differs(key: str) -> bool:
        return len({alike(summary, key) for summary in summaries}) > 1

    names = []
    for summary in summaries:
        name = Text(str(summary["policy"]))
        if differs("predictor") and summary["predictor"] != "none":
            name.append(f" {summary['predictor']}")
        if differs("trace") or differs("trace_source"):
            style = WARNING if summary["trace_source"] == "twin" else "dim"
            name.append(f" {summary['trace']} ").append(summary["trace_source"], style=style)
        for key, label in (
            ("offered", "{:,} requests"),
            ("timing_source", "{}"),
            ("load", "{}"),
            ("gpus", "{} GPUs"),
            ("seed", "seed {}"),
        ):
            name.append(" " + label.format(alike(summary, key)) if differs(key) else "")
        names.append(name)
    return names
