"""The prefilling and running orders of an instance: entries, exits, and ends of requests."""

from __future__ import annotations

import numpy as np

from framework.codes import DECODING, FINISHED, HANDING_OVER, NOT_MIGRATING, PREFILLING, UNSENT
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.migration import cancel_migration
from framework.engine.events.ask import is_asked
from framework.engine.kv.spans import lend
from framework.engine.memory.queues import append, turn_push
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.parallel.data_parallel import count_decode, count_prefill
from framework.engine.requests.asynchronous import defer_free, free_now
from framework.engine.requests.notices import note_call_end, note_use
from framework.engine.requests.programs import ends_its_program, waits_for_another
from framework.policy.hooks import ON_CALL_END

NEVER = np.iinfo(np.int64).max


@inner
def _phase(s: State, offset: int) -> int:
    """The phase of decode_steps, modulo the block size, at which a request with this KV offset fills its last block."""
    block = s.options.block_tokens
    return (block - offset % block) % block


@inner
def start_prefilling(s: State, i: int, r: int) -> None:
    """Append r, part of whose prompt is computed, to i's prefilling order; it has no chunk yet."""
    inst = s.instances[i]
    s.requests[r].state = PREFILLING
    s.requests[r].caches = True
    s.lists[inst.prefilling_at + inst.prefilling] = r
    s.lists[inst.chunk_at + inst.prefilling] = 0
    inst.prefilling += 1
    if unlikely(inst.ranks > 0):
        count_prefill(s, i, r, 1)


@inner
def go_on_prefilling(s: State, i: int, r: int) -> None:
    """Put r, just taken out of i's prefilling order, back at its place, which follows admission."""
    inst = s.instances[i]
    j = inst.prefilling
    while j > 0 and s.requests[s.lists[inst.prefilling_at + j - 1]].admission > s.requests[r].admission:
        s.lists[inst.prefilling_at + j] = s.lists[inst.prefilling_at + j - 1]
        j -= 1
    s.lists[inst.prefilling_at + j] = r
    inst.prefilling += 1
    s.requests[r].state = PREFILLING
    if unlikely(inst.ranks > 0):
        count_prefill(s, i, r, 1)


@inner
def start_decoding(s: State, i: int, r: int, kv: int) -> None:
    """Append r to i's running order; its KV (`kv` tokens) is there already."""
    q, inst = s.requests[r], s.instances[i]
    q.instance = q.decode_instance = i
    q.rerouted = False
    q.skips = False
    s.lists[inst.running_at + inst.running] = r
    if unlikely(s.options.by_admission) and inst.running > 0:
        inst.disordered |= s.requests[s.lists[inst.running_at + inst.running - 1]].admission > q.admission
    take_part(s, i, inst.running, kv)
    inst.running += 1
    load_changed(s, i)
    inst.decode_kv += kv
    if unlikely(s.options.spans):
        lend(s, i, r, 1)


@inner
def take_part(s: State, i: int, j: int, kv: int) -> None:
    """Let number j of i's running order, which has `kv` KV tokens, decode from i's next step on."""
    step, inst = s.step[i], s.instances[i]
    r = s.lists[inst.running_at + j]
    q = s.requests[r]
    q.state = DECODING
    q.offset = kv - inst.decode_steps
    q.join_step = inst.decode_steps
    finish = inst.decode_steps + s.lists[s.options.output_at + r] - q.emitted
    if unlikely(q.split > 0):
        finish = min(finish, inst.decode_steps + q.split - q.input_tokens - q.emitted)
    s.lists[inst.finish_at + j] = finish
    if inst.reserve_blocks == 0:
        s.lists[inst.growth_at + _phase(s, q.offset)] += 1
    if unlikely(inst.ranks > 0):
        count_decode(s, i, r, 1)
    step.next_finish = min(step.next_finish, finish)
    if q.first_token_pending:
        inst.first_tokens_pending += 1


@inner
def stop_decoding(s: State, i: int, r: int) -> None:
    """Log at a boundary what r decoded here, and take r out of i's counts but not out of its list."""
    sit_out(s, i, r)
    s.instances[i].decode_kv -= s.requests[r].kv
    if unlikely(s.options.spans):
        lend(s, i, r, -1)


@inner
def sit_out(s: State, i: int, r: int) -> None:
    """Log at a boundary what r decoded here; r stops decoding, or pauses for i's next steps."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim
    q.kv = q.offset + inst.decode_steps
    if inst.decode_steps > q.join_step:
        row = s.token_log[sim.token_rows]
        row.request = r
        row.instance = i
        row.first_step = q.join_step
        row.last_step = inst.decode_steps
        row.previous_token_s = q.previous_token_s if q.emitted > 0 else np.nan
        emitted = q.kv + 1 - q.input_tokens
        row.accepted = emitted - q.emitted - (inst.decode_steps - q.join_step)
        sim.token_rows += 1
        q.previous_token_s = inst.last_decode_end_s
        q.emitted = emitted
    if inst.reserve_blocks == 0:
        s.lists[inst.growth_at + _phase(s, q.offset)] -= 1
    if unlikely(inst.ranks > 0):
        count_decode(s, i, r, -1)
    if q.first_token_pending:
        inst.first_tokens_pending -= 1


@inner
def remove_running(s: State, i: int, r: int) -> None:
    """Take r out of i's running order."""
    step = s.step[i]
    stop_decoding(s, i, r)
    inst = s.instances[i]
    kept = 0
    step.next_finish = NEVER
    for j in range(inst.running):
        other, finish = s.lists[inst.running_at + j], s.lists[inst.finish_at + j]
        if other != r:
            s.lists[inst.running_at + kept] = other
            s.lists[inst.finish_at + kept] = finish
            step.next_finish = min(step.next_finish, finish)
            kept += 1
    inst.running = kept
    load_changed(s, i)


