"""The end of a prefill, and where a request continues (SEMANTICS.md: End of a step, Splits).

`join(s, i, r)`, if it is an argument, lets r decode on i: at once, or from a boundary of i's decodes on.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from framework.codes import DECODE
from framework.reference.asking import ask_route_decode, ask_route_prefill
from framework.reference.copies.transfers import (
    asks_where_to_decode,
    call_back,
    cancel_migration,
    hand_over,
    start_decoding,
    start_transfers,
    stop_decoding,
    turn_away,
)
from framework.reference.faults.parking import lose_kv
from framework.reference.prefixes import free_ended
from framework.reference.simulation import Simulation
from framework.reference.state import FAILED, FINISHED, PENDING, REJECTED, Instance, Request
from framework.reference.steps.step import Step

Join = Callable[[Simulation, Instance, Request], None]


def join_later(s: Simulation, i: Instance, r: Request) -> None:
    """Let r, whose prompt i's prefill stream has computed, join i's decodes at a boundary."""
    i.computed.append(r)


def end_in_order(s: Simulation, i: Instance, step: Step) -> bool:
    """End the requests whose chunk gave the last token, each after the ending decodes that were admitted before it.

    True: KV was freed.
    """
    found = False
    computed = [r for r, _, _ in step.chunks if r.prefilled == r.prefill_until != r.split]
    ending = [r for r in computed if r.emitted + 1 == r.output_tokens and not may_leave_before_token(s, i, r)]
    set_aside(i, ending)
    for r in ending:
        for other in step.decodes:
            if other.state == PENDING and other.emitted == other.output_tokens and other.admission < r.admission:
                stop_decoding(s, i, other)
                finish_request(s, i, other)
        found = complete_prefill(s, i, r, start_decoding) or found
    return found


def set_aside(i: Instance, leaving: list[Request]) -> None:
    """Take requests whose prompt, or part before a split, is computed out of i's prefilling order."""
    for r in leaving:
        i.prefilling.remove(r)
    i.prefilled += leaving


def complete_prefills(s: Simulation, i: Instance, computed: list[Request], join: Join) -> bool:
    """Complete prefills that have ended, in chunk order. True: a seat or KV was freed."""
    set_aside(i, computed)
    found = False
    for r in computed:
        if r.prefilled == r.split:
            found = prefill_elsewhere(s, i, r) or found
        else:
            found = complete_prefill(s, i, r, join) or found
    return found


def complete_prefill(s: Simulation, i: Instance, r: Request, join: Join) -> bool:
    """Complete a prefill: emit, then finish, stay or leave. True: its seat or its KV was freed."""
    i.prefilled.remove(r)
    stays = s.recomputes_here(r)
    if s.options.first_token == "recomputed" and r.emitted == 0:
        return complete_before_token(s, i, r, join)
    if r.emitted > 0:
        s.token_log.append((0, 0, s.now_s - r.token_s[-1], r.id, -1, 0))
    emit(s, r)
    if r.emitted == r.output_tokens:
        call_back(s, r)
        return end_with_prompt(s, i, r)
    i.leaving.append(r)
    d = i
    at_split = r.is_at_split
    if at_split and not r.sent_ahead:
        r.split = 0
    if r.sent_ahead:
        assert r.destination is not None
        d = r.destination
        if not s.fits(d, r):
            return turn_away(s, i, r, FAILED, "kv")
        r.sent_ahead = False  # From here on it is a transfer like any other.
        return True
    if at_split or (not stays and asks_where_to_decode(s, i)):
        if s.unserved & DECODE:
            return lose_kv(s, i, r)
        answer = ask_route_decode(s, r)
        if isinstance(answer, str):
            return turn_away(s, i, r, REJECTED, answer)
        d = answer
        if not s.fits(d, r):
            return turn_away(s, i, r, FAILED, "kv")
    if d is i:
        i.leaving.remove(r)
        join(s, i, r)
    else:
        r.source, r.destination = i, d
        d.incoming.append(r)
        start_transfers(s, d)
    return d is not i


