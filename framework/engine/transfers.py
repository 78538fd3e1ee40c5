"""KV on the move: transfers from prefill to decode, live migration, and who is woken when memory comes free."""

from __future__ import annotations

from framework.codes import CONCURRENT, COPIED, COPYING, DECODE, DECODING, JOINED, NOT_MIGRATING, TAIL
from framework.compiler.decorators import kernel, unlikely
from framework.engine.kv_cache import available, fits, give_back, held_blocks, hold, release
from framework.engine.leap import catch_up_one, cut_short, reserve
from framework.engine.mechanisms.sm_sharing import may_prefill
from framework.engine.queues import append, copy_push, copy_withdraw
from framework.engine.state import State


@kernel
def poke(s: State, i: int) -> None:
    """Something changed for i: idle, it begins an iteration after this event, else at its next boundary."""
    sim, inst = s.sim[0], s.instances[i]
    inst.marked = True
    if inst.busy:
        cut_short(s, i)
        if not unlikely(inst.mode == CONCURRENT) or not may_prefill(s, i):
            return
    if not inst.woken:
        inst.woken = True
        s.arena[sim.woken_at + (sim.woken_first + sim.woken) % sim.instances] = i
        sim.woken += 1


@kernel
def seats(s: State, i: int) -> int:
    """Requests that count against i's largest batch."""
    inst = s.instances[i]
    return inst.running + inst.prefilling + inst.joined + inst.reserved


@kernel
def has_room(s: State, i: int, blocks: int) -> bool:
    """Whether KV of `blocks` blocks and its request may come to i."""
    inst = s.instances[i]
    return seats(s, i) < inst.max_batch and available(s, i) - blocks >= inst.watermark


@kernel
def _claim_link(s: State, source: int, target: int, bytes_: float) -> float:
    """Claim both ends of the link, first come first served, for a copy of so many bytes; when they are free again."""
    sim, src, dst = s.sim[0], s.instances[source], s.instances[target]
    start_s = max(sim.now_s, max(src.egress_free_s, dst.ingress_free_s))
    end_s = start_s + bytes_ / min(src.bandwidth_bytes_s, dst.bandwidth_bytes_s)
    src.egress_free_s = end_s
    dst.ingress_free_s = end_s
    src.transferred_bytes += bytes_
    return end_s


@kernel
def start_copy(s: State, r: int, source: int, target: int, tokens: int) -> None:
    """Claim the link and announce the end of the copy."""
    sim = s.sim[0]
    end_s = _claim_link(s, source, target, tokens * sim.copy_bytes_per_token)
    copy_push(s, r, end_s + sim.latency_s + tokens * s.instances[target].unpack_s)


@kernel
def send(s: State, r: int, target: int) -> None:
    """Let r, its KV held where it was computed, wait for room on the target."""
    q, dst = s.requests[r], s.instances[target]
    q.destination = target
    dst.queued_tokens += q.target - q.done  # what a cut has left of its prefill
    dst.incoming_head = append(s, dst.incoming_head, dst.incoming_tail, r)
    dst.incoming_tail = r
    dst.incoming += 1
    dst.incoming_kv_tokens += q.kv
    start_transfers(s, target)


@kernel
def start_transfers(s: State, i: int) -> None:
    """Start the copies of those waiting for i that now find room, in order."""
    inst = s.instances[i]
    if inst.incoming_head < 0:
        return
    catch_up_one(s, i)
    while inst.incoming_head >= 0:
        r = inst.incoming_head
        q = s.requests[r]
        blocks = held_blocks(s, i, _kv_there(s, r))
        if not has_room(s, i, blocks):
            break
        inst.incoming_head = q.next
        inst.reserved += 1
        reserve(s, i, blocks)
        start_copy(s, r, q.instance, i, q.kv)


@kernel
def _kv_there(s: State, r: int) -> int:
    """KV tokens that r, held, has blocks for where it goes: cut in its prompt, those of the whole prompt."""
    q = s.requests[r]
    return q.target if q.done < q.target else q.kv


@kernel
def arrive_with_kv(s: State, r: int) -> None:
    """r's copy has ended: its KV leaves the source, r joins the destination at that one's next boundary."""
    q, sim = s.requests[r], s.sim[0]
    source, target = q.instance, q.destination
    catch_up_one(s, source)  # what it has taken since goes before what it gets back
    release(s, source, r)
    start_transfers(s, source)
    poke(s, source)
    if q.state == TAIL:
        q.migrations += 1
    elif q.transfer_end_s != q.transfer_end_s:
        q.transfer_end_s = sim.now_s
        q.unstamped = sim.stamp_at_decode and q.emitted == 1
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= q.kv
    q.kv = _kv_there(s, r)
    hold(s, target, q.kv, sim.now_s)
    q.instance = target
    q.destination = -1
    join(s, target, r)
    poke(s, target)


