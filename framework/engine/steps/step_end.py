"""The end of a step: tokens are emitted, requests finish, or continue here or elsewhere.

A request that is split at a token is routed again there. A split in the prompt hands over what is prefilled; the rest
is prefilled at the destination. A split in the output hands over a decoding request.
"""

from __future__ import annotations

from framework.codes import DECODE, FAILED, HANDING_OVER, PREFILLED, REASON_KV, REJECTED, TOKEN_RECOMPUTED
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import call_back, send, start_transfers
from framework.engine.durations.leap import catch_up_one
from framework.engine.durations.speculation import emit_accepted
from framework.engine.events.ask import ask_route
from framework.engine.events.order import await_turn, stores_gained, wake
from framework.engine.kv.kv_cache import free_kv
from framework.engine.kv.prefix_cache import register_prefix
from framework.engine.kv.prefix_tiers import keep_prefix
from framework.engine.memory.kv_blocks import available, fits, seats
from framework.engine.memory.queues import load_changed
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import count_prefill
from framework.engine.parallel.sm_sharing import complete_prefill_step
from framework.engine.requests.asynchronous import await_decodes, note_late, note_prefill_end
from framework.engine.requests.lifecycle import (
    end_request,
    end_with_kv,
    finish_decodes,
    finish_decodes_before,
    go_on_prefilling,
    recomputes_here,
    start_decoding,
)
from framework.engine.requests.parking import park
from framework.engine.requests.pausing import resume
from framework.engine.steps.drafted_steps import count_fixed_depth
from framework.engine.steps.step import complete_step
from framework.policy.hooks import REFUSED, ROUTE_DECODE, ROUTE_PREFILL

_NOWHERE = -2  # instead of a destination: no instance decodes


@inner
def finish_step(s: State, i: int) -> None:
    """i's leap has ended: tokens are emitted, requests finish or move on, and i is to schedule its next step."""
    inst = s.instances[i]
    prefilled = s.step[i].prefill_tokens > 0
    if inst.busy:  # else a run of single steps has counted it
        if unlikely(s.step[i].fixed_depth):
            count_fixed_depth(s, i)
        complete_step(s, i)
        if unlikely(s.options.speculates):
            emit_accepted(s, i)
    inst.frees_memory = False
    resume(s, i)
    free_blocks, taken_seats = available(s, i), seats(s, i)
    if prefilled:
        inst.changed = True
        _add_chunks(s, i)
        if unlikely(s.options.by_admission):
            _end_in_order(s, i)
    if s.step[i].decodes > 0 and inst.decode_steps >= s.step[i].next_finish:
        inst.changed = True
        finish_decodes(s, i)
        if unlikely(inst.split_head >= 0):
            _decode_elsewhere(s, i)
    if prefilled:
        _complete_prefills(s, i, False)
    if unlikely(s.options.asynchronous):
        note_late(s, i, free_blocks, taken_seats)
    if inst.frees_memory:
        start_transfers(s, i)
    inst.between = True
    await_turn(s, i)


@inner
def finish_prefill_step(s: State, i: int) -> None:
    """The prefill step concurrent with i's decodes has ended."""
    inst = s.instances[i]
    complete_prefill_step(s, i)
    wake(s, i)
    catch_up_one(s, i)
    inst.frees_memory = False
    _add_chunks(s, i)
    _complete_prefills(s, i, True)
    if unlikely(s.options.asynchronous):
        note_prefill_end(s, i)
    if inst.frees_memory:
        start_transfers(s, i)


@inner
def _add_chunks(s: State, i: int) -> None:
    inst = s.instances[i]
    for j in range(inst.prefilling):
        chunk = s.lists[inst.chunk_at + j]
        if chunk > 0:
            r = s.lists[inst.prefilling_at + j]
            s.requests[r].prefilled += chunk
            inst.queued_tokens -= chunk
            register_prefix(s, i, r, s.requests[r].prefilled)
            if unlikely(s.options.tiers > 0):
                keep_prefix(s, i, r)
    if unlikely(s.options.tiers > 0):
        stores_gained(s)
    load_changed(s, i)


@inner
def _end_in_order(s: State, i: int) -> None:
    """End the requests whose last token this step's chunk gave, in chunk order.

    Before each of them, end the finished decodes that were admitted before it.
    """
    for k in range(_take_out_ending(s, i)):
        r = s.lists[s.options.leaving_at + k]
        finish_decodes_before(s, i, s.requests[r].admission)
        _end_prefill(s, i, r, False)


