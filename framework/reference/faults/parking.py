"""Requests that wait while some phase has no instance (SEMANTICS.md: Faults)."""

from __future__ import annotations

import math

from framework.reference.prefixes import free_kv
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def park(s: Simulation, r: Request) -> None:
    """Let r, which is in no list and holds no KV, wait to be routed anew behind the others that do."""
    let_go(r)
    s.parked.append(r)


def let_go(r: Request) -> None:
    """r, which is in no list and holds no KV, is on no instance."""
    r.instance = -1
    r.source = r.destination = None
    r.handing_over = r.sent_ahead = r.first_token_recomputed = False
    r.prefill_until = r.prefilled = r.covered = r.accepted = 0
    r.caches = False
    forget_place(r)


def forget_place(r: Request) -> None:
    """r, which holds no KV, is computed where it is routed from now on, until it decodes."""
    r.rerouted, r.first_token_pending = True, False
    if r.emitted == 0:
        r.transfer_end_s = math.nan  # what was sent is lost, and token 1 comes after another transfer


def lose_kv(s: Simulation, i: Instance, r: Request) -> bool:
    """No instance takes r, held on i, now: its KV is freed, and it is routed anew. True: KV was freed."""
    i.leaving.remove(r)
    free_kv(s, i, r)
    park(s, r)
    return True