@inner
def remove_prefilling(s: State, i: int, r: int) -> None:
    """Take r out of i's prefilling order; its partial prefill is lost."""
    inst = s.instances[i]
    kept = 0
    for j in range(inst.prefilling):
        other = s.lists[inst.prefilling_at + j]
        if other != r:
            s.lists[inst.prefilling_at + kept] = other
            s.lists[inst.chunk_at + kept] = s.lists[inst.chunk_at + j]
            kept += 1
    inst.prefilling = kept
    if unlikely(inst.ranks > 0):
        count_prefill(s, i, r, -1)
    inst.queued_tokens -= s.requests[r].prefill_until - s.requests[r].prefilled
    load_changed(s, i)


@inner
def finish_decodes(s: State, i: int) -> None:
    """End the running requests that have emitted their last token, in order; those at their split stop decoding."""
    for k in range(_take_out_finished(s, i)):
        r = s.lists[s.options.leaving_at + k]
        q = s.requests[r]
        if unlikely(q.split > 0) and q.emitted < s.lists[s.options.output_at + r]:
            _stop_at_split(s, i, r)
        else:
            end_with_kv(s, i, r)


@inner
def _take_out_finished(s: State, i: int) -> int:
    """Move requests that no longer decode from i's running order to the list at `leaving_at`; return their number."""
    inst, step = s.instances[i], s.step[i]
    kept, leaving = 0, 0
    step.next_finish = NEVER
    for j in range(inst.running):
        r, finish = s.lists[inst.running_at + j], s.lists[inst.finish_at + j]
        if finish <= inst.decode_steps:
            stop_decoding(s, i, r)
            s.lists[s.options.leaving_at + leaving] = r
            leaving += 1
        else:
            s.lists[inst.running_at + kept] = r
            s.lists[inst.finish_at + kept] = finish
            step.next_finish = min(step.next_finish, finish)
            kept += 1
    inst.running = kept
    load_changed(s, i)
    return leaving


@inner
def finish_decodes_before(s: State, i: int, admission: int) -> None:
    """End the running requests that have emitted all their tokens and have an admission number below `admission`."""
    inst = s.instances[i]
    j = 0
    while j < inst.running:
        r = s.lists[inst.running_at + j]
        q = s.requests[r]
        emitted = q.offset + inst.decode_steps - q.input_tokens + 1
        if q.admission < admission and emitted == s.lists[s.options.output_at + r]:
            remove_running(s, i, r)
            end_with_kv(s, i, r)
        else:
            j += 1


@inner
def _stop_at_split(s: State, i: int, r: int) -> None:
    """Stop r, which has decoded up to its split; its KV stays on i until it is routed."""
    q, inst = s.requests[r], s.instances[i]
    if q.migration != NOT_MIGRATING:
        cancel_migration(s, r)
    q.split = 0
    q.state = HANDING_OVER
    inst.split_head = append(s, inst.split_head, inst.split_tail, r)
    inst.split_tail = r


@inner
def end_with_kv(s: State, i: int, r: int) -> None:
    """End r, which has emitted its last token on i; free its KV now or, with asynchronous scheduling, deferred."""
    if s.requests[r].migration != NOT_MIGRATING:
        cancel_migration(s, r)
    if unlikely(s.options.asynchronous):
        defer_free(s, i, r)
    else:
        free_now(s, i, r)
        s.instances[i].frees_memory = True
    end_request(s, r, FINISHED, 0)
    if unlikely(is_asked(s, ON_CALL_END)) and not s.options.asynchronous:
        note_call_end(s, r)


@inner
def end_request(s: State, r: int, state: int, reason: int) -> None:
    """End r now, in that state; what waits for it alone follows, or else its client's next session."""
    q, sim = s.requests[r], s.sim
    q.state = state
    q.reason = reason
    q.end_s = sim.now_s
    sim.remaining -= 1
    if state == FINISHED:
        s.lists[s.options.finished_at + sim.finished] = r
        sim.finished += 1
    follower, ends_program = q.followed_by, q.followed_by < 0
    while follower >= 0:
        after = s.requests[follower].next
        if not unlikely(s.options.joins) or not waits_for_another(s, follower):
            turn_push(s, follower, _next_s(s, follower, state))
        follower = after
    if unlikely(s.options.overlaps):
        ends_program = ends_its_program(s, r)
    if unlikely(is_asked(s, ON_CALL_END)) and q.start_s != q.start_s:
        note_use(s, r)
    if ends_program and sim.next_session < s.options.requests:
        r = sim.next_session
        turn_push(s, r, _next_s(s, r, state))
        sim.next_session += 1
        while sim.next_session < s.options.requests and not s.requests[sim.next_session].opens:
            sim.next_session += 1


@inner
def _next_s(s: State, r: int, state: int) -> float:
    """The arrival time of r, which follows a request that has just ended in this state.

    The client of r thinks first, or its tools run. It backs off if the request was rejected or failed. It does neither
    once the load is over.
    """
    if unlikely(state == UNSENT):
        return s.sim.now_s
    away_s = 0.0 if state == FINISHED else s.options.backoff_s
    return s.sim.now_s + s.requests[r].think_s + away_s
