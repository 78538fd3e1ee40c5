"""Destinations: the instance on which a request continues after its prompt or the part before a split.

A request that is split at a token is routed again there. A split in the prompt hands over what is prefilled, and the
destination prefills the rest. A split in the output hands over a decoding request.
"""

from __future__ import annotations

from framework.codes import DECODE, FAILED, HANDING_OVER, REASON_KV, REJECTED, TOKEN_RECOMPUTED
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import send
from framework.engine.events.ask import ask_route
from framework.engine.kv.kv_cache import free_kv
from framework.engine.memory.kv_blocks import fits
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.requests.lifecycle import end_request, go_on_prefilling, start_decoding
from framework.engine.requests.parking import park
from framework.engine.requests.queueing import recomputes_here
from framework.policy.hooks import REFUSED, ROUTE_DECODE, ROUTE_PREFILL

_NOWHERE = -2  # replaces a destination: no instance decodes


@inner
def may_leave_before_token(s: State, i: int, r: int) -> bool:
    """Whether r, whose prompt is computed on i, may leave before it emits token 1."""
    if s.options.first_token != TOKEN_RECOMPUTED or s.requests[r].emitted > 0 or recomputes_here(s, r):
        return False
    return bool(s.instances[i].role & DECODE == 0 or s.options.asks_local_decode)


@inner
def destination(s: State, i: int, r: int, emitted: int) -> int:
    """The instance where r, with `emitted` tokens after its prefill, decodes: i, or an answer as of `ask_route`."""
    q = s.requests[r]
    at_split = unlikely(q.split > 0) and q.split - q.input_tokens <= emitted < s.lists[s.options.output_at + r]
    if at_split:
        q.split = 0
    elif unlikely(s.options.recomputes_there and (emitted > 1 or q.first_token_pending) and not q.rerouted):
        return i  # it decoded here before, or was about to
    if s.instances[i].role & DECODE == 0 or s.options.asks_local_decode or at_split:
        return _NOWHERE if unlikely(s.sim.unserved & DECODE) else ask_route(s, ROUTE_DECODE, r)
    return i


@inner
def decodes_at(s: State, i: int, r: int, target: int) -> bool:
    """Send r, held on i, to `target` or refuse it; whether it decodes on i."""
    if unlikely(target <= REFUSED):
        _refuse(s, i, r, REFUSED - target)
    elif unlikely(target == _NOWHERE):
        _lose_kv(s, i, r)
    elif target >= 0 and target != i:
        _send_or_fail(s, i, r, target)
    return target == i


@inner
def _lose_kv(s: State, i: int, r: int) -> None:
    """Drop r's KV on i, since no instance decodes now; r is routed anew once one does."""
    free_kv(s, i, r)
    s.instances[i].frees_memory = True
    park(s, r)


@inner
def _refuse(s: State, i: int, r: int, reason: int) -> None:
    """Turn r, held on i, away."""
    free_kv(s, i, r)
    s.instances[i].frees_memory = True
    end_request(s, r, REJECTED, reason)


@inner
def _send_or_fail(s: State, i: int, r: int, target: int) -> None:
    s.instances[i].frees_memory = True  # at least a seat came free
    if fits(s, target, r):
        send(s, r, target)
        return
    free_kv(s, i, r)
    end_request(s, r, FAILED, REASON_KV)


@inner
def prefill_elsewhere(s: State, i: int, r: int) -> None:
    """Send r, which is prefilled up to the split in its prompt and is out of i's prefilling order, elsewhere."""
    q = s.requests[r]
    q.split = 0
    q.prefill_until = q.input_tokens
    q.state = HANDING_OVER
    if unlikely(s.sim.unserved > 0):
        _lose_kv(s, i, r)
        return
    target = ask_route(s, ROUTE_PREFILL, r)
    if target == i:
        go_on_prefilling(s, i, r)
        s.instances[i].queued_tokens += q.prefill_until - q.prefilled
        load_changed(s, i)
    elif target >= 0:
        _send_or_fail(s, i, r, target)


@inner
def decode_elsewhere(s: State, i: int) -> None:
    """Move requests that have decoded up to their splits elsewhere, or here behind all others, in order."""
    inst = s.instances[i]
    while inst.split_head >= 0:
        r = inst.split_head
        inst.split_head = s.requests[r].next
        inst.frees_memory = True
        target = _NOWHERE if unlikely(s.sim.unserved & DECODE) else ask_route(s, ROUTE_DECODE, r)
        if s.error.status != 0:
            return
        if decodes_at(s, i, r, target):
            start_decoding(s, i, r, s.requests[r].kv)