@inner
def _take_out_ending(s: State, i: int) -> int:
    """Move the requests whose last token this step's chunk gave from i's prefilling order to the list at `leaving_at`;
    how many there are.
    """
    inst = s.instances[i]
    kept, leaving = 0, 0
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        computed = q.prefilled == q.prefill_until and q.split != q.prefill_until
        if computed and q.emitted + 1 == s.lists[s.options.output_at + r] and not _may_leave_before_token(s, i, r):
            _set_aside(s, i, r, leaving)
            leaving += 1
        else:
            s.lists[inst.prefilling_at + kept] = r
            kept += 1
    inst.prefilling = kept
    return leaving


@inner
def _take_out_computed(s: State, i: int) -> int:
    """The same of all whose prompt, or the part of it before their split, is computed."""
    inst = s.instances[i]
    kept, leaving = 0, 0
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        if s.requests[r].prefilled == s.requests[r].prefill_until:
            _set_aside(s, i, r, leaving)
            leaving += 1
        else:
            s.lists[inst.prefilling_at + kept] = r
            kept += 1
    inst.prefilling = kept
    return leaving


@inner
def _set_aside(s: State, i: int, r: int, number: int) -> None:
    s.lists[s.options.leaving_at + number] = r
    if unlikely(s.instances[i].ranks > 0):
        count_prefill(s, i, r, -1)


@inner
def _end_prefill(s: State, i: int, r: int, concurrent: bool) -> None:
    """r, taken out of i's prefilling order, has all of its prompt computed."""
    q = s.requests[r]
    q.kv = q.prefill_until
    q.state = PREFILLED  # its KV is counted by `kv` from here on
    if unlikely(s.options.first_token == TOKEN_RECOMPUTED) and q.emitted == 0:
        _decode_before_token(s, i, r, concurrent)
        return
    _emit_from_prefill(s, r)
    _decode_somewhere(s, i, r, concurrent)


@inner
def _complete_prefills(s: State, i: int, concurrent: bool) -> None:
    """Let requests whose prompt is computed emit a token, in chunk order, and decode here or elsewhere.

    The rest of a prompt that is split here is prefilled elsewhere. `concurrent`: decodes run here at the same time, and
    the requests join them at a boundary.
    """
    for k in range(_take_out_computed(s, i)):
        r = s.lists[s.options.leaving_at + k]
        if unlikely(s.requests[r].split == s.requests[r].prefill_until):
            _prefill_elsewhere(s, i, r)
        else:
            _end_prefill(s, i, r, concurrent)


@inner
def _emit_from_prefill(s: State, r: int) -> None:
    q, sim = s.requests[r], s.sim
    if q.emitted == 0:
        _note_prefill_end(s, r)
        q.first_token_s = sim.now_s
    else:
        row = s.token_log[sim.token_rows]
        row.request = r
        row.instance = -1
        row.first_step = 0
        row.last_step = 0
        row.previous_token_s = sim.now_s - q.previous_token_s
        row.accepted = 0
        sim.token_rows += 1
    q.previous_token_s = sim.now_s
    q.first_token_pending = False
    q.emitted += 1


@inner
def _note_prefill_end(s: State, r: int) -> None:
    """r's prompt is computed; if not for the first time, the first counts."""
    if s.requests[r].prefill_end_s != s.requests[r].prefill_end_s:
        s.requests[r].prefill_end_s = s.sim.now_s


@inner
def _decode_somewhere(s: State, i: int, r: int, concurrent: bool) -> None:
    """r, its prompt computed on i, finishes, or decodes where its KV is already sent, or where the policy says."""
    q = s.requests[r]
    if unlikely(q.destination >= 0):  # layer by layer, while its prompt was computed
        target = q.destination
        if q.emitted < s.lists[s.options.output_at + r] and fits(s, target, r):
            s.instances[i].frees_memory = True  # a seat
            return
        call_back(s, r)
    else:
        target = i
    if q.emitted == s.lists[s.options.output_at + r]:
        _end_with_prompt(s, i, r)
        return
    if target == i:
        target = _decode_instance(s, i, r, q.emitted)
    _go_on(s, i, r, target, concurrent)


@inner
def _end_with_prompt(s: State, i: int, r: int) -> None:
    """End r, whose last token came with its prompt.

    It was never among the decodes of a synchronous server, so admission opens at once.
    """
    inst = s.instances[i]
    freed = inst.freed
    s.requests[r].join_step = inst.decode_steps
    end_with_kv(s, i, r)
    if not s.options.asynchronous:
        inst.closed = False
        inst.freed = freed


