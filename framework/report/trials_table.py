"""The limits of a run's goodput and their remedies, for a terminal, and as rows for a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from framework.cli.safe_text import printable
from framework.diagnosis.trials import Removed, Trial, Trials, Tried
from framework.metrics.figures import HEADLINE, HEADLINE_PER_GPU, metric
from framework.report.numbers import number, percent
from framework.report.table_words import add_numbers, open_table

_WIDE = 110


class TrialsTable:
    """The sentences and tables of `trials`, for `rich.console.Console.print`."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text()
        for line in verdict(self.trials):
            yield Constrain(Text(printable(line)), _WIDE)
        if self.trials.removed:
            yield Text()
            yield _removed(self.trials)
        if self.trials.tried:
            yield Text()
            yield _tried(self.trials)
        if said := units(self.trials):
            yield Constrain(Text(said, style="dim"), _WIDE)


def verdict(trials: Trials) -> Iterator[str]:
    """What limits the run, in sentences."""
    base = trials.base
    yield (
        f"{base.kept:,} of {base.offered:,} requests kept the SLO: goodput {number(base.goodput)} req/s"
        f"{f'; {trials.seen.signature}' if trials.seen.signature else ''}."
    )
    if base.kept == base.offered:
        yield "Nothing limits goodput but the load: no request was lost."
        return
    if not trials.removed:
        yield "No single cause limits goodput: the run is no better without any one of them."
        return
    first = trials.removed[0]
    yield f"{first.cause.title}. {first.evidence}"
    yield f"With {first.cause.without}, {_kept(first.trial)}, {_gain(first.trial, base)}."
    left = first.trial.offered - first.trial.kept
    if left and len(trials.removed) > 1:
        yield f"That leaves {left:,} requests lost; the next in line: {_lower(trials.removed[1].cause.title)}."
    if helps := helping(trials):
        best, count = helps[0], len(trials.tried)
        is_most = all(best.trial.worth(base) >= one.trial.worth(base) for one in helps)
        gives = "gives most" if is_most else "gives nearly the most, on fewer GPUs"
        yield f"Of {count} remedies tried, {best.remedy.text} {gives}: {_kept(best.trial)}, {_gain(best.trial, base)}."
    elif trials.tried:
        yield f"None of {len(trials.tried)} remedies tried is better than the run."


def units(trials: Trials) -> str:
    """Why a run's worth is not the difference of two goodputs; nothing if it is."""
    shown = [*(one.trial for one in trials.removed), *(one.trial for one in helping(trials))]
    if trials.base.closed or all(trial.window_s == trials.base.window_s for trial in shown):
        return ""
    return "Goodput is over each run's own window; worth and gain are over the window of the run as it is."


def removed_rows(trials: Trials) -> Iterator[tuple[str, str, Removed]]:
    """The result of a run without each cause, its worth, and the cause."""
    for one in trials.removed:
        yield one.cause.without, signed(one.trial.worth(trials.base)), one


def helping(trials: Trials) -> list[Tried]:
    """The remedies that are better than the run, the best first."""
    return [one for one in trials.tried if one.trial.is_better(trials.base)]


def signed(value: float) -> str:
    """The value with its sign; nothing for zero."""
    return "0" if value == 0 else f"{'+' if value > 0 else '-'}{number(abs(value))}"


def _removed(trials: Trials) -> RenderableType:
    table = _table("the same run with")
    add_numbers(table, "SLO\nkept", metric(HEADLINE).heading, "worth\nreq/s")
    table.add_row("nothing changed", *_figures(trials.base), "")
    for text, worth, one in removed_rows(trials):
        table.add_row(text, *_figures(one.trial), worth)
    if trials.indifferent:
        named = ", ".join(cause.without for cause in trials.indifferent)
        table.add_section()
        table.add_row(Text(f"no better with {named}", style="dim"), "", "", "")
    return table


def _tried(trials: Trials) -> RenderableType:
    table = _table("remedy")
    goodput, per_gpu = (metric(key).heading for key in (HEADLINE, HEADLINE_PER_GPU))
    add_numbers(table, "GPUs", "SLO\nkept", goodput, "gain\nreq/s", per_gpu)
    base = trials.base
    for number_, one in enumerate(helping(trials)):
        trial = one.trial
        per_gpu = number(trial.goodput / trial.gpus)
        cells = (f"{trial.gpus:,}", *_figures(trial), signed(trial.worth(base)), per_gpu)
        table.add_row(Text(printable(one.remedy.text)), *cells, style="" if number_ else "bold")
    if rest := [one.remedy.text for one in trials.tried if not one.trial.is_better(base)]:
        table.add_section()
        table.add_row(Text(f"no better with {', '.join(map(printable, rest))}", style="dim"), *[""] * 5)
    return table


def _table(first: str) -> Table:
    table = open_table()
    table.add_column(first, overflow="fold", max_width=64)
    return table


def _figures(trial: Trial) -> tuple[str, str]:
    return percent(trial.kept / trial.offered), number(trial.goodput)


def _kept(trial: Trial) -> str:
    return f"{trial.kept:,} of {trial.offered:,} requests keep the SLO"


def _gain(trial: Trial, base: Trial) -> str:
    over = "" if base.closed or trial.window_s == base.window_s else " over the window of the run as it is"
    return f"a gain of {number(trial.worth(base))} req/s{over}"


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]
