"""Whether runs kept up with their load, had time to fill up, and decided a capacity: the words and marks of tables,
pages and pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from framework.metrics.clock import SHORT as SHORT_OF
from framework.metrics.load_state import BACKLOGGED, OVERLOADED, STABLE
from framework.report.numbers import number

Summary = Mapping[str, Any]
MARKS = {OVERLOADED: "‡", BACKLOGGED: "†"}
IN_LEGEND = "overloaded, grows with the run"  # state of an overloaded run, next to a latency
SHORT, SHORT_MEANS = (
    "§",
    "window under 5 times what the SLO allows a request: starting empty flatters all figures",
)
WORSE, WORSE_MEANS = "¶", "requests of the warm-up or cool-down, which are not counted, were served worse"
AT_LEAST, AT_LEAST_MEANS = "?", "the search ran out of requests: the capacity may be higher"
STYLES = {STABLE: "green", BACKLOGGED: "yellow", OVERLOADED: "bold red"}
_ORDER = (STABLE, BACKLOGGED, OVERLOADED)
_LENGTH = "latencies are a function of the run's length"
MEANS = {
    OVERLOADED: f"overloaded, {_LENGTH}",
    BACKLOGGED: "backlogged, for a part of the run requests waited longer than they were served",
}


def load_state(summaries: Iterable[Summary]) -> str | None:
    """The worst state of these runs, None if none has one; summaries of other versions may lack it."""
    found = [state for one in summaries if (state := one.get("load_state")) in _ORDER]
    return max(found, key=_ORDER.index, default=None)


def is_overloaded(summaries: Iterable[Summary]) -> bool:
    """Whether one of these runs is."""
    return load_state(summaries) == OVERLOADED


def has_short_window(summaries: Iterable[Summary]) -> bool:
    """Whether one of these runs spends much of its window filling up."""
    return any(one.get("window_is_short") for one in summaries)


def served_others_worse(summaries: Iterable[Summary]) -> bool:
    """Whether one of these runs served the requests that are not counted worse than those that are."""
    return any(one.get("uncounted_is_worse") for one in summaries)


def ran_out(summaries: Iterable[Summary]) -> bool:
    """Whether a search for one of these capacities ended at a rate that its most requests did not decide."""
    return any(one.get("capacity_settled") is False for one in summaries)


def mark(*summaries: Summary) -> str:
    """The mark next to the figures of these runs, empty if none is needed."""
    signs = MARKS.get(load_state(summaries) or "", "") + (SHORT if has_short_window(summaries) else "")
    signs += WORSE if served_others_worse(summaries) else ""
    return signs + (AT_LEAST if ran_out(summaries) else "")


def overload(summary: Summary) -> str:
    """The warning next to latencies, empty if the run is not overloaded."""
    if not is_overloaded([summary]):
        return ""
    growth = summary.get("latency_growth")
    return f"overloaded: {_LENGTH}{f', +{number(growth)} s each second' if growth is not None else ''}"


def short_window(summary: Summary, allowed_s: float = math.inf) -> str:
    """The warning next to all figures, empty if the window is long enough.

    `allowed_s`: the mean latency that the SLO allows a request; it tells how many requests would do.
    """
    if not summary.get("window_is_short"):
        return ""
    said = f"window of {number(summary['window_s'])} s: too short"
    if not math.isfinite(allowed_s):
        return f"{said}, starting empty flatters all figures"
    needed = summary["offered"] * SHORT_OF * allowed_s / summary["window_s"]
    about = math.ceil(needed / 10 ** (digits := max(0, math.floor(math.log10(needed)) - 1))) * 10**digits
    return (
        f"{said}, under {SHORT_OF:g} times the {number(allowed_s)} s that the SLO allows a request, so starting"
        f" empty flatters all figures; {about:,} requests at this rate are enough"
    )


def worse_others(summary: Summary) -> str:
    """The warning next to all figures, empty if uncounted requests were served as well as others."""
    if not served_others_worse([summary]):
        return ""
    shares = (f"{100 * summary[key]:.1f} %" for key in ("uncounted_attainment", "slo_attainment"))
    return f"{WORSE_MEANS}: {' kept the SLO, of those counted '.join(shares)}"


def too_large(summary: Summary) -> str:
    """The warning about requests that no instance could hold, and what would serve them; empty if there are none."""
    if "refused_kv_tokens" not in summary:
        return ""
    return (
        f"requests of up to {summary['refused_kv_tokens']:,} KV tokens were refused: an instance holds"
        f" {summary['largest_kv_tokens']:,} of one request. Instances of more GPUs (cluster.tp, cluster.pp) serve them,"
        " and policies by which several instances compute one (docs/spans.md)"
    )


def footnotes(summaries: Iterable[Summary]) -> list[str]:
    """The meaning of the marks next to these runs."""
    runs = list(summaries)
    states = {one.get("load_state") for one in runs}
    found = [f"{sign}: {MEANS[state]}" for state, sign in MARKS.items() if state in states]
    found += [f"{SHORT}: {SHORT_MEANS}"] if has_short_window(runs) else []
    found += [f"{WORSE}: {WORSE_MEANS}"] if served_others_worse(runs) else []
    return [*found, *([f"{AT_LEAST}: {AT_LEAST_MEANS}"] if ran_out(runs) else [])]
