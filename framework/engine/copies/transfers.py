"""Transfers of KV from prefill to decode instances: the wait for room, the cost of a copy, its end."""

from __future__ import annotations

import numpy as np

from framework.codes import HANDING_OVER, JOINING, PREFILL_STEP_END, PREFILLING, TOKEN_AT_PREFILL, TOKEN_RECOMPUTED
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.link_sharing import start_flow, withdraw_copy
from framework.engine.copies.prefix_transfer import release, reserve_for, settle_prefix, tokens_to_copy
from framework.engine.durations.leap import catch_up_one
from framework.engine.events.order import wake
from framework.engine.kv.held_kv import wait_for_room, wait_no_more
from framework.engine.kv.kv_cache import free, free_kv
from framework.engine.memory.kv_blocks import add_kv_tokens, blocks_of, fits
from framework.engine.memory.queues import append, copy_push
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed, time_of


@inner
def start_copy(s: State, r: int, source: int, target: int, tokens: int) -> None:
    """Start a copy of `tokens` tokens of KV over the link."""
    _copy(s, r, source, target, tokens, s.sim.now_s)


@inner
def _copy(s: State, r: int, source: int, target: int, tokens: int, complete_s: float) -> None:
    """Start a copy whose last byte cannot arrive before `complete_s`: over a shared link, or when its turn comes."""
    q, src, dst = s.requests[r], s.instances[source], s.instances[target]
    bytes_ = tokens * s.options.copy_bytes_per_token + s.options.state_bytes
    landing_s = s.options.latency_s + tokens * dst.unpack_s
    src.transferred_bytes += bytes_
    if not s.options.shares_links:
        copy_push(s, r, max(_claim_link(s, source, target, bytes_), complete_s) + landing_s)
    elif bytes_ > 0.0:
        q.complete_s = complete_s
        q.landing_s = landing_s
        start_flow(s, r, source, target, bytes_)
    else:
        copy_push(s, r, complete_s + landing_s)


@inner
def _claim_link(s: State, source: int, target: int, bytes_: float) -> float:
    """Claim both ends of the link for a copy, first come first served; return when they are free again."""
    sim, src, dst = s.sim, s.instances[source], s.instances[target]
    start_s = max(sim.now_s, max(src.egress_free_s, dst.ingress_free_s))
    end_s = start_s + bytes_ / min(src.bandwidth_bytes_s, dst.bandwidth_bytes_s)
    src.egress_free_s = end_s
    dst.ingress_free_s = end_s
    return end_s


@inner
def send(s: State, r: int, target: int) -> None:
    """Let r wait for room on the target; its KV is held where it is computed, maybe in the present step."""
    q, dst = s.requests[r], s.instances[target]
    q.destination = target
    load_changed(s, target)
    dst.queued_tokens += left_there(s, r)
    wait_for_room(s, target, r)
    dst.incoming += 1
    dst.incoming_kv_tokens += sent_kv(s, r)
    start_transfers(s, target)


@inner
def start_transfers(s: State, i: int) -> None:
    """Start copies of requests that wait for i and now find room, in order; with pulled KV, let i schedule."""
    inst = s.instances[i]
    if inst.incoming_head < 0 or inst.hung:
        return
    if unlikely(s.options.pulls):
        wake(s, i)
        return
    catch_up_one(s, i)
    while inst.incoming_head >= 0:
        r = inst.incoming_head
        kv = sent_kv(s, r)
        if not reserve_for(s, i, r, room_for(s, r), kv, 0):
            break
        wait_no_more(s, i, -1)
        start_copy(s, r, s.requests[r].instance, i, tokens_to_copy(s, r, kv))
    if unlikely(inst.pinned_head >= 0) and inst.incoming_head >= 0 and _is_still(s, i):
        wake(s, i)


@inner
def _is_still(s: State, i: int) -> bool:
    """Whether nothing decodes or prefills on i, so that a pin there may yield."""
    inst = s.instances[i]
    return bool(inst.running + inst.prefilling == 0 and time_of(s, PREFILL_STEP_END, i) == np.inf)


@inner
def sent_kv(s: State, r: int) -> int:
    """KV tokens of the held request r that are copied to its destination.

    The last token of a prompt is left out if the destination emits token 1. A prompt still being computed counts as
    whole.
    """
    q = s.requests[r]
    if unlikely(q.state == PREFILLING):
        return int(q.prefill_until - (s.options.first_token == TOKEN_RECOMPUTED and q.emitted == 0))
    return int(q.kv - (q.emitted == 0 and q.kv == q.input_tokens))


@inner
def _kv_there(s: State, r: int) -> int:
    """KV tokens that the held request r has at its destination; those of the whole prompt if split within it."""
    q = s.requests[r]
    return q.prefill_until if q.prefilled < q.prefill_until else sent_kv(s, r)


@inner
def room_for(s: State, r: int) -> int:
    """KV tokens for which r has blocks at its destination; if pulled, with what its first step there may store."""
    if left_there(s, r) > 0:
        return s.requests[r].prefill_until
    kv = sent_kv(s, r)
    return kv_of_first_step(s, r, kv) if unlikely(s.options.pulls) else kv


@inner
def kv_of_first_step(s: State, r: int, kv: int) -> int:
    """KV tokens that r, which arrives with `kv`, holds at most during its first decode step, drafts included."""
    last = s.requests[r].input_tokens + s.lists[s.options.output_at + r] - 1
    return min(kv + 1 + s.options.depth, last)