@kernel
def join(s: State, i: int, r: int) -> None:
    """Let r, its KV on i, decode there from the next boundary on, or go on with its prefill."""
    inst = s.instances[i]
    inst.joined_head = append(s, inst.joined_head, inst.joined_tail, r)
    inst.joined_tail = r
    inst.joined += 1
    s.requests[r].state = JOINED


# --- transfers that begin while the prompt is being computed ----------------------------------------------------------


@kernel
def send_ahead(s: State, r: int, target: int, computed_s: float) -> None:
    """Begin to copy r's KV, all of it computed at `computed_s`, layer by layer; not where there is no room now."""
    q, dst, sim = s.requests[r], s.instances[target], s.sim[0]
    catch_up_one(s, target)
    blocks = held_blocks(s, target, q.target)
    if dst.incoming_head >= 0 or not has_room(s, target, blocks):
        return
    q.destination = target
    dst.reserved += 1
    dst.incoming += 1
    dst.incoming_kv_tokens += q.target
    reserve(s, target, blocks)
    bytes_ = q.target * sim.copy_bytes_per_token
    last_layer_s = bytes_ * sim.layer_share / min(s.instances[q.instance].bandwidth_bytes_s, dst.bandwidth_bytes_s)
    end_s = max(_claim_link(s, q.instance, target, bytes_), computed_s + last_layer_s)
    copy_push(s, r, end_s + sim.latency_s + q.target * dst.unpack_s)


@kernel
def call_back(s: State, r: int) -> None:
    """r's prompt is computed, its KV on the way: withdraw the copy, and give back what it had reserved."""
    q = s.requests[r]
    target = q.destination
    copy_withdraw(s, r)
    q.destination = -1
    _free_reservation(s, target, q.kv)


@kernel
def _free_reservation(s: State, target: int, kv: int) -> None:
    """Give back the seat and the blocks of KV that will not come; the link time that it claimed stays claimed."""
    dst = s.instances[target]
    dst.reserved -= 1
    dst.incoming -= 1
    dst.incoming_kv_tokens -= kv
    catch_up_one(s, target)
    give_back(s, target, held_blocks(s, target, kv))
    start_transfers(s, target)
    poke(s, target)


# --- live migration ---------------------------------------------------------------------------------------------------


@kernel
def kv_now(s: State, r: int) -> int:
    """KV tokens of a decoding request."""
    return s.requests[r].offset + s.instances[s.requests[r].instance].decode_steps


@kernel
def migrate(s: State, r: int, target: int) -> None:
    """Begin to copy a decoding request elsewhere while it goes on; ignored where it cannot be done now."""
    q, dst = s.requests[r], s.instances[target]
    if q.state != DECODING or q.migration != NOT_MIGRATING or q.instance == target or dst.role & DECODE == 0:
        return
    catch_up_one(s, q.instance)
    catch_up_one(s, target)
    kv = kv_now(s, r)
    blocks = held_blocks(s, target, kv)
    if not fits(s, target, r) or not has_room(s, target, blocks):
        return
    q.migration = COPYING
    q.destination = target
    q.migrated_kv = kv
    dst.reserved += 1
    dst.incoming += 1
    dst.incoming_kv_tokens += kv
    reserve(s, target, blocks)
    start_copy(s, r, q.instance, target, kv)


@kernel
def copy_done(s: State, r: int) -> None:
    """The background copy has ended: the switch is due at the source's next boundary."""
    s.requests[r].migration = COPIED
    s.instances[s.requests[r].instance].switching = True
    poke(s, s.requests[r].instance)


@kernel
def switch_over(s: State, r: int) -> bool:
    """At a boundary of its instance: send the tail of r's KV, which stops decoding here; False if there is no room."""
    q = s.requests[r]
    target = q.destination
    dst = s.instances[target]
    catch_up_one(s, target)
    kv = kv_now(s, r)
    extra = held_blocks(s, target, kv) - held_blocks(s, target, q.migrated_kv)
    if extra > available(s, target):
        cancel_migration(s, r)
        return False
    reserve(s, target, extra)
    dst.incoming_kv_tokens += kv - q.migrated_kv
    q.migration = NOT_MIGRATING
    start_copy(s, r, q.instance, target, kv - q.migrated_kv)
    return True


@kernel
def cancel_migration(s: State, r: int) -> None:
    """Give back what r had reserved at its destination."""
    q = s.requests[r]
    target = q.destination
    if q.migration == COPYING:
        copy_withdraw(s, r)
    q.migration = NOT_MIGRATING
    q.destination = -1
    _free_reservation(s, target, q.migrated_kv)
