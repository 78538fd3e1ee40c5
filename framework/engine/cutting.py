"""Requests that are cut in two at a token: at its cut a request is routed again and goes on where it is sent.

A cut within the prompt hands over what is prefilled, and the rest is prefilled behind it; one in the output hands over
a decoding request. None of this is inlined though it is handed the policy's hooks: only a cut pays for that.
"""

from __future__ import annotations

from framework.engine.asking import choose
from framework.engine.codes import FAILED, PREFILLING, REASON_KV, REJECTED, ROUTE_DECODE, ROUTE_PREFILL, TAIL
from framework.engine.hooks import REFUSED, Hooks
from framework.engine.kvcache import fits, release
from framework.engine.lists import end, start_decoding
from framework.engine.network import send
from framework.engine.ranks import count_prefill
from framework.engine.state import State
from framework.jit import kernel


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
