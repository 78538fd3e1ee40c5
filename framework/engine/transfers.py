"""KV on the move from prefill to decode instances: who waits for room, what a copy costs, what its end brings."""

from __future__ import annotations

from framework.codes import HANDING_OVER, JOINING, TOKEN_AT_PREFILL, TOKEN_RECOMPUTED
from framework.compiler.decorators import inner, unlikely
from framework.engine.events import wake
from framework.engine.kv_blocks import add_kv_tokens
from framework.engine.kv_cache import free_kv
from framework.engine.leap import catch_up_one
from framework.engine.mechanisms.held_kv import wait_for_room, wait_no_more
from framework.engine.mechanisms.link_sharing import start_flow, withdraw_copy
from framework.engine.mechanisms.prefix_transfer import release, reserve_for, settle_prefix, tokens_to_copy
from framework.engine.queues import append, copy_push, load_changed
from framework.engine.state import State


@inner
def start_copy(s: State, r: int, source: int, target: int, tokens: int) -> None:
    """Send so many tokens of KV over the link."""
    _copy(s, r, source, target, tokens, s.sim.now_s)


@inner
def _copy(s: State, r: int, source: int, target: int, tokens: int, complete_s: float) -> None:
    """The same, where the last byte cannot have come before `complete_s`: over a shared link or when its turn comes."""
    q, src, dst = s.requests[r], s.instances[source], s.instances[target]
    bytes_ = tokens * s.options.copy_bytes_per_token
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
    """Claim both ends of the link, first come first served, for a copy of so many bytes; when they are free again."""
    sim, src, dst = s.sim, s.instances[source], s.instances[target]
    start_s = max(sim.now_s, max(src.egress_free_s, dst.ingress_free_s))
    end_s = start_s + bytes_ / min(src.bandwidth_bytes_s, dst.bandwidth_bytes_s)
    src.egress_free_s = end_s
    dst.ingress_free_s = end_s
    return end_s


@inner
def send(s: State, r: int, target: int) -> None:
    """Let r, its KV held where it was computed, wait for room on the target."""
    q, dst = s.requests[r], s.instances[target]
    q.destination = target
    load_changed(s, target)
    dst.queued_tokens += q.prefill_until - q.prefilled  # what a split has left of its prefill
    wait_for_room(s, target, r)
    dst.incoming += 1
    dst.incoming_kv_tokens += sent_kv(s, r)
    start_transfers(s, target)


@inner
def start_transfers(s: State, i: int) -> None:
    """Start the copies of those waiting for i that now find room, in order, or let i see to that as it schedules."""
    inst = s.instances[i]
    if inst.incoming_head < 0:
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


@inner
def sent_kv(s: State, r: int) -> int:
    """KV tokens of r, held, that come to where it goes: but for the last of a prompt whose token is emitted there."""
    q = s.requests[r]
    return int(q.kv - (q.emitted == 0 and q.kv == q.input_tokens))


@inner
def _kv_there(s: State, r: int) -> int:
    """KV tokens that r, held, has where it goes: split in its prompt, those of the whole prompt."""
    q = s.requests[r]
    return q.prefill_until if q.prefilled < q.prefill_until else sent_kv(s, r)


@inner
def room_for(s: State, r: int) -> int:
    """KV tokens that r, held, has blocks for where it goes: pulled, also that which its first step there stores."""
    q = s.requests[r]
    return q.prefill_until if q.prefilled < q.prefill_until else sent_kv(s, r) + s.options.pulls


@inner
def arrive_with_kv(s: State, r: int) -> None:
    """r's copy has ended: its KV leaves the source, r joins the destination at that one's next boundary."""
    q, sim = s.requests[r], s.sim
    source, target = q.instance, q.destination
    catch_up_one(s, source)  # what it has taken since goes before what it gets back
    free_kv(s, source, r)
    start_transfers(s, source)
    wake(s, source)
    if q.state == HANDING_OVER:
        q.migrations += 1
    elif q.transfer_end_s != q.transfer_end_s:
        q.transfer_end_s = sim.now_s
        q.unstamped = s.options.first_token != TOKEN_AT_PREFILL and q.emitted <= 1
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
    """r, on its way from one instance to another, loses its KV on both."""
    q = s.requests[r]
    target, room, sent = q.destination, room_for(s, r), sent_kv(s, r)
    withdraw_copy(s, r)
    catch_up_one(s, q.instance)
    free_kv(s, q.instance, r)
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= sent
    dst.queued_tokens -= q.prefill_until - q.prefilled
    q.destination = -1
    catch_up_one(s, target)
    release(s, target, r, room)


@inner
def join(s: State, i: int, r: int) -> None:
    """Let r, its KV on i, decode there from the next boundary on, or go on with its prefill."""
    inst = s.instances[i]
    inst.joining_head = append(s, inst.joining_head, inst.joining_tail, r)
    inst.joining_tail = r
    inst.joining += 1
    s.requests[r].state = JOINING


# --- transfers that begin while the prompt is being computed ----------------------------------------------------------


@inner
def send_ahead(s: State, r: int, target: int, computed_s: float) -> None:
    """Begin to copy r's KV, all of it computed at `computed_s`, layer by layer; not where there is no room now."""
    q, dst = s.requests[r], s.instances[target]
    catch_up_one(s, target)
    kv = _kv_ahead(s, r)
    if dst.incoming_head >= 0 or not reserve_for(s, target, r, kv, kv, 0):
        return
    q.destination = target
    dst.incoming += 1
    dst.incoming_kv_tokens += kv
    tokens = tokens_to_copy(s, r, kv)
    last_layer_bytes = tokens * s.options.copy_bytes_per_token * s.options.layer_share
    last_layer_s = last_layer_bytes / min(s.instances[q.instance].bandwidth_bytes_s, dst.bandwidth_bytes_s)
    _copy(s, r, q.instance, target, tokens, computed_s + last_layer_s)


@inner
def _kv_ahead(s: State, r: int) -> int:
    """KV tokens that r sends while they are computed: but for the last of a prompt whose token is emitted there."""
    q = s.requests[r]
    return int(q.prefill_until - (s.options.first_token == TOKEN_RECOMPUTED and q.emitted == 0))


@inner
def call_back(s: State, r: int) -> None:
    """r's prompt is computed, its KV on the way: withdraw the copy, and give back what it had reserved."""
    q = s.requests[r]
    target = q.destination
    withdraw_copy(s, r)
    q.destination = -1
    free_reservation(s, target, r, _kv_ahead(s, r))


@inner
def free_reservation(s: State, target: int, r: int, kv: int) -> None:
    """Give back the seat and the blocks of KV that will not come."""
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= kv
    catch_up_one(s, target)
    release(s, target, r, kv)
    start_transfers(s, target)
    wake(s, target)