@inner
def free_ahead(s: State, i: int, r: int) -> None:
    """Free the blocks for the KV of r's first step on i: from now on r takes blocks like any other request."""
    kv = s.requests[r].kv
    free(s, i, blocks_of(s, i, kv_of_first_step(s, r, kv)) - blocks_of(s, i, kv))


@inner
def left_there(s: State, r: int) -> int:
    """Prompt tokens that the held request r must compute at its destination: those behind its split."""
    q = s.requests[r]
    return 0 if unlikely(q.state == PREFILLING) else q.prefill_until - q.prefilled


@inner
def arrive_with_kv(s: State, r: int) -> None:
    """Free r's KV at the source, since its copy has ended; r joins the destination at that instance's next boundary."""
    q, sim = s.requests[r], s.sim
    source, target = q.instance, q.destination
    catch_up_one(s, source)  # count the blocks that its leap has taken before it gets these back
    free_kv(s, source, r)
    start_transfers(s, source)
    wake(s, source)
    if q.state == HANDING_OVER:
        q.migrations += 1
    elif q.transfer_end_s != q.transfer_end_s:
        q.transfer_end_s = sim.now_s
        q.first_token_pending = s.options.first_token != TOKEN_AT_PREFILL and q.emitted <= 1
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= sent_kv(s, r)
    q.kv = _kv_there(s, r)
    add_kv_tokens(s, target, q.kv, sim.now_s)
    q.instance = target
    q.destination = -1
    q.caches = s.options.pulls
    settle_prefix(s, target, r)
    join(s, target, r)
    wake(s, target)


@inner
def withdraw_transfer(s: State, r: int) -> None:
    """Free the KV of r, which is on its way between two instances, on both of them."""
    q = s.requests[r]
    target, room, sent = q.destination, room_for(s, r), sent_kv(s, r)
    withdraw_copy(s, r)
    catch_up_one(s, q.instance)
    free_kv(s, q.instance, r)
    s.instances[target].queued_tokens -= left_there(s, r)
    q.destination = -1
    drop_reservation(s, target, r, room, sent)


@inner
def join(s: State, i: int, r: int) -> None:
    """Let r, whose KV is on i, decode there from the next boundary on, or continue its prefill."""
    inst = s.instances[i]
    inst.joining_head = append(s, inst.joining_head, inst.joining_tail, r)
    inst.joining_tail = r
    inst.joining += 1
    s.requests[r].state = JOINING


# --- transfers that begin while the prompt is being computed ----------------------------------------------------------


@inner
def send_ahead(s: State, r: int, target: int, computed_s: float) -> None:
    """Begin to copy r's KV layer by layer if there is room now; `computed_s` is when its last layer is computed.

    An instance that pulls KV fetches it itself.
    """
    q, dst = s.requests[r], s.instances[target]
    if unlikely(s.options.pulls):
        if fits(s, target, r):
            send(s, r, target)
        return
    catch_up_one(s, target)
    kv = sent_kv(s, r)
    if dst.incoming_head >= 0 or not reserve_for(s, target, r, kv, kv, 0):
        return
    q.destination = target
    dst.incoming += 1
    dst.incoming_kv_tokens += kv
    start_copy_by_layer(s, r, target, tokens_to_copy(s, r, kv), computed_s)


@inner
def start_copy_by_layer(s: State, r: int, target: int, tokens: int, computed_s: float) -> None:
    """Start a copy of `tokens` tokens of r's KV, the last layer of which is computed at `computed_s`."""
    source, dst = s.requests[r].instance, s.instances[target]
    bytes_ = tokens * s.options.copy_bytes_per_token + s.options.state_bytes
    last_layer_bytes = bytes_ * s.options.layer_share
    last_layer_s = last_layer_bytes / min(s.instances[source].bandwidth_bytes_s, dst.bandwidth_bytes_s)
    _copy(s, r, source, target, tokens, computed_s + last_layer_s)


@inner
def call_back(s: State, r: int) -> None:
    """Call back r, whose prompt is computed but whose KV does not go to its destination after all.

    Withdraws the copy and frees its reservation, or takes r out of the incoming list.
    """
    q = s.requests[r]
    target = q.destination
    if q.heap_index < 0:  # its copy has not begun
        _drop_from_incoming(s, target, r)
        return
    withdraw_copy(s, r)
    q.destination = -1
    free_reservation(s, target, r, room_for(s, r), sent_kv(s, r))


@inner
def _drop_from_incoming(s: State, i: int, r: int) -> None:
    """Take r, which waits for room on i, out of the incoming list."""
    inst = s.instances[i]
    before, other = -1, inst.incoming_head
    while other != r:
        before, other = other, s.requests[other].next
    wait_no_more(s, i, before)
    inst.incoming -= 1
    inst.incoming_kv_tokens -= sent_kv(s, r)
    s.requests[r].destination = -1
    load_changed(s, i)
    start_transfers(s, i)
    wake(s, i)


@inner
def free_reservation(s: State, target: int, r: int, room: int, kv: int) -> None:
    """Free the seat of r and its blocks for `room` tokens, `kv` of which were on their way."""
    drop_reservation(s, target, r, room, kv)
    start_transfers(s, target)
    wake(s, target)


@inner
def drop_reservation(s: State, target: int, r: int, room: int, kv: int) -> None:
    """Do the same as `free_reservation`, but let no other request use that room yet."""
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= kv
    catch_up_one(s, target)
    release(s, target, r, room)