@inner
def _may_leave_before_token(s: State, i: int, r: int) -> bool:
    """Whether r, whose prompt is computed on i, may leave before it emits token 1."""
    if s.options.first_token != TOKEN_RECOMPUTED or s.requests[r].emitted > 0 or recomputes_here(s, r):
        return False
    return bool(s.instances[i].role & DECODE == 0 or s.options.asks_local_decode)


@inner
def _decode_before_token(s: State, i: int, r: int, concurrent: bool) -> None:
    """r, its prompt computed on i, emits and decodes here, or leaves before token 1, which its destination computes."""
    q = s.requests[r]
    _note_prefill_end(s, r)
    if unlikely(q.destination >= 0):  # layer by layer, while its prompt was computed
        target = q.destination
        if fits(s, target, r):
            s.instances[i].frees_memory = True
            return
        call_back(s, r)
    else:
        target = _decode_instance(s, i, r, 1)
    if target == i:
        _emit_from_prefill(s, r)
        if s.lists[s.options.output_at + r] == 1:
            _end_with_prompt(s, i, r)
            return
    _go_on(s, i, r, target, concurrent)


@inner
def _go_on(s: State, i: int, r: int, target: int, concurrent: bool) -> None:
    """r, its prompt computed on i, decodes at the target, or is refused."""
    q = s.requests[r]
    if unlikely(target <= REFUSED):
        _refuse(s, i, r, REFUSED - target)
    elif unlikely(target == _NOWHERE):
        _lose_kv(s, i, r)
    elif target < 0:
        return
    elif target == i and concurrent:
        await_decodes(s, i, r)
    elif target == i:
        start_decoding(s, i, r, q.kv)
    else:
        _send_or_fail(s, i, r, target)


@inner
def _decode_instance(s: State, i: int, r: int, emitted: int) -> int:
    """Where r, with `emitted` tokens after its prefill, decodes: here if no question is due, else as `ask_route`."""
    q = s.requests[r]
    at_split = unlikely(q.split > 0) and q.split - q.input_tokens <= emitted < s.lists[s.options.output_at + r]
    if at_split:
        q.split = 0
    elif unlikely(s.options.recomputes_there and (emitted > 1 or q.first_token_pending) and not q.rerouted):
        return i  # it decoded here before, or was to
    if s.instances[i].role & DECODE == 0 or s.options.asks_local_decode or at_split:
        return _NOWHERE if unlikely(s.sim.unserved & DECODE) else ask_route(s, ROUTE_DECODE, r)
    return i


@inner
def _lose_kv(s: State, i: int, r: int) -> None:
    """No instance decodes now: r, its KV on i, is routed anew once one does."""
    free_kv(s, i, r)
    s.instances[i].frees_memory = True
    park(s, r)


@inner
def _refuse(s: State, i: int, r: int, reason: int) -> None:
    """r is turned away after its prefill on i."""
    free_kv(s, i, r)
    s.instances[i].frees_memory = True
    end_request(s, r, REJECTED, reason)


@inner
def _send_or_fail(s: State, i: int, r: int, target: int) -> None:
    s.instances[i].frees_memory = True  # a seat at least
    if fits(s, target, r):
        send(s, r, target)
        return
    free_kv(s, i, r)
    end_request(s, r, FAILED, REASON_KV)


# --- requests at their splits -----------------------------------------------------------------------------------------


@inner
def _prefill_elsewhere(s: State, i: int, r: int) -> None:
    """r, taken out of i's prefilling order, has been prefilled up to the split in its prompt."""
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
def _decode_elsewhere(s: State, i: int) -> None:
    """Requests that have decoded up to their splits go on elsewhere, or here behind all others, in order."""
    inst = s.instances[i]
    while inst.split_head >= 0:
        r = inst.split_head
        inst.split_head = s.requests[r].next
        inst.frees_memory = True
        if unlikely(s.sim.unserved & DECODE):
            _lose_kv(s, i, r)
            continue
        target = ask_route(s, ROUTE_DECODE, r)
        if target <= REFUSED:
            _refuse(s, i, r, REFUSED - target)
        elif target < 0:
            return
        elif target == i:
            start_decoding(s, i, r, s.requests[r].kv)
        else:
            _send_or_fail(s, i, r, target)
