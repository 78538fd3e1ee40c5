"""Two sentences a system, made from its figures: where it is best, and why it loses."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.league.results import Entry, Played
from experiments.league.standing import Standing, ranked

_NAMES = {"roll_out": "roll-outs", "long_context": "long contexts"}
_WHY = {
    "unserved": "are turned away or fail",
    "queue": "wait too long for their prefill to begin",
    "prefill": "take too long from the beginning of their prefill to the first token",
    "transfer": "wait for their KV to be copied, or for room where they decode",
    "join": "are taken late into the first decode step",
    "interference": "decode too slowly because of steps with prefills of others",
    "displaced": "are preempted and interrupted",
    "context": "decode too slowly because steps read long contexts",
    "decode": "decode too slowly in steps of too many requests",
    "other": "miss a further limit of the SLO",
}
_ALSO = ("", ", as on one other load", ", as on {} other loads")
_LEAST = 0.25  # share of the losses from which a second cause is told


def spoken(cell: str) -> str:
    """The name of a cell in a text."""
    load, comma, setup = cell.partition(", ")
    return _NAMES.get(load, load) + comma + setup


def sentences(standing: Standing, cells: Mapping[str, Played]) -> tuple[str, str]:
    """Where it is best, and why it loses."""
    return _best(standing, cells), _worst(standing, cells)


def _best(standing: Standing, cells: Mapping[str, Played]) -> str:
    name = standing.best
    place, rivals = standing.places[name], ranked(cells[name])
    share = f"{100 * place.share:.0f} % of the bound"
    if place.rank == 1:
        if len(rivals) == 1:
            return f"Best on {spoken(name)}: {share}."
        others = [one for one in standing.places.values() if one.rank == 1]
        first = f"rank 1 of {len(rivals)}{_ALSO[min(len(others) - 1, 2)].format(len(others) - 1)}"
        ahead = f"{100 * (1 - rivals[1][1].mean_rps / rivals[0][1].mean_rps):.0f} %"
        distance = "level" if ahead == "0 %" else f"{ahead} below it"
        rival = next(policy for policy, _ in rivals if policy != standing.policy)
        return f"Best on {spoken(name)}: {share}, {first}; {rival} is {distance}."
    below = f"{100 * place.below:.0f} % below {rivals[0][0]}"
    if place.is_as_good:
        below += ", from which it cannot be told"
    return f"Best on {spoken(name)}: {share}, rank {place.rank} of {len(rivals)}, {below}."


def _worst(standing: Standing, cells: Mapping[str, Played]) -> str:
    name = standing.worst
    if standing.regret == 0:
        return "No other is above it on any load."
    entry = cells[name].entries[standing.policy]
    behind = f"It loses most on {spoken(name)}, {100 * standing.regret:.0f} % below {ranked(cells[name])[0][0]}"
    why = reasons(entry)
    return f"{behind}: {why}." if why else f"{behind}."


def reasons(entry: Entry) -> str:
    """The causes that cost most requests at the lowest rate that failed; empty if none failed."""
    lost = sum(entry.lost_to.values())
    if not lost:
        return ""
    order = sorted(entry.lost_to.items(), key=lambda pair: -pair[1])
    told = [pair for pair in order[:2] if pair is order[0] or pair[1] >= _LEAST * lost]
    parts = [f"{100 * count / lost:.0f} % {_WHY[cause]}" for cause, count in told]
    return f"of the requests that it loses there, {' and '.join(parts)}"
