"""Requests that wait while some phase has no instance (SEMANTICS.md: Faults)."""

from __future__ import annotations

import math

from framework.reference.prefixes import free_kv
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def park(s: Simulation, r: Request) -> None:
    """Let r, which is in no list and holds no KV, wait to be routed anew behind the others that do."""
    r.instance, r.rerouted = -1, True
    r.source = r.destination = None
    r.handing_over = r.sent_ahead = r.first_token_recomputed = r.first_token_pending = False
    r.prefill_until = r.prefilled = r.covered = r.accepted = 0
    r.caches = False
    if r.emitted == 0:
        r.transfer_end_s = math.nan  # what was sent is lost, and token 1 comes after another transfer
    s.parked.append(r)


def lose_kv(s: Simulation, i: Instance, r: Request) -> bool:
    """No instance takes r, held on i, now: its KV is freed, and it is routed anew. True: KV was freed."""
    i.leaving.remove(r)
    free_kv(s, i, r)
    park(s, r)
    return True
