"""The running and prefilling requests of an instance: entering, leaving, and what must be kept in step with that."""

from __future__ import annotations

import numpy as np

from framework.codes import DECODING, FAILED, FINISHED, NOT_MIGRATING, PREFILLING, TAIL
from framework.compiler.decorators import kernel, unlikely
from framework.engine.kv_cache import note_use, release
from framework.engine.mechanisms.data_parallel import count_decode, count_prefill
from framework.engine.queues import append, release_push
from framework.engine.state import State
from framework.engine.transfers import cancel_migration

NEVER = np.iinfo(np.int64).max


@kernel
def _phase(s: State, offset: int) -> int:
    """Phase of decode_steps, modulo the block size, at which a request with this KV offset fills its last block."""
    block = s.sim[0].block_tokens
    return (block - offset % block) % block


@kernel
def start_prefilling(s: State, i: int, r: int) -> None:
    """Append r, of whose prompt a part is there, to the prefilling order of i; a chunk of it is yet to be formed."""
    inst = s.instances[i]
    s.requests[r].state = PREFILLING
    s.arena[inst.prefilling_at + inst.prefilling] = r
    s.arena[inst.chunk_at + inst.prefilling] = 0
    inst.prefilling += 1
    if unlikely(inst.ranks > 0):
        count_prefill(s, i, r, 1)


@kernel
def start_decoding(s: State, i: int, r: int, kv: int) -> None:
    """Append r to the running order of i; its KV (kv tokens) is there already."""
    leap = s.progress[i]
    q, inst = s.requests[r], s.instances[i]
    q.state = DECODING
    q.instance = i
    q.decode_instance = i
    q.offset = kv - inst.decode_steps
    q.join_step = inst.decode_steps
    finish = inst.decode_steps + s.arena[s.sim[0].output_at + r] - q.emitted
    if unlikely(q.cut > 0):
        finish = min(finish, inst.decode_steps + q.cut - q.input_tokens - q.emitted)
    s.arena[inst.running_at + inst.running] = r
    s.arena[inst.finish_at + inst.running] = finish
    if inst.reserve_blocks == 0:
        s.arena[inst.growth_at + _phase(s, q.offset)] += 1
    if unlikely(inst.ranks > 0):
        count_decode(s, i, r, 1)
    inst.running += 1
    inst.decode_kv += kv
    leap.next_finish = min(leap.next_finish, finish)
    if q.unstamped:
        inst.unstamped += 1


@kernel
def stop_decoding(s: State, i: int, r: int) -> None:
    """At a boundary: write down what r decoded here and take it out of i's counts, but not out of the list."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    q.kv = q.offset + inst.decode_steps
    if inst.decode_steps > q.join_step:
        row = s.memberships[sim.memberships]
        row.request = r
        row.instance = i
        row.first_step = q.join_step
        row.last_step = inst.decode_steps
        row.previous_token_s = q.previous_token_s
        emitted = q.kv + 1 - q.input_tokens
        row.accepted = emitted - q.emitted - (inst.decode_steps - q.join_step)
        sim.memberships += 1
        q.previous_token_s = inst.last_decode_end_s
        q.emitted = emitted
    if inst.reserve_blocks == 0:
        s.arena[inst.growth_at + _phase(s, q.offset)] -= 1
    if unlikely(inst.ranks > 0):
        count_decode(s, i, r, -1)
    inst.decode_kv -= q.kv
    if q.unstamped:
        inst.unstamped -= 1


@kernel
def remove_running(s: State, i: int, r: int) -> None:
    """Take r out of i's running order."""
    leap = s.progress[i]
    stop_decoding(s, i, r)
    inst = s.instances[i]
    kept = 0
    leap.next_finish = NEVER
    for j in range(inst.running):
        other, finish = s.arena[inst.running_at + j], s.arena[inst.finish_at + j]
        if other != r:
            s.arena[inst.running_at + kept] = other
            s.arena[inst.finish_at + kept] = finish
            leap.next_finish = min(leap.next_finish, finish)
            kept += 1
    inst.running = kept


