"""Arrivals: requests go from the front end to a waiting queue, and copies reach their instance."""

from __future__ import annotations

import numpy as np

from framework.codes import (
    BAD_INSTANCE,
    COPYING,
    FETCHING,
    FINISHED,
    HOOK_RAISED,
    PREFILL,
    REASON_CONTEXT,
    REASON_KV,
    REASON_POLICY,
    REJECTED,
    UNSENT,
    WAITING,
)
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.link_sharing import end_flow
from framework.engine.copies.migration import copy_done
from framework.engine.copies.transfers import arrive_with_kv, start_copy
from framework.engine.durations.leap import catch_up_one
from framework.engine.events.ask import ask, ask_key, ask_route, ask_split, fail, is_asked
from framework.engine.events.order import stores_gained
from framework.engine.kv.prefix_cache import matched_blocks
from framework.engine.kv.prefix_tiers import keep
from framework.engine.memory.kv_blocks import fits
from framework.engine.memory.queues import copy_withdraw, turn_pop, turn_push
from framework.engine.memory.state import State
from framework.engine.requests.gate import wait_at_gateway
from framework.engine.requests.giving_up import begin_to_wait
from framework.engine.requests.lifecycle import end_request
from framework.engine.requests.notices import note_move
from framework.engine.requests.parking import park
from framework.engine.requests.programs import announce_next_beside
from framework.engine.requests.queueing import enter_queue
from framework.engine.requests.spanning import fits_together, is_to_span
from framework.policy.hooks import ADMIT, FETCH_PREFIX, PRIORITIZE, RAISED, ROUTE_PREFILL, SPLIT_AT


@inner
def arrive(s: State, r: int) -> None:
    """Take in, refuse or route r, which arrives."""
    q, sim = s.requests[r], s.sim
    if sim.turns_size > 0 and s.lists[s.options.turns_at] == r:
        turn_pop(s)
    else:
        sim.next_arrival += 1
    if not q.taken_in:
        if unlikely(s.options.overlaps):
            announce_next_beside(s, r)
        if unlikely(sim.now_s >= s.options.horizon_s):
            end_request(s, r, UNSENT, 0)
            return
        q.taken_in = True
        q.arrival_s = sim.now_s
        read_s = s.options.intake_token_s * q.input_tokens
        if unlikely(s.options.some_late):
            read_s += s.times[s.options.late_at + r]
        if s.options.intake_s + read_s > 0.0:
            sim.intake_free_s = max(sim.now_s, sim.intake_free_s) + s.options.intake_s
            turn_push(s, r, sim.intake_free_s + read_s)
            return
    if q.input_tokens + s.lists[s.options.output_at + r] > s.options.max_context:
        end_request(s, r, REJECTED, REASON_CONTEXT)
    elif not _fits_anywhere(s, r) and not (unlikely(s.options.spans) and fits_together(s, r)):
        end_request(s, r, REJECTED, REASON_KV)
    else:
        if unlikely(s.options.flows > 0):
            wait_at_gateway(s, r)
        else:
            serve(s, r)
        if unlikely(s.options.patience_s < np.inf):
            begin_to_wait(s, r)


@inner
def serve(s: State, r: int) -> None:
    """Ask whether to serve r, which some instance could, and route it; r waits while a phase has no instance."""
    if unlikely(s.sim.unserved > 0):
        park(s, r)
    elif not is_asked(s, ADMIT) or _is_admitted(s, r):
        route(s, r)


@inner
def _fits_anywhere(s: State, r: int) -> bool:
    i = 0
    while i < s.options.instances and not fits(s, i, r):
        i += 1
    return i < s.options.instances


@inner
def _is_admitted(s: State, r: int) -> bool:
    """Ask the policy whether to serve r. A refused request ends here, or its client sends it again later."""
    answer = ask(s, ADMIT, r)
    if answer == RAISED:
        return False
    if answer != 0:
        refuse(s, r, answer if s.options.admit_gives_reasons else REASON_POLICY)
    return answer == 0


@inner
def refuse(s: State, r: int, reason: int) -> None:
    """Reject r, unless its client sends it again later."""
    again_s = s.sim.now_s + s.options.backoff_s
    if unlikely(again_s < s.options.horizon_s < np.inf):
        turn_push(s, r, again_s)
    else:
        end_request(s, r, REJECTED, reason)


