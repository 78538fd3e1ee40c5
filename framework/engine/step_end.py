"""The end of a step: tokens are emitted, requests finish or move on.

Requests that are cut in two at a token: at its cut a request is routed again and goes on where it is sent.

A cut within the prompt hands over what is prefilled, and the rest is prefilled behind it; one in the output hands over
a decoding request. None of this is inlined though it is handed the policy's hooks: only a cut pays for that.
"""

from __future__ import annotations

from framework.codes import DECODE, FAILED, HELD, PREFILLING, REASON_KV, REJECTED, ROUTE_DECODE, ROUTE_PREFILL, TAIL
from framework.compiler.decorators import inlined, kernel, unlikely
from framework.engine.ask import choose
from framework.engine.hooks import REFUSED, Hooks
from framework.engine.kv_cache import fits, register_prefix, release
from framework.engine.leap import catch_up_one, complete
from framework.engine.mechanisms.data_parallel import count_prefill
from framework.engine.mechanisms.prefix_tiers import keep_prefix
from framework.engine.mechanisms.sm_sharing import complete_prefills
from framework.engine.mechanisms.speculation import emit_accepted
from framework.engine.requests import end, end_with_kv, finish_decodes, start_decoding
from framework.engine.scheduler import begin
from framework.engine.state import State
from framework.engine.transfers import call_back, join, poke, send, start_transfers


@inlined
def end_step(s: State, h: Hooks, i: int) -> None:
    """i's leap has ended: tokens are emitted, requests finish or move on, the next iteration begins."""
    inst = s.instances[i]
    prefilled = s.progress[i].prefill_tokens > 0
    complete(s, i)
    inst.released = False
    if unlikely(s.sim[0].speculates):
        emit_accepted(s, i)
    if prefilled:
        inst.marked = True
        _add_chunks(s, i)
    if s.progress[i].decodes > 0 and inst.decode_steps >= s.progress[i].next_finish:
        inst.marked = True
        finish_decodes(s, i)
        if unlikely(inst.cut_head >= 0):
            decode_elsewhere(s, h, i)
    if prefilled:
        _complete_prefills(s, h, i, False)
    if inst.released:
        start_transfers(s, i)
    begin(s, h, i)


@kernel
def end_prefills(s: State, h: Hooks, i: int) -> None:
    """The prefill step beside i's decodes has ended: i begins anew, of those that are woken now the first."""
    inst = s.instances[i]
    complete_prefills(s, i)
    poke(s, i)
    catch_up_one(s, i)
    inst.released = False
    _add_chunks(s, i)
    _complete_prefills(s, h, i, True)
    if inst.released:
        start_transfers(s, i)


@kernel
def _add_chunks(s: State, i: int) -> None:
    inst = s.instances[i]
    for j in range(inst.prefilling):
        chunk = s.arena[inst.chunk_at + j]
        if chunk > 0:
            r = s.arena[inst.prefilling_at + j]
            s.requests[r].done += chunk
            inst.queued_tokens -= chunk
            register_prefix(s, i, r)
            if unlikely(s.sim[0].tiers > 0):
                keep_prefix(s, i, r)


@inlined
def _complete_prefills(s: State, h: Hooks, i: int, beside: bool) -> None:
    """Requests whose prompt is done emit a token, in chunk order, and decode here or elsewhere; of those cut here the
    rest is prefilled elsewhere.

    `beside`: here decodes go on meanwhile, which they join at a boundary.
    """
    inst = s.instances[i]
    count, kept = inst.prefilling, 0
    for j in range(count):
        r = s.arena[inst.prefilling_at + j]
        leaves = s.requests[r].done == s.requests[r].target
        if leaves and unlikely(s.requests[r].cut == s.requests[r].target):
            leaves = prefill_elsewhere(s, h, i, r)
        elif leaves:
            inst.prefilling -= 1
            if unlikely(inst.ranks > 0):
                count_prefill(s, i, r, -1)
            _emit_from_prefill(s, r)
            _decode_somewhere(s, h, i, r, beside)
        if not leaves:
            s.arena[inst.prefilling_at + kept] = r
            kept += 1


