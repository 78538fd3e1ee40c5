"""KV on the move from prefill to decode instances: who waits for room, what a copy costs, what its end brings."""

from __future__ import annotations

from framework.codes import HANDING_OVER, JOINING
from framework.compiler.decorators import inner
from framework.engine.events import wake
from framework.engine.kv_blocks import add_kv_tokens, blocks_of, has_room
from framework.engine.kv_cache import free, free_kv
from framework.engine.leap import catch_up_one, reserve
from framework.engine.queues import append, copy_push, copy_withdraw, load_changed
from framework.engine.state import State


@inner
def _claim_link(s: State, source: int, target: int, bytes_: float) -> float:
    """Claim both ends of the link, first come first served, for a copy of so many bytes; when they are free again."""
    sim, src, dst = s.sim, s.instances[source], s.instances[target]
    start_s = max(sim.now_s, max(src.egress_free_s, dst.ingress_free_s))
    end_s = start_s + bytes_ / min(src.bandwidth_bytes_s, dst.bandwidth_bytes_s)
    src.egress_free_s = end_s
    dst.ingress_free_s = end_s
    src.transferred_bytes += bytes_
    return end_s


@inner
def start_copy(s: State, r: int, source: int, target: int, tokens: int) -> None:
    """Claim the link and announce the end of the copy."""
    end_s = _claim_link(s, source, target, tokens * s.options.copy_bytes_per_token)
    copy_push(s, r, end_s + s.options.latency_s + tokens * s.instances[target].unpack_s)


@inner
def send(s: State, r: int, target: int) -> None:
    """Let r, its KV held where it was computed, wait for room on the target."""
    q, dst = s.requests[r], s.instances[target]
    q.destination = target
    load_changed(s, target)
    dst.queued_tokens += q.prefill_until - q.prefilled  # what a split has left of its prefill
    dst.incoming_head = append(s, dst.incoming_head, dst.incoming_tail, r)
    dst.incoming_tail = r
    dst.incoming += 1
    dst.incoming_kv_tokens += q.kv
    start_transfers(s, target)


@inner
def start_transfers(s: State, i: int) -> None:
    """Start the copies of those waiting for i that now find room, in order."""
    inst = s.instances[i]
    if inst.incoming_head < 0:
        return
    catch_up_one(s, i)
    while inst.incoming_head >= 0:
        r = inst.incoming_head
        q = s.requests[r]
        blocks = blocks_of(s, i, _kv_there(s, r))
        if not has_room(s, i, blocks):
            break
        inst.incoming_head = q.next
        inst.reserved += 1
        reserve(s, i, blocks)
        start_copy(s, r, q.instance, i, q.kv)


@inner
def _kv_there(s: State, r: int) -> int:
    """KV tokens that r, held, has blocks for where it goes: split in its prompt, those of the whole prompt."""
    q = s.requests[r]
    return q.prefill_until if q.prefilled < q.prefill_until else q.kv


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
        q.unstamped = s.options.stamp_at_decode and q.emitted == 1
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= q.kv
    q.kv = _kv_there(s, r)
    add_kv_tokens(s, target, q.kv, sim.now_s)
    q.instance = target
    q.destination = -1
    join(s, target, r)
    wake(s, target)


@inner
def withdraw_transfer(s: State, r: int) -> None:
    """r, on its way from one instance to another, loses its KV on both."""
    q = s.requests[r]
    target, kv = q.destination, _kv_there(s, r)
    copy_withdraw(s, r)
    free_kv(s, q.instance, r)
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= q.kv
    dst.queued_tokens -= q.prefill_until - q.prefilled
    q.destination = -1
    catch_up_one(s, target)
    free(s, target, blocks_of(s, target, kv))


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
    blocks = blocks_of(s, target, q.prefill_until)
    if dst.incoming_head >= 0 or not has_room(s, target, blocks):
        return
    q.destination = target
    dst.reserved += 1
    dst.incoming += 1
    dst.incoming_kv_tokens += q.prefill_until
    reserve(s, target, blocks)
    bytes_ = q.prefill_until * s.options.copy_bytes_per_token
    last_layer_s = (
        bytes_ * s.options.layer_share / min(s.instances[q.instance].bandwidth_bytes_s, dst.bandwidth_bytes_s)
    )
    end_s = max(_claim_link(s, q.instance, target, bytes_), computed_s + last_layer_s)
    copy_push(s, r, end_s + s.options.latency_s + q.prefill_until * dst.unpack_s)


@inner
def call_back(s: State, r: int) -> None:
    """r's prompt is computed, its KV on the way: withdraw the copy, and give back what it had reserved."""
    q = s.requests[r]
    target = q.destination
    copy_withdraw(s, r)
    q.destination = -1
    free_reservation(s, target, q.kv)


@inner
def free_reservation(s: State, target: int, kv: int) -> None:
    """Give back the seat and the blocks of KV that will not come; the link time that it claimed stays claimed."""
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= kv
    catch_up_one(s, target)
    free(s, target, blocks_of(s, target, kv))
    start_transfers(s, target)
    wake(s, target)