def may_leave_before_token(s: Simulation, i: Instance, r: Request) -> bool:
    """Whether r, whose prompt is computed on i, may leave before it emits token 1."""
    first = s.options.first_token == "recomputed" and r.emitted == 0 and not s.recomputes_here(r)
    return first and asks_where_to_decode(s, i)


def complete_before_token(s: Simulation, i: Instance, r: Request, join: Join) -> bool:
    """Complete a first prefill: emit and stay, or leave before token 1. True: a seat was freed."""
    note_prefill_end(s, r)
    i.leaving.append(r)
    if r.sent_ahead:
        d = r.destination
        assert d is not None
        if s.fits(d, r):
            r.sent_ahead = False  # From here on it is a transfer like any other.
            return True
        return turn_away(s, i, r, FAILED, "kv")
    d, at_split = i, r.output_tokens > 1 and r.input_tokens < r.split <= r.input_tokens + 1
    if at_split:
        r.split = 0
    r.first_token_recomputed = True
    if at_split or may_leave_before_token(s, i, r):
        if s.unserved & DECODE:
            return lose_kv(s, i, r)
        answer = ask_route_decode(s, r)
        if isinstance(answer, str):
            return turn_away(s, i, r, REJECTED, answer)
        d = answer
    if d is not i:
        if not s.fits(d, r):
            return turn_away(s, i, r, FAILED, "kv")
        r.source, r.destination = i, d
        d.incoming.append(r)
        start_transfers(s, d)
        return True
    r.first_token_recomputed = False
    i.leaving.remove(r)
    emit(s, r)
    if r.emitted == r.output_tokens:
        return end_with_prompt(s, i, r)
    join(s, i, r)
    return False


def decode_elsewhere(s: Simulation, i: Instance, r: Request) -> None:
    """Send r, held on i, which has emitted all tokens before its split, on."""
    r.split = 0
    if s.unserved & DECODE:
        lose_kv(s, i, r)
        return
    d = ask_route_decode(s, r)
    if isinstance(d, str):
        turn_away(s, i, r, REJECTED, d)
        return
    if d is i:
        i.leaving.remove(r)
        start_decoding(s, i, r)
    else:
        hand_over(s, i, r, d)


def prefill_elsewhere(s: Simulation, i: Instance, r: Request) -> bool:
    """Send r, whose tokens before the split in its prompt are prefilled, on. True: its seat or its KV was freed."""
    i.prefilled.remove(r)
    i.leaving.append(r)
    r.prefill_until, r.split = r.input_tokens, 0
    if s.unserved:
        return lose_kv(s, i, r)
    d = ask_route_prefill(s, r)
    if d is i:
        i.leaving.remove(r)
        bisect.insort(i.prefilling, r, key=lambda other: other.admission)
        return False
    return hand_over(s, i, r, d)


def end_with_prompt(s: Simulation, i: Instance, r: Request) -> bool:
    """End r, whose prefill emitted its last token. True: its KV was freed.

    It was never among the decodes of a synchronous server, so admission opens at once.
    """
    opens_after = list(i.opens_after)
    r.join_step = int(i.totals["decode_steps"])
    freed = finish_request(s, i, r)
    if not s.options.asynchronous:
        i.closed, i.opens_after = False, opens_after
    return freed


def finish_request(s: Simulation, i: Instance, r: Request) -> bool:
    """Finish r, which has emitted all its tokens on i. True: its KV was freed; else its free is deferred."""
    i.changed = True
    if s.options.asynchronous:
        i.deferred_frees.append(r)
    else:
        free_ended(s, i, r)
    cancel_migration(s, r)
    s.end_request(r, FINISHED)
    if not s.options.asynchronous:
        s.note(r, has_ended=True)
    return not s.options.asynchronous


def emit(s: Simulation, r: Request) -> None:
    """Let r emit a token now."""
    r.emitted += 1
    r.token_s.append(s.now_s)
    if r.emitted == 1:
        r.first_token_s, r.first_token_pending = s.now_s, False
        note_prefill_end(s, r)


def note_prefill_end(s: Simulation, r: Request) -> None:
    """Note that the prompt of r is computed; only the first such time counts."""
    if math.isnan(r.prefill_end_s):
        r.prefill_end_s = s.now_s
