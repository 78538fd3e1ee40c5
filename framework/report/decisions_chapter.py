"""A part of a run's page: routing decisions, and what the other choice would have given for a sample of them."""

from __future__ import annotations

from framework.objective.decisions import PHASES, Decisions
from framework.report.decisions_table import decision_lines
from framework.report.page.markup import Cell, Sheet, text
from framework.report.timeline.routes import names_of
from framework.result import Result

_MS = 1e3
_COLUMNS = (
    *("at (s)", "request", "route of", "went to", "estimate (ms)", "the other", "estimate (ms)"),
    *("change of good requests", "of all requests' time (s)", "of its own (s)"),
)


def decisions_chapter(found: Decisions, result: Result) -> str:
    """The sentences, and a row for each replay, the most regretted first."""
    said = "".join(f"<p>{text(line)}</p>" for line in decision_lines(found))
    names = names_of(result)
    rows = []
    for one in sorted(found.replays, key=lambda one: (-one.good, one.e2e_s)):
        routed = found.routed[one.number]
        row: list[Cell] = [round(routed.time_s, 3), routed.request, PHASES[routed.hook]]
        row += [names[routed.chosen], round(_MS * routed.chosen_s, 2), names[routed.other]]
        row += [round(_MS * routed.other_s, 2), one.good, _known(one.e2e_s), _known(one.own_e2e_s)]
        rows.append(row)
    note = (
        '<p class="note">Estimates are those at the decision: of a prefill until it is done, of a decode the next '
        "step. A change is the replay less the run: more good requests, or less time, is regret.</p>"
    )
    return f'<div class="finding">{said}</div>' + (Sheet(_COLUMNS, rows).html() + note if rows else "")


def _known(value_s: float) -> float | None:
    return None if value_s != value_s else round(value_s, 4)
