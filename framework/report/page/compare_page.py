"""A page that compares finished runs."""

from __future__ import annotations

from collections.abc import Sequence

from framework.report.arms import Arm, unlike
from framework.report.load_words import footnotes, overload, short_window
from framework.report.page.bars import ranking
from framework.report.page.compared import (
    Run,
    are_alike,
    changed,
    difference_pictures,
    difference_table,
    differences,
    distributions,
    figures,
    standing,
)
from framework.report.page.markup import Chapter, Sheet, grid, page, text
from framework.report.page.words import setup, sources

_UNLIKE = "The runs have different requests, which cannot be paired: only their distributions can be compared."
_SOURCE = ("trace", "trace_source", "trace_sha256", "timing_source", "seed", "versions", "git_revision")
_RANKED = (
    "goodput; ± is half of a 95 % interval, over batches of requests that follow each other: it says nothing of other "
    "traces or seeds"
)
_PAIRED = (
    "Each run less the first one, request by request. The interval is Student's t over the means of batches of "
    "requests that follow each other, for these share queues; it says nothing of other traces or seeds."
)


def compare_page(runs: Sequence[Run]) -> str:
    """The page as HTML, of two runs or more."""
    chapters = [
        Chapter("ranking", "Which is better", ranking("Goodput", standing(runs)), _RANKED),
        Chapter("figures", "Figures", figures(runs).html()),
        Chapter("changed", "What changed", changed(runs).html(), "settings in which the runs differ"),
        Chapter("latency", "Latency", grid(distributions(runs)), _of_latencies(runs)),
        Chapter("paired", "Request by request", _paired(runs), _PAIRED if are_alike(runs) else ""),
        Chapter("source", "Where it came from", _sources(runs)),
    ]
    title = " and ".join(dict.fromkeys(run.label for run in runs)) if len(runs) <= 3 else f"{len(runs)} runs"
    differences = unlike([Arm(run.label, run.settings) for run in runs])
    setups = setup([run.settings for run in runs], [run.summary["gpus"] for run in runs])
    said = "".join(f'<p class="sub">{text(line)}</p>' for line in (setups, _requests(runs), differences) if line)
    head = f"<h1>{text(title)}</h1>{said}{_warnings(runs)}"
    return page(f"{len(runs)} runs compared", head, chapters, ("summaries", [dict(run.summary) for run in runs]))


def _warnings(runs: Sequence[Run]) -> str:
    notes = [(run, line) for run in runs for line in (overload(run.summary), short_window(run.summary)) if line]
    return "".join(f'<p><span class="mark">{text(run.label)}</span> {text(line)}</p>' for run, line in notes)


def _of_latencies(runs: Sequence[Run]) -> str:
    return "; ".join(["requests that finished", *footnotes([run.summary for run in runs])])


def _requests(runs: Sequence[Run]) -> str:
    traces = ", ".join(dict.fromkeys(f"{run.summary['trace']} ({run.summary['trace_source']})" for run in runs))
    if are_alike(runs):
        return f"the same {len(runs[0].requests):,} requests of {traces}"
    return f"different requests of {traces}"


def _paired(runs: Sequence[Run]) -> str:
    if not are_alike(runs):
        return f"<p>{text(_UNLIKE)}</p>"
    found = differences(runs)
    return difference_table(found).html() + grid(difference_pictures(found, runs))


def _sources(runs: Sequence[Run]) -> str:
    return Sheet(["source", *(run.label for run in runs)], sources([run.summary for run in runs], _SOURCE)).html()