@inner
def route(s: State, r: int) -> None:
    """Route the admitted request r and queue it there, unless it waits for a span."""
    if unlikely(s.options.spans) and is_to_span(s, r):
        return
    route_to_one(s, r)


@inner
def route_to_one(s: State, r: int) -> None:
    """Route r, which needs no span, and queue it; with `fetch_prefix`, only after its prefix has arrived."""
    i = ask_route(s, ROUTE_PREFILL, r)
    if i < 0:
        return
    if not fits(s, i, r):
        end_request(s, r, REJECTED, REASON_KV)
        return
    if unlikely(is_asked(s, FETCH_PREFIX)) and _fetches(s, i, r):
        return
    _queue(s, i, r)


@inner
def _queue(s: State, i: int, r: int) -> None:
    """Queue r at i by the policy's key."""
    q = s.requests[r]
    if unlikely(is_asked(s, SPLIT_AT)):
        ask_split(s, r)
    q.instance = i
    q.state = WAITING
    take_place(s, r)
    enter_queue(s, i, r)


@inner
def take_place(s: State, r: int) -> None:
    """Give r, which enters a queue, the policy's key and a queue number."""
    q, sim = s.requests[r], s.sim
    q.key = 0.0
    if unlikely(s.options.dynamic_keys):
        q.key = np.inf  # The limit holds until the policy has given keys for the whole queue.
    elif is_asked(s, PRIORITIZE):
        ask_key(s, r)
    sim.queue_number += 1
    q.queue_number = sim.queue_number


# --- prefixes that another instance sends -----------------------------------------------------------------------------


@inner
def _fetches(s: State, i: int, r: int) -> bool:
    """Ask from where to copy a longer prefix of r. True: r waits for that copy, or the run stops."""
    source = ask(s, FETCH_PREFIX, r)
    if source == -1:
        return False
    if source < 0 or source >= s.options.instances:
        fail(s, HOOK_RAISED if source == RAISED else BAD_INSTANCE, FETCH_PREFIX, r, source)
        return True
    return _start_fetch(s, r, source, i)


@inner
def _start_fetch(s: State, r: int, source: int, target: int) -> bool:
    q = s.requests[r]
    catch_up_one(s, source)  # blocks that running leaps have evicted by now are not cached
    catch_up_one(s, target)
    there = matched_blocks(s, source, r, q.input_tokens)
    here = matched_blocks(s, target, r, q.input_tokens)
    if there <= here:
        return False
    q.state = FETCHING
    q.instance = target
    q.fetched_from = here
    q.fetched_to = there
    start_copy(s, r, source, target, (there - here) * s.options.hash_blocks * s.options.block_tokens)
    return True


@inner
def _end_fetch(s: State, r: int) -> None:
    """Queue r at its instance, which now has its prefix; route r anew if that instance no longer prefills."""
    i = _keep_fetched(s, r)
    if s.instances[i].role & PREFILL:
        _queue(s, i, r)
    elif unlikely(s.sim.unserved > 0):
        park(s, r)
    else:
        route(s, r)


@inner
def _keep_fetched(s: State, r: int) -> int:
    """Enter the fetched blocks into the first tier, and return the instance."""
    q = s.requests[r]
    if unlikely(s.options.writes_back):
        catch_up_one(s, q.instance)  # what its leap has evicted by now came first
    for j in range(q.fetched_to - 1, q.fetched_from - 1, -1):
        if (j + 1) % s.tiers[q.instance * s.options.tiers].chunk == 0:
            keep(s, q.instance, 0, s.names[q.hash_at + j])
    stores_gained(s)
    return q.instance


# --- copies -----------------------------------------------------------------------------------------------------------


@inner
def finish_copy(s: State, r: int) -> None:
    """Handle the end of r's copy, or of its last byte's: of a migration, a fetched prefix, its KV, or, if it has ended,
    of a move.
    """
    copy_withdraw(s, r)
    if s.requests[r].channel >= 0 and not end_flow(s, r):
        return
    if s.requests[r].migration == COPYING:
        copy_done(s, r)
    elif unlikely(s.requests[r].state == FETCHING):
        _end_fetch(s, r)
    elif unlikely(s.requests[r].state == FINISHED):
        note_move(s, r)
    else:
        arrive_with_kv(s, r)