@kernel
def _emit_from_prefill(s: State, r: int) -> None:
    q, sim = s.requests[r], s.sim[0]
    if q.emitted == 0:
        q.prefill_end_s = sim.now_s
        q.first_token_s = sim.now_s
    else:
        row = s.memberships[sim.memberships]
        row.request = r
        row.instance = -1
        row.first_step = 0
        row.last_step = 0
        row.previous_token_s = sim.now_s - q.previous_token_s
        row.accepted = 0
        sim.memberships += 1
    q.previous_token_s = sim.now_s
    q.unstamped = False
    q.emitted += 1
    q.kv = q.target
    q.state = HELD  # its KV is counted by `kv` from here on


@inlined
def _decode_somewhere(s: State, h: Hooks, i: int, r: int, beside: bool) -> None:
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    sent_to = q.destination  # -1: nowhere yet
    if q.emitted == s.arena[sim.output_at + r]:
        if unlikely(sent_to >= 0):
            call_back(s, r)
        end_with_kv(s, i, r)
        return
    place = i
    if unlikely(sent_to >= 0):
        if fits(s, sent_to, r):
            return
        call_back(s, r)
        place = sent_to
    else:
        at_cut = unlikely(q.cut > 0) and q.emitted >= q.cut - q.input_tokens
        if at_cut:
            q.cut = 0
        if inst.role & DECODE == 0 or sim.asks_route_decode or at_cut:
            place = choose(s, h, ROUTE_DECODE, r)
            if unlikely(place <= REFUSED):
                release(s, i, r)
                inst.released = True
                end(s, r, REJECTED, REFUSED - place)
                return
            if place < 0:
                return
    if place == i and beside:
        join(s, i, r)
    elif place == i:
        start_decoding(s, i, r, q.kv)
    elif fits(s, place, r):
        send(s, r, place)
    else:
        release(s, i, r)
        inst.released = True
        end(s, r, FAILED, REASON_KV)


# --- requests at their cuts -------------------------------------------------------------------------------------------


@kernel
def prefill_elsewhere(s: State, h: Hooks, i: int, r: int) -> bool:
    """r has been prefilled on i up to the cut in its prompt; False if i goes on with it."""
    q, inst = s.requests[r], s.instances[i]
    inst.prefilling -= 1
    if inst.ranks > 0:
        count_prefill(s, i, r, -1)
    q.cut = 0
    q.target = q.input_tokens
    q.state = TAIL
    place = choose(s, h, ROUTE_PREFILL, r)
    if place == i:
        inst.prefilling += 1
        if inst.ranks > 0:
            count_prefill(s, i, r, 1)
        inst.queued_tokens += q.target - q.done
        q.state = PREFILLING
        return False
    if place >= 0:
        _send_or_fail(s, i, r, place)
    return True


@kernel
def decode_elsewhere(s: State, h: Hooks, i: int) -> None:
    """Requests that have decoded up to their cuts go on elsewhere, or here behind all others, in order."""
    inst = s.instances[i]
    while inst.cut_head >= 0:
        r = inst.cut_head
        inst.cut_head = s.requests[r].next
        inst.released = True  # a seat at least
        place = choose(s, h, ROUTE_DECODE, r)
        if place <= REFUSED:
            release(s, i, r)
            end(s, r, REJECTED, REFUSED - place)
            continue
        if place < 0:
            return
        if place == i:
            start_decoding(s, i, r, s.requests[r].kv)
        else:
            _send_or_fail(s, i, r, place)


@kernel
def _send_or_fail(s: State, i: int, r: int, place: int) -> None:
    if fits(s, place, r):
        send(s, r, place)
        return
    release(s, i, r)
    s.instances[i].released = True
    end(s, r, FAILED, REASON_KV)
