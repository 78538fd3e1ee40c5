"""The end of a prefill: a prompt, or the part of it before its split, is computed."""

from __future__ import annotations

from framework.codes import PREFILLED, TOKEN_RECOMPUTED
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import call_back
from framework.engine.memory.kv_blocks import fits
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import count_prefill
from framework.engine.requests.asynchronous import await_decodes
from framework.engine.requests.lifecycle import end_with_kv, finish_decodes_before, start_decoding
from framework.engine.steps.destinations import decodes_at, destination, may_leave_before_token, prefill_elsewhere


@inner
def complete_prefills(s: State, i: int) -> None:
    """Let requests whose prompt is computed emit a token, in chunk order, and decode here or elsewhere.

    The rest of a prompt that is split here is prefilled elsewhere.
    """
    for k in range(_take_out_computed(s, i)):
        r = s.lists[s.options.leaving_at + k]
        if _stays(s, i, r):
            start_decoding(s, i, r, s.requests[r].kv)


@inner
def complete_concurrent_prefills(s: State, i: int) -> None:
    """Complete prefills after a step concurrent with decodes; requests that stay join at a boundary."""
    for k in range(_take_out_computed(s, i)):
        r = s.lists[s.options.leaving_at + k]
        if _stays(s, i, r):
            await_decodes(s, i, r)


@inner
def end_in_order(s: State, i: int) -> None:
    """End the requests whose last token this step's chunk gave, in chunk order.

    Before each of them, end the finished decodes with earlier admissions.
    """
    for k in range(_take_out_ending(s, i)):
        r = s.lists[s.options.leaving_at + k]
        finish_decodes_before(s, i, s.requests[r].admission)
        _end_prefill(s, i, r)


@inner
def _take_out_ending(s: State, i: int) -> int:
    """Move requests whose last token this step's chunk gave to the list at `leaving_at`; return their number."""
    inst = s.instances[i]
    kept, leaving = 0, 0
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        computed = q.prefilled == q.prefill_until and q.split != q.prefill_until
        if computed and q.emitted + 1 == s.lists[s.options.output_at + r] and not may_leave_before_token(s, i, r):
            _set_aside(s, i, r, leaving)
            leaving += 1
        else:
            s.lists[inst.prefilling_at + kept] = r
            kept += 1
    inst.prefilling = kept
    return leaving


@inner
def _take_out_computed(s: State, i: int) -> int:
    """Move requests whose prompt, or part before a split, is computed to the list at `leaving_at`; their number."""
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
def _stays(s: State, i: int, r: int) -> bool:
    """Continue r, taken out of i's prefilling order; whether it decodes here."""
    if unlikely(s.requests[r].split == s.requests[r].prefill_until):
        prefill_elsewhere(s, i, r)
        return False
    return bool(_end_prefill(s, i, r))


@inner
def _end_prefill(s: State, i: int, r: int) -> bool:
    """End the prefill of r, which has left i's prefilling order; return whether it decodes here."""
    q = s.requests[r]
    q.kv = q.prefill_until
    q.state = PREFILLED  # from here on `kv` counts its KV
    if unlikely(s.options.first_token == TOKEN_RECOMPUTED) and q.emitted == 0:
        return bool(_decodes_before_token(s, i, r))
    _emit_from_prefill(s, r)
    return bool(_decodes_here(s, i, r))


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
    """Note that r's prompt is computed; only the first such time counts."""
    if s.requests[r].prefill_end_s != s.requests[r].prefill_end_s:
        s.requests[r].prefill_end_s = s.sim.now_s


@inner
def _decodes_here(s: State, i: int, r: int) -> bool:
    """Finish r, whose prompt is computed on i, or let it decode at the target of its KV or of the policy.

    Returns whether it decodes here.
    """
    q = s.requests[r]
    target = i
    if unlikely(q.destination >= 0):  # layer by layer, while its prompt was computed
        target = q.destination
        if q.emitted < s.lists[s.options.output_at + r] and fits(s, target, r):
            s.instances[i].frees_memory = True  # a seat came free
            return False
        call_back(s, r)
    if q.emitted == s.lists[s.options.output_at + r]:
        _end_with_prompt(s, i, r)
        return False
    if target == i:
        target = destination(s, i, r, q.emitted)
    return bool(decodes_at(s, i, r, target))


@inner
def _end_with_prompt(s: State, i: int, r: int) -> None:
    """End r, whose prefill emitted its last token.

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
def _decodes_before_token(s: State, i: int, r: int) -> bool:
    """Let r emit and decode here, or leave before token 1, which its destination then computes.

    Returns whether it decodes here.
    """
    q = s.requests[r]
    _note_prefill_end(s, r)
    if unlikely(q.destination >= 0):  # layer by layer, while its prompt was computed
        target = q.destination
        if fits(s, target, r):
            s.instances[i].frees_memory = True
            return False
        call_back(s, r)
    else:
        target = destination(s, i, r, 1)
    if target == i:
        _emit_from_prefill(s, r)
        if s.lists[s.options.output_at + r] == 1:
            _end_with_prompt(s, i, r)
            return False
    return bool(decodes_at(s, i, r, target))
