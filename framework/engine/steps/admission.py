"""Admission: the first of an instance's queue begins its prefill if seats, KV blocks and the step's budget allow."""

from __future__ import annotations

from framework.codes import PREFILLING, UNIFIED
from framework.compiler.decorators import inner, unlikely
from framework.engine.events.ask import is_asked
from framework.engine.kv.backups import known_tokens, read_backup
from framework.engine.kv.kv_cache import allocate
from framework.engine.kv.output_reserve import close_admission, keeps_reserve
from framework.engine.kv.pins import waits_for_load
from framework.engine.kv.prefix_cache import (
    cached_among,
    enter_read,
    matched_blocks,
    read_stores,
    reference_prefix,
    unreferenced_among,
)
from framework.engine.kv.prefix_tiers import begin_count
from framework.engine.memory.kv_blocks import add_kv_tokens, available, blocks_of, seats, watermark_of
from framework.engine.memory.queues import queue_pop
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.parallel.data_parallel import count_prefill, put_on_rank
from framework.engine.requests.notices import note_use
from framework.engine.requests.queueing import recomputes_here
from framework.engine.steps.chunks import largest_chunk, note_chunk, unbroken_chunk
from framework.policy.hooks import ON_CALL_END


@inner
def admit_chunk(s: State, i: int, left: int) -> int:
    """Admit the first of i's queue for a chunk of at most `left` tokens; return its tokens, 0: not admitted."""
    if not _is_open(s, i):
        return 0
    r = s.instances[i].waiting_root
    matched = matched_blocks(s, i, r, s.requests[r].prefill_until)
    known = known_tokens(s, r, matched)
    tokens = s.requests[r].prefill_until - known
    if unlikely(s.options.unchunked):
        chunk = unbroken_chunk(s, i, tokens, left)
    else:
        chunk = min(tokens, largest_chunk(s, i, known, left))
    return _admit(s, i, matched, chunk) if chunk > 0 and _has_room(s, i, matched, chunk) else 0


@inner
def admit_prompt(s: State, i: int, left: int) -> int:
    """Admit the first of i's queue with its whole prompt of at most `left` tokens; return them, 0: not admitted."""
    if not _is_open(s, i):
        return 0
    r = s.instances[i].waiting_root
    matched = matched_blocks(s, i, r, s.requests[r].prefill_until)
    chunk = s.requests[r].prefill_until - known_tokens(s, r, matched)
    return _admit(s, i, matched, chunk) if 0 < chunk <= left and _has_room(s, i, matched, chunk) else 0


@inner
def _is_open(s: State, i: int) -> bool:
    """Whether a request waits at i and i's decodes, swapped and preempted requests leave admission open."""
    inst = s.instances[i]
    if inst.waiting_root < 0 or inst.preempted or inst.swapped > 0:
        return False
    if unlikely(inst.loading > 0) and waits_for_load(s, i, inst.waiting_root):
        return False
    if inst.running > 0 and (inst.decode_steps < inst.admission_opens or unlikely(inst.closed)):
        return False
    return bool(unlikely(s.options.reserves) or not _is_full(s, i))


@inner
def _is_full(s: State, i: int) -> bool:
    return bool(seats(s, i) + s.instances[i].late_seats >= s.instances[i].max_batch)


@inner
def _has_room(s: State, i: int, matched: int, chunk: int) -> bool:
    """Whether i has a seat and KV blocks for the first of its queue; if not, admission closes if it can."""
    inst = s.instances[i]
    r = inst.waiting_root
    if unlikely(s.options.reserves) and _is_full(s, i):
        close_admission(s, i)
        return False
    tokens = s.requests[r].prefill_until
    if unlikely(s.options.room_for_chunk) and inst.running + inst.prefilling > 0:
        tokens = _kv_tokens(s, i, matched, chunk)
    left = available(s, i) - inst.late_blocks - unreferenced_among(s, i, r, matched)
    left -= blocks_of(s, i, tokens) - cached_among(s, i, r, matched) * s.options.hash_blocks
    if left < watermark_of(s, i) or (unlikely(s.options.reserves) and not keeps_reserve(s, i, r, left)):
        close_admission(s, i)
        return False
    return True


@inner
def _kv_tokens(s: State, i: int, matched: int, chunk: int) -> int:
    """KV tokens that the first of i's queue takes at its admission; on a prefill instance, those of its prompt."""
    if s.instances[i].mode == UNIFIED:
        return int(known_tokens(s, s.instances[i].waiting_root, matched) + chunk)
    return int(s.requests[s.instances[i].waiting_root].prefill_until)


@inner
def _admit(s: State, i: int, matched: int, chunk: int) -> int:
    """Admit the first of i's queue, which has room, with a chunk of `chunk` tokens in this step."""
    inst, sim = s.instances[i], s.sim
    kv = _kv_tokens(s, i, matched, chunk)
    r = queue_pop(s, i)
    inst.closed = False
    if unlikely(inst.recompute_tokens > 0) and recomputes_here(s, r):
        inst.recompute_tokens -= s.requests[r].prefill_until
    shared = cached_among(s, i, r, matched) * s.options.hash_blocks
    reference_prefix(s, i, r, matched)
    q = s.requests[r]
    q.kv = kv
    if unlikely(s.options.tiers > 0):
        begin_count(s, r)
        read_stores(s, i, r)
    allocate(s, i, blocks_of(s, i, kv) - shared)
    if unlikely(s.options.tiers > 0):
        enter_read(s, i, r)
    sim.admissions += 1
    q.admission = sim.admissions
    q.state = PREFILLING
    q.prefilled = known_tokens(s, r, matched)
    q.caches = True
    if unlikely(s.options.faults > 0):
        read_backup(s, i, r, matched * s.options.hash_blocks * s.options.block_tokens)
    s.lists[inst.prefilling_at + inst.prefilling] = r
    note_chunk(s, i, inst.prefilling, chunk)
    inst.prefilling += 1
    if unlikely(inst.ranks > 0):
        put_on_rank(s, i, r)
        count_prefill(s, i, r, 1)
    inst.queued -= 1
    inst.queued_tokens -= q.prefilled
    load_changed(s, i)
    add_kv_tokens(s, i, kv, sim.now_s)
    if q.start_s != q.start_s:
        q.start_s = sim.now_s
        q.prefill_instance = i
        q.cached_tokens = q.prefilled
        if unlikely(is_asked(s, ON_CALL_END)):
            note_use(s, r)
    return int(chunk)
