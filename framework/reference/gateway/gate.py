"""What waits at the gateway, and when it looks (SEMANTICS.md: Gateway)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from framework.codes import GATEWAY
from framework.policy.reports import Views
from framework.reference.faults.reports import Reports
from framework.reference.state import Request
from framework.system.gateway import Gateway
from framework.workload import Workload

Signals = list[tuple[int, int, int]]  # by instance: waiting requests, used blocks, all blocks


class Clock(Protocol):
    """The time and the events of a run."""

    now_s: float

    def push(self, time_s: float, kind: int, id: int) -> int: ...

    def withdraw(self, serial: int) -> None: ...


@dataclass
class Flow:
    """The requests of one tenant in one band that wait, in order of arrival."""

    band: int
    tenant: str
    requests: list[Request] = field(default_factory=list)
    tokens: float = 0.0  # charged so far


class Gate:
    """The gateway of one run."""

    def __init__(self, config: Gateway, workload: Workload, views: Views) -> None:
        self.config = config
        names, bands = config.bands_of(workload)
        by_tenant = config.fairness != "arrival" and workload.tenant is not None
        tenants = workload.tenant if by_tenant and workload.tenant is not None else [""] * len(workload)
        keys = list(zip(bands.tolist(), tenants, strict=True))
        self.flows = [Flow(*key) for key in sorted(set(keys))]
        self._flow_of = [self.flows[sorted(set(keys)).index(key)] for key in keys]
        self.limits = [config.limits_of(name) for name in names]
        self.turns: dict[int, str] = {}  # by band: the tenant of the last release
        self._floors: dict[int, float] = {}  # by band: tokens of the flow that has become empty last
        self._come: list[Request] = []  # they enter their flows at the next look
        self._since: dict[int, float] = {}
        self._numbers: dict[int, int] = {}
        self._entered = self._charged = 0
        self.look: tuple[float, int] | None = None  # when it looks next, and the serial number of that event
        self.goes_by_reports = bool(views) and views.hooks == "front_end" and config.saturation == "utilization"
        self._reports: Reports[Signals] = Reports(views, [])
        self.arrives_s = self._reports.arrives_s
        self.taken = self.last_news = 0  # the last report, and the last one whose arrival it waits for

    # --- lists ---

    @property
    def waiting(self) -> list[Request]:
        """All that wait."""
        return [*self._come, *(r for flow in self.flows for r in flow.requests)]

    def of(self, band: int) -> list[Request]:
        """Those of a band, in order of arrival."""
        there = [r for flow in self.flows if flow.band == band for r in flow.requests]
        return sorted(there, key=lambda r: self._numbers[r.id])

    def come(self, s: Clock, r: Request) -> None:
        """r arrives."""
        self._come.append(r)
        self._since[r.id] = s.now_s
        self.look_at(s, s.now_s)

    def take_in(self) -> None:
        """Let those that have come enter their flows."""
        for r in self._come:
            flow = self._flow_of[r.id]
            if not flow.requests:
                others = [other.tokens for other in self.flows if other.band == flow.band and other.requests]
                flow.tokens = max(flow.tokens, min(others) if others else self._floors.get(flow.band, 0.0))
            flow.requests.append(r)
            self._entered += 1
            self._numbers[r.id] = self._entered
            self.last_news = max(self.last_news, self.taken)
        self._come = []

    def leave(self, r: Request, now_s: float) -> None:
        """r waits here no more."""
        r.gated_s += now_s - self._since[r.id]
        if r in self._come:
            self._come.remove(r)
            return
        flow = self._flow_of[r.id]
        flow.requests.remove(r)
        if not flow.requests:
            self._floors[flow.band] = flow.tokens

    # --- order ---

    def charge_outputs(self, finished: Sequence[Request]) -> None:
        """Charge flows for the outputs that have been finished since the last look."""
        for r in finished[self._charged :]:
            self._flow_of[r.id].tokens += self.config.output_weight * r.emitted
        self._charged = len(finished)

    def next_flow(self) -> Flow:
        """The flow whose first request is released next."""
        band = min(flow.band for flow in self.flows if flow.requests)
        there = [flow for flow in self.flows if flow.band == band and flow.requests]
        if self.config.fairness == "tokens":
            return min(there, key=lambda flow: flow.tokens)
        later = [flow for flow in there if flow.tenant > self.turns.get(band, "")]
        return (later or there)[0] if band in self.turns else there[0]

    # --- time ---

    def since_s(self, r: Request) -> float:
        """When r came."""
        return self._since[r.id]

    def deadline_s(self, flow: Flow) -> float:
        """When the first request of the flow has waited for too long."""
        return self._since[flow.requests[0].id] + self.limits[flow.band][1]

    def look_at(self, s: Clock, time_s: float) -> None:
        """Look at that time, unless it looks before."""
        if self.look is not None:
            if self.look[0] <= time_s:
                return
            s.withdraw(self.look[1])
        self.look = time_s, s.push(time_s, GATEWAY, 0)

    def note_turn(self, s: Clock) -> None:
        """An instance that was marked as changed schedules."""
        if self.waiting:
            self.look_at(s, s.now_s)

    # --- reports ---

    def keep(self, number: int, signals: Signals) -> None:
        """Take the report of that number."""
        self._reports.keep(number, signals)
        self.taken = number

    def shown(self, now_s: float) -> Signals:
        """The last report that has arrived."""
        return self._reports.arrived(now_s)

    def next_report(self, now_s: float) -> int:
        """The first report that has not arrived by now."""
        number = 1
        while self.arrives_s(number) <= now_s:
            number += 1
        return number


def gate_of(config: Gateway, workload: Workload, views: Views) -> Gate | None:
    """The gateway of a run, if it has one."""
    return Gate(config, workload, views) if config else None
