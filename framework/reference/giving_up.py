"""Requests that are cancelled: one that its client gave up may be sent again (SEMANTICS.md: Clients that give up)."""

from __future__ import annotations

from framework.codes import ARRIVAL, REASON_GAVE_UP, REASONS
from framework.reference.faults.parking import let_go
from framework.reference.simulation import Simulation
from framework.reference.state import CANCELLED, Request

GAVE_UP = REASONS[REASON_GAVE_UP]


def end_cancelled(s: Simulation, r: Request, reason: str) -> None:
    """r, which holds nothing and is in no list, is cancelled, or it comes again later."""
    again_s = s.now_s + s.options.retry_backoff_s * 2.0 ** (r.attempts - 1)
    if reason == GAVE_UP and r.attempts <= s.options.retries and again_s < s.options.horizon_s:
        let_go(r)
        r.split = r.backed_up = 0
        s.push(again_s, ARRIVAL, r.id)
    else:
        s.end_request(r, CANCELLED, reason)
