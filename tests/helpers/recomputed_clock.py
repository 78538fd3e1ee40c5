"""The seconds that figures are over, computed a second time by docs/clock.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from framework.load import Closed, Open
from framework.metrics.slo import Slo
from tests.helpers.reported import Row, Run, lasting_s

_LIMITS = ("ttft_s", "tpot_s", "tbt_p99_s", "tbt_tail_s", "normalized_s", "reader_wait_s")


@dataclass(frozen=True)
class Clock:
    """`window_s`, by `name`: what goodput is over; `duration_s`: what throughputs are.

    `rows`, at `numbers` among all: the requests that count. `overdue`: of the clients' time. `from_s` and `to_s`: what
    shares are of; infinite ends where that is the run.
    """

    window_s: float
    name: str
    is_short: bool
    duration_s: float
    rows: list[Row]
    numbers: list[int]
    overdue: float | None
    from_s: float
    to_s: float


def clock(run: Run) -> Clock:
    """By what trace, load and SLO fix, or else by the run."""
    begin_s, end_s = _window_of_load(run) or (-math.inf, math.inf)
    counts = counted(run, begin_s, end_s)
    is_of_window = any(counts) and math.isfinite(end_s)
    if isinstance(run.scenario.load, Open) and end_s - begin_s <= allowed_latency_s(run):
        is_of_window = False
    sent = [k for k in range(len(run.requests)) if counts[k] or not is_of_window]
    window_s, name = _headline(run, sent)
    is_short = window_s < 5 * allowed_latency_s(run) < math.inf
    vain_s = [_in_vain_s(run, k, begin_s, end_s) for k in range(len(run.requests))]
    overdue = None
    if isinstance(run.scenario.load, Closed) and math.isfinite(end_s):
        overdue = min(math.fsum(vain_s) / (run.scenario.load.concurrency * (end_s - begin_s)), 1.0)
    if overdue:
        window_s, name = window_s / (1 - overdue), f"{name}, longer for clients that were kept waiting"
    numbers = sorted([*sent, *_of_those_outside(run, sent, vain_s)])
    if len(numbers) > len(sent):
        window_s, name = window_s * len(numbers) / len(sent), f"{name}, longer for what was not served outside it"
    rows = [run.requests[k] for k in numbers]
    duration_s = lasting_s(rows, [run.unreported.end_s[k] for k in numbers])
    ends = (begin_s, end_s) if is_of_window else (-math.inf, math.inf)
    return Clock(window_s, name, is_short, duration_s, rows, numbers, overdue, *ends)


def _in_vain_s(run: Run, number: int, from_s: float, to_s: float) -> float:
    """How long within the window a request was under way for more than twice what the SLO allows it."""
    row = run.requests[number]
    if row["arrival_s"] is None:
        return 0.0
    ended_s = to_s if row["reason"] == "stalled" else min(run.unreported.end_s[number], to_s)
    return max(ended_s - max(row["arrival_s"] + 2 * allowed_s(run, row), from_s), 0.0)


def allowed_s(run: Run, row: Row) -> float:
    """What the SLO allows a request from sending to its last token."""
    own = (run.slo.classes or {}).get(str(row.get("slo_class")), {})
    limits = (own.get(name, getattr(run.slo, name)) for name in ("ttft_s", "tpot_s", "normalized_s"))
    ttft_s, tpot_s, token_s = (math.inf if limit is None else limit for limit in limits)
    tokens = row["output_tokens"]
    return min(ttft_s + (0.0 if tokens == 1 else (tokens - 1) * tpot_s), tokens * token_s)


def _of_those_outside(run: Run, sent: list[int], vain_s: list[float]) -> list[int]:
    """Requests outside of the window that were not served, or waited in vain in it; none where they are no larger
    share than inside, but for chance.
    """
    outside = sorted(set(range(len(run.requests))) - set(sent))
    left = [row["state"] != "finished" or vain > 0 for row, vain in zip(run.requests, vain_s, strict=True)]
    found, inside = [k for k in outside if left[k]], sum(left[k] for k in sent)
    if not found or not sent:
        return []
    more, kept = len(found) / len(outside) - inside / len(sent), (len(found) + inside) / len(left)
    variance = kept * (1 - kept) * (1 / len(outside) + 1 / len(sent))
    return found if more > 0 and more**2 > 1.96**2 * variance else []


def _window_of_load(run: Run) -> tuple[float, float] | None:
    """Begin and end; None for a closed load all of whose requests were sent."""
    load = run.scenario.load
    if isinstance(load, Open):
        arrivals_s = [run.scenario.workload.arrival_s[k].item() for k in range(len(run.requests)) if opens(run, k)]
        return arrivals_s[0] + load.warmup_s, arrivals_s[-1] - load.cooldown_s
    assert isinstance(load, Closed)
    sends_all = load.duration_s is None or len(run.requests) == len(run.scenario.workload)
    return None if sends_all or load.duration_s is None else (load.warmup_s, load.duration_s)


def _headline(run: Run, numbers: list[int]) -> tuple[float, str]:
    """The rows of the table of docs/clock.md, one after another."""
    window, allowed_s, is_open = _window_of_load(run), allowed_latency_s(run), isinstance(run.scenario.load, Open)
    counts = [k in numbers for k in range(len(run.requests))]
    if window is not None and is_open and math.isfinite(allowed_s):
        if window[1] - window[0] > allowed_s:
            what = "arrival" if run.scenario.workload.previous is None else "opening of a session"
            return window[1] - window[0], f"first to last {what}"
        return _no_shorter(run, counts, allowed_s, "what the SLO allows one request")
    if is_open:
        window_s, name = _no_shorter(run, counts, run.run_s, "first request to last answer")
    elif window is not None:
        window_s, name = _no_shorter(run, counts, window[1] - window[0], "duration of the load")
    else:
        sent_s = [row["arrival_s"] for row in run.requests if row["arrival_s"] is not None]
        window_s, name = _no_shorter(run, counts, max(sent_s) - min(sent_s), "first to last request sent")
    served = [counts[k] and row["state"] == "finished" for k, row in enumerate(run.requests)]
    unserved = [counts[k] and row["state"] != "finished" for k, row in enumerate(run.requests)]
    if any(served) and any(unserved):
        name += ", longer for what was not served"
        served_s = run.unreported.shortest_s(served)
        window_s += window_s * run.unreported.shortest_s(unserved) / served_s if served_s else 0.0
    return window_s, name


def _no_shorter(run: Run, counts: list[bool], window_s: float, name: str) -> tuple[float, str]:
    least_s = run.unreported.shortest_s(counts)
    return (least_s, "shortest time for all that was offered") if least_s > window_s else (window_s, name)


def opens(run: Run, number: int) -> bool:
    """Whether a request of the trace is the first of its program."""
    return opener(run, number) == number


def opener(run: Run, number: int) -> int:
    """The first call of a request's program: what it goes back to, and of a session that session's first."""
    workload = run.scenario.workload
    if workload.previous is None:
        return number
    while workload.previous[number] >= 0:
        number = int(workload.previous[number])
    if workload.session_id is None or workload.session_id[number] < 0:
        return number
    return workload.session_id.tolist().index(workload.session_id[number])


def counted(run: Run, from_s: float, to_s: float) -> list[bool]:
    """Which of the requests sent belong to the window: those sent in it, of a session all if its first turn was.

    What was never sent belongs to none.
    """
    sent_s = {row["request_id"]: math.inf if row["arrival_s"] is None else row["arrival_s"] for row in run.requests}
    return [from_s <= sent_s[opener(run, row["request_id"])] <= to_s for row in run.requests]


def allowed_latency_s(run: Run) -> float:
    """What the SLO allows a request on average: TTFT + (tokens - 1) x TPOT, 0 for a limit that is not in force."""
    if not any(limit is not None for limit in _all_limits(run.slo)) and run.slo.slowdown is None:
        return math.inf
    allowed_s = []
    for row in run.requests:
        own = (run.slo.classes or {}).get(str(row.get("slo_class")), {})
        ttft_s, tpot_s = (own.get(name, getattr(run.slo, name)) or 0.0 for name in ("ttft_s", "tpot_s"))
        allowed_s.append(ttft_s + (row["output_tokens"] - 1) * tpot_s)
    return math.fsum(allowed_s) / len(allowed_s)


def _all_limits(slo: Slo) -> Iterator[Any]:
    yield from (getattr(slo, name) for name in _LIMITS)
    for limits in (slo.classes or {}).values():
        yield from limits.values()
