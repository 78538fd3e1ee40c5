"""Requests that wait while some phase has no instance (SEMANTICS.md: Faults)."""

from __future__ import annotations

import math

from framework.reference.prefixes import free_kv
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def park(s: Simulation, r: Request) -> None:
    """Park r, which is in no list and holds no KV, behind other parked requests."""
    r.instance = -1
    r.source = r.destination = None
    r.handing_over = r.sent_ahead = r.first_token_recomputed = False
    r.prefill_until = r.prefilled = r.covered = r.accepted = 0
    r.caches = False
    forget_place(r)
    s.parked.append(r)


def forget_place(r: Request) -> None:
    """Let r, which holds no KV, be computed on the routed instance until it decodes."""
    r.rerouted, r.first_token_pending = True, False
    if r.emitted == 0:
        r.transfer_end_s = math.nan  # what was sent is lost; token 1 needs another transfer


def lose_kv(s: Simulation, i: Instance, r: Request) -> bool:
    """Free the KV of r, held on i, since no instance takes r now; r is routed anew. True: KV was freed."""
    i.leaving.remove(r)
    free_kv(s, i, r)
    park(s, r)
    return True