@kernel
def remove_prefilling(s: State, i: int, r: int) -> None:
    """Take r out of i's prefilling order; its partial prefill is lost."""
    inst = s.instances[i]
    kept = 0
    for j in range(inst.prefilling):
        other = s.arena[inst.prefilling_at + j]
        if other != r:
            s.arena[inst.prefilling_at + kept] = other
            s.arena[inst.chunk_at + kept] = s.arena[inst.chunk_at + j]
            kept += 1
    inst.prefilling = kept
    if unlikely(inst.ranks > 0):
        count_prefill(s, i, r, -1)
    inst.queued_tokens -= s.requests[r].target - s.requests[r].done


@kernel
def finish_decodes(s: State, i: int) -> None:
    """End the running requests that have emitted their last token, in order; those at their cuts stop decoding."""
    inst, leap = s.instances[i], s.progress[i]
    count, kept = inst.running, 0
    leap.next_finish = NEVER
    for j in range(count):
        r, finish = s.arena[inst.running_at + j], s.arena[inst.finish_at + j]
        if finish <= inst.decode_steps:
            stop_decoding(s, i, r)
            inst.running -= 1
            q = s.requests[r]
            if unlikely(q.cut > 0) and q.emitted < s.arena[s.sim[0].output_at + r]:
                _hold_at_cut(s, i, r)
            else:
                end_with_kv(s, i, r)
        else:
            s.arena[inst.running_at + kept] = r
            s.arena[inst.finish_at + kept] = finish
            leap.next_finish = min(leap.next_finish, finish)
            kept += 1


@kernel
def _hold_at_cut(s: State, i: int, r: int) -> None:
    """r has decoded up to its cut: its KV stays on i until it is known where it goes on."""
    q, inst = s.requests[r], s.instances[i]
    if q.migration != NOT_MIGRATING:
        cancel_migration(s, r)
    q.cut = 0
    q.state = TAIL
    inst.cut_head = append(s, inst.cut_head, inst.cut_tail, r)
    inst.cut_tail = r


@kernel
def end_with_kv(s: State, i: int, r: int) -> None:
    """r has emitted its last token on i."""
    if s.requests[r].migration != NOT_MIGRATING:
        cancel_migration(s, r)
    release(s, i, r)
    s.instances[i].released = True
    end(s, r, FINISHED, 0)


@kernel
def end(s: State, r: int, state: int, reason: int) -> None:
    """r ends now as finished, rejected or failed; the next turn, or else its client's next session, follows."""
    q, sim = s.requests[r], s.sim[0]
    q.state = state
    q.reason = reason
    q.end_s = sim.now_s
    sim.remaining -= 1
    if state == FINISHED:
        s.arena[sim.finished_at + sim.finished] = r
        sim.finished += 1
    if q.followed_by >= 0:
        release_push(s, q.followed_by, sim.now_s + s.requests[q.followed_by].think_s)
    elif sim.next_session < sim.requests:
        r = sim.next_session
        release_push(s, r, sim.now_s + s.requests[r].think_s)
        sim.next_session += 1
        while sim.next_session < sim.requests and not s.requests[sim.next_session].opens:
            sim.next_session += 1


@kernel
def fail_rest(s: State, reason: int) -> None:
    """Nothing can happen any more: whoever has not ended fails."""
    sim = s.sim[0]
    for r in range(sim.requests):
        q = s.requests[r]
        if q.state < FINISHED:
            q.state = FAILED
            q.reason = reason
            q.end_s = sim.now_s
            sim.remaining -= 1
    for i in range(sim.instances):  # what they hold is held up to now, as far as the integral of blocks in use goes
        inst = s.instances[i]
        note_use(s, i, inst.free_blocks + inst.evictable_blocks - inst.total_blocks, sim.now_s)
        inst.kv_token_s += inst.kv_tokens * sim.now_s


@kernel
def victim(s: State, i: int) -> int:
    """The running or prefilling request of i that was admitted last."""
    inst = s.instances[i]
    chosen, latest = -1, -1
    for j in range(inst.running):
        r = s.arena[inst.running_at + j]
        if s.requests[r].admission > latest:
            chosen, latest = r, s.requests[r].admission
    for j in range(inst.prefilling):
        r = s.arena[inst.prefilling_at + j]
        if s.requests[r].state == PREFILLING and s.requests[r].admission > latest:
            chosen, latest = r, s.requests[r].admission
    return chosen
