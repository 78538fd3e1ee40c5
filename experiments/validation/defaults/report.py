"""The table in Markdown: a row for each policy, a column for each trace."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.validation.defaults.run import Found


def table(found: Sequence[Found], least: float) -> str:
    """`untuned / tuned` requests/s, with `!` if the defaults reach less than the share `least`.

    `?`: requests ran out before a search had decided. `<`: a rate that no trial sustained.
    """
    traces = list(dict.fromkeys(one.trace for one in found))
    cells = {(one.policy, one.trace): _words(one, least) for one in found}
    lines = [f"| policy | {' | '.join(traces)} |", f"|---|{'---:|' * len(traces)}"]
    for policy in dict.fromkeys(one.policy for one in found):
        lines.append(f"| {policy} | {' | '.join(cells.get((policy, trace), '–') for trace in traces)} |")
    return "\n".join(lines) + "\n"


def _words(one: Found, least: float) -> str:
    if one.share is None:
        return "0 / 0"
    if one.race_rps:
        return f"{one.untuned_rps:.3g} / < {one.race_rps:.3g}" + ("" if one.settled else " ?")
    words = f"{one.untuned_rps:.3g} / {one.tuned_rps:.3g} ({100 * one.share:.0f} %)"
    return words + (" !" if one.share < least else "") + ("" if one.settled else " ?")
