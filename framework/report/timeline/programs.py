"""Programs in a timeline: a track for each, with its calls, and the tools and users that it waits for.

Calls that are under way at the same time are on further tracks of their program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from framework.metrics.service.programs import waits_for
from framework.report.timeline.trace_events import event, thread_name
from framework.result import STATES, Result

Floats = NDArray[np.float64]
Window = tuple[float, float]
_US = 1e6
_BEYOND = 10  # between the process of the requests and that of programs: threads of steps have the numbers between
_ROUNDING_S = 1e-9


def program_events(result: Result, requests_process: int, end_s: Floats, window_s: Window) -> list[str]:
    """The events of all programs of several calls; none in a trace that has none. A window leaves out calls and waits
    outside it.
    """
    if result.workload.previous is None:
        return []
    process = requests_process + _BEYOND
    lanes = _Lanes(result, end_s)
    slices: list[tuple[int, str]] = []
    for call in lanes.calls:
        lane = lanes.place(call)
        slices += [(lane, text) for text in _slices(result, call, lanes, process, lane, window_s)]
    if not slices:
        return []
    used = sorted({lane for lane, _ in slices})
    names = [thread_name(process, process + 1 + lane, lanes.names[lane]) for lane in used]
    heads = [event(name="process_name", ph="M", pid=process, args={"name": "programs"})]
    heads.append(event(name="process_sort_index", ph="M", pid=process, args={"sort_index": process}))
    return [*heads, *names, *(text for _, text in slices)]


class _Lanes:
    """The track of each call: the first one of its program that is free when the wait for the call begins."""

    def __init__(self, result: Result, end_s: Floats) -> None:
        workload = result.workload
        arrival_s = result.requests["arrival_s"]
        program = workload.openers
        sizes = np.bincount(program, minlength=len(program))
        own = np.flatnonzero((sizes[program] > 1) & ~np.isnan(arrival_s))
        think_s: Floats = np.zeros(len(program))
        if workload.previous is not None and workload.think_s is not None:
            think_s = np.where(workload.previous >= 0, workload.think_s, 0.0)
        self.begin_s, self.arrival_s, self.end_s = arrival_s - think_s, arrival_s, end_s
        self.calls: list[int] = own[np.lexsort((own, self.begin_s[own], program[own]))].tolist()
        self.names: list[str] = []
        self._result, self._program = result, program
        self.waits = waits_for(workload)
        self._free: dict[int, list[int]] = {}  # the lanes of each program
        self._until_s: list[float] = []

    def place(self, call: int) -> int:
        """The track of a call; calls come in the order in which their waits begin."""
        program = int(self._program[call])
        own = self._free.setdefault(program, [])
        lane = next((one for one in own if self._until_s[one] <= self.begin_s[call] + _ROUNDING_S), None)
        if lane is None:
            lane = len(self.names)
            session = self._result.workload.session_id
            number = program if session is None or session[program] < 0 else int(session[program])
            self.names.append(f"program {number}" + (f", branch {len(own) + 1}" if own else ""))
            self._until_s.append(0.0)
            own.append(lane)
        self._until_s[lane] = float(self.end_s[call])
        return lane


def _slices(result: Result, call: int, lanes: _Lanes, process: int, lane: int, window_s: Window) -> Iterator[str]:
    """The wait before a call, if any, and the call."""
    begin_s, arrival_s, end_s = (float(times[call]) for times in (lanes.begin_s, lanes.arrival_s, lanes.end_s))
    own = {"ph": "X", "pid": process, "tid": process + 1 + lane}
    workload, request = result.workload, result.requests[call]
    if arrival_s > begin_s and _overlaps(begin_s, arrival_s, window_s):
        yield event(name=lanes.waits[call] or "think", **own, ts=_us(begin_s), dur=_us(arrival_s) - _us(begin_s))
    if _overlaps(arrival_s, end_s, window_s):
        arguments = {
            "request": call,
            "state": STATES[int(request["state"])],
            "input_tokens": int(workload.input_tokens[call]),
            "cached_tokens": int(request["cached_tokens"]),
            "output_tokens": int(workload.output_tokens[call]),
        }
        yield event(name="call", **own, ts=_us(arrival_s), dur=_us(end_s) - _us(arrival_s), args=arguments)


def _overlaps(begin_s: float, end_s: float, window_s: Window) -> bool:
    return begin_s < window_s[1] and end_s > window_s[0]


def _us(time_s: float) -> float:
    return round(time_s * _US, 3)
