"""The seconds that figures are over, computed a second time by docs/results.md (The clock)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from framework.load import Closed, Open
from framework.metrics.slo import Slo
from tests.helpers.told import Row, Run, lasting_s

_LIMITS = ("ttft_s", "tpot_s", "tbt_p99_s", "tbt_tail_s", "normalized_s")


@dataclass(frozen=True)
class Clock:
    """`window_s`, by `name`: what goodput is over; `duration_s`: what throughputs are.

    `run_s`: what GPUs are paid for. `rows`, at `numbers` among all: the requests that count. `from_s` and `to_s`: what
    shares are of; infinite ends where that is the run.
    """

    window_s: float
    name: str
    is_short: bool
    duration_s: float
    run_s: float
    rows: list[Row]
    numbers: list[int]
    from_s: float
    to_s: float


def clock(run: Run) -> Clock:
    """By what trace and load fix, or else by the run."""
    window, allowed_s = _given(run), allowed_latency_s(run)
    if window is None or window[1] - window[0] <= allowed_s or not any(counted(run, *window[:2])):
        is_shorter = run.run_s < run.untold.shortest_s
        name = "shortest time for all that was offered" if is_shorter else "first request to last answer"
        rows, window_s = list(run.requests), max(run.run_s, run.untold.shortest_s)
        return Clock(window_s, name, False, run.run_s, run.run_s, rows, [*range(len(rows))], -math.inf, math.inf)
    from_s, to_s, name = window
    numbers = [k for k, counts in enumerate(counted(run, from_s, to_s)) if counts]
    rows = [run.requests[k] for k in numbers]
    window_s = to_s - from_s
    if isinstance(run.scenario.load, Closed) and run.untold.shortest_s > window_s:
        window_s, name = run.untold.shortest_s, "shortest time for all that was offered"
    duration_s = lasting_s(rows, [run.untold.end_s[k] for k in numbers])
    paid_s = max(run.run_s, to_s - min(row["arrival_s"] for row in run.requests if row["arrival_s"] is not None))
    return Clock(window_s, name, window_s < 5 * allowed_s, duration_s, paid_s, rows, numbers, from_s, to_s)


def _given(run: Run) -> tuple[float, float, str] | None:
    """What trace and load fix: begin, end and name."""
    load, workload = run.scenario.load, run.scenario.workload
    if isinstance(load, Closed):
        if load.duration_s is None or len(run.requests) == len(workload):
            return None
        return load.warmup_s, load.duration_s, "duration of the load"
    assert isinstance(load, Open)
    arrivals_s = [workload.arrival_s[k].item() for k in range(len(workload)) if opens(run, k)]
    what = "arrival" if workload.previous is None else "opening of a session"
    return arrivals_s[0] + load.warmup_s, arrivals_s[-1] - load.cooldown_s, f"first to last {what}"


def opens(run: Run, number: int) -> bool:
    """Whether a request of the trace follows none."""
    previous = run.scenario.workload.previous
    return previous is None or previous[number] < 0


def counted(run: Run, from_s: float, to_s: float) -> list[bool]:
    """Which of the requests sent belong to the window: those sent in it, of a session all if its first turn was."""
    sent_s = {row["request_id"]: row["arrival_s"] for row in run.requests}
    previous, found = run.scenario.workload.previous, []
    for row in run.requests:
        number = row["request_id"]
        while previous is not None and previous[number] >= 0:
            number = int(previous[number])
        found.append(bool(from_s <= sent_s[number] <= to_s))
    return found


def allowed_latency_s(run: Run) -> float:
    """What the SLO allows a request on average: TTFT + (tokens - 1) x TPOT, 0 for a limit that is not in force."""
    if not any(limit is not None for limit in _all_limits(run.slo)) and run.slo.slowdown is None:
        return math.inf
    allowed_s = []
    for row in run.requests:
        own = (run.slo.classes or {}).get(row.get("slo_class"), {})
        ttft_s, tpot_s = (own.get(name, getattr(run.slo, name)) or 0.0 for name in ("ttft_s", "tpot_s"))
        allowed_s.append(ttft_s + (row["output_tokens"] - 1) * tpot_s)
    return math.fsum(allowed_s) / len(allowed_s)


def _all_limits(slo: Slo) -> Iterator[Any]:
    yield from (getattr(slo, name) for name in _LIMITS)
    for limits in (slo.classes or {}).values():
        yield from limits.values()
