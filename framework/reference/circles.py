"""Deadlock of held KV (SEMANTICS.md: Circles of held KV, Stalled runs)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from framework.errors import Stuck, stuck_error
from framework.reference.copies.transfers import kv_there, start_transfers, stop_decoding
from framework.reference.kv import kv_of_next_step, queue_preempted
from framework.reference.prefixes import free_kv
from framework.reference.simulation import Simulation
from framework.reference.state import FAILED, PENDING, UNSENT, Instance, Request


def break_circle(s: Simulation) -> bool:
    """Preempt a request of a circle, the last admitted of those that were preempted the fewest times, if nothing more
    is due now. False: there is no circle.
    """
    circle = find_circle(s)
    held = [r for i in circle for r in held_on(s, i)]
    if held:
        give_up(s, min(held, key=lambda r: (r.preemptions, -r.admission)))
    return bool(held)


def held_on(s: Simulation, i: Instance) -> list[Request]:
    """The requests whose fully computed KV stays on i until there is room at their destinations."""
    return [r for d in s.instances for r in d.incoming if r.source is i and r not in i.prefilling]


def find_circle(s: Simulation) -> list[Instance]:
    """The largest set of blocked instances whose held requests all go to one another."""
    circle = [i for i in s.instances if is_blocked(s, i)]
    while left := [i for i in circle if any(r.destination not in circle for r in held_on(s, i))]:
        circle = [i for i in circle if i not in left]
    return circle


def is_blocked(s: Simulation, d: Instance) -> bool:
    """Whether the KV held on d is enough to deny room to the first of its incoming list for ever."""
    if not d.incoming:
        return False
    first = d.incoming[0]
    if first.source is not None and first in first.source.prefilling:
        return False
    if lacks(s, d, first, kv_there(s, d, first), first.sent_kv):
        return True
    if not s.gives_way(d):
        return False
    if d.swapped:
        return lacks(s, d, d.swapped[0], kv_of_next_step(s, d, d.swapped[0]), 0)
    head = min(d.waiting)[2]
    return lacks(s, d, head, head.goal, head.goal - 1)


def lacks(s: Simulation, d: Instance, r: Request, tokens: int, known: int) -> bool:
    """Whether d lacks room for `tokens` tokens of r, given the KV that is held there.

    r shares the blocks of its first `known` tokens that held requests reference.
    """
    held = [other.id for other in held_on(s, d)]
    names, shared = d.cache.names_of_all(held), 0
    while shared < len(r.hash_ids) and (shared + 1) * s.hash_tokens <= known and r.hash_ids[shared] in names:
        shared += 1
    fresh = s.blocks_of(d, tokens) - shared * d.cache.blocks_per_id
    watermark = d.watermark if s.options.engine.idle_watermark else 0
    return d.cache.total - d.cache.blocks_of_all(held) - fresh < watermark


def give_up(s: Simulation, r: Request) -> None:
    """Drop the KV of r, which is held, and compute it again where r waits for room."""
    i, d = r.source, r.destination
    assert i is not None
    assert d is not None
    d.incoming.remove(r)
    i.leaving.remove(r)
    r.first_token_pending = r.first_token_pending or r.first_token_recomputed
    r.first_token_recomputed, r.handing_over, r.source, r.destination = False, False, None, None
    s.preemptions += 1
    r.preemptions += 1
    free_kv(s, i, r)
    r.instance = d.id
    queue_preempted(s, d, r)
    if r.instance == d.id:
        s.wake(d)
    start_transfers(s, i)
    s.wake(i)
    start_transfers(s, d)


# --- the end of a run in which nothing can happen any more ------------------------------------------------------------


def require_withheld(s: Simulation) -> None:
    """Raise InvariantError for a request that has not ended although no plan of the policy withholds it."""
    withholding = [i for i in s.instances if withholds(i)]
    while more := [i for i in s.instances if i not in withholding and waits_for_one(s, i, withholding)]:
        withholding += more
    stuck = [(r, place) for r, place in places(s) if place not in withholding]
    if stuck:
        raise stuck_error([describe(r, place) for r, place in sorted(stuck, key=lambda entry: entry[0].id)])


def withholds(i: Instance) -> bool:
    """Whether the plan of i lets no prompt be computed, or KV of suspended requests is there."""
    return i.mode == "decode_only" or i.token_budget < i.spec.ranks or bool(i.kept)


def waits_for_one(s: Simulation, i: Instance, there: list[Instance]) -> bool:
    """Whether KV that is held on i waits for one of these instances."""
    return any(r.destination in there for r in held_on(s, i))


def places(s: Simulation) -> Iterator[tuple[Request, Instance]]:
    """The requests that have come and not ended, each with the instance that it waits for."""
    for i in s.instances:
        for _, _, r in [*i.waiting, *i.inbox]:
            yield r, i
        for r in [*i.prefilling, *i.running, *i.joining, *i.swapped, *i.incoming]:
            yield r, i


def describe(r: Request, place: Instance) -> Stuck:
    """What r holds and where, and what it waits for."""
    if r.source is None:
        return Stuck(r.id, place.id)
    return Stuck(r.id, place.id, r.source.id, r.kv)


def fail_rest(s: Simulation) -> None:
    """Fail the requests that have not ended, since no event is left, and free what they hold."""
    require_withheld(s)
    for i in s.instances:
        for r in list(i.running):
            stop_decoding(s, i, r)
        i.drop_all()
    for r in s.requests:
        if r.state == PENDING:
            is_sent = r.taken_in or s.options.horizon_s == math.inf
            r.state, r.reason, r.end_s = (FAILED, "stalled", s.now_s) if is_sent else (UNSENT, "", s.now_s)
            s.ended.append(r)
