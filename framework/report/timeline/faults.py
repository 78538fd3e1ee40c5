"""Faults in a timeline: when instances were down, and when they, or their networks, were slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from framework.report.timeline.trace_events import event
from framework.result import Result

THREADS = {2: "crashes", 3: "slow-downs", 4: "network"}  # offset of each from the thread of the steps
_DOWN, _SLOW, _NETWORK = THREADS


class Outage(NamedTuple):
    """A time in which an instance was down or slow, at most up to the end of the run."""

    instance: int
    thread: int  # of `THREADS`
    name: str
    at_s: float
    until_s: float


def outages(result: Result) -> Iterator[Outage]:
    """All outages of a run."""
    for crash in result.crashes:
        for i in range(int(crash["instance"]), int(crash["instance"] + crash["instances"])):
            yield Outage(i, _DOWN, "down", float(crash["at_s"]), min(float(crash["back_s"]), result.end_s))
    known = result.engine.faults.schedule(result.cluster)
    for one in known.slowdowns:
        if one.at_s < result.end_s:
            yield Outage(one.instance, _SLOW, f"{one.factor:g}x", one.at_s, min(one.back_s, result.end_s))
    for cut in known.links:
        if cut.at_s < result.end_s:
            yield Outage(cut.instance, _NETWORK, f"{cut.share:.0%}", cut.at_s, min(cut.back_s, result.end_s))


def fault_slices(result: Result, window_s: tuple[float, float], first_thread: int) -> list[str]:
    """A slice for each outage within the window."""
    return [
        event(name=name, ph="X", pid=i, tid=first_thread + thread, ts=1e6 * at_s, dur=1e6 * (until_s - at_s))
        for i, thread, name, at_s, until_s in outages(result)
        if at_s < window_s[1] and until_s > window_s[0]
    ]
