"""Live migration: a decoding request is copied while it decodes, and switches instances at a boundary."""

from __future__ import annotations

from framework.codes import COPIED, COPYING, DECODE, DECODING, NOT_MIGRATING, PAUSED
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.link_sharing import withdraw_copy
from framework.engine.copies.prefix_transfer import reserve_for, tokens_to_copy
from framework.engine.copies.transfers import drop_reservation, kv_of_first_step, start_copy, start_transfers
from framework.engine.durations.leap import catch_up_one, reserve
from framework.engine.events.order import wake
from framework.engine.kv.spans import span_of
from framework.engine.memory.kv_blocks import available, blocks_of, fits
from framework.engine.memory.state import State


@inner
def kv_now(s: State, r: int) -> int:
    """KV tokens that a decoding request holds."""
    q = s.requests[r]
    if unlikely(q.state == PAUSED):
        return q.kv
    return q.offset + s.instances[q.instance].decode_steps


@inner
def migrate(s: State, r: int, target: int) -> None:
    """Begin to copy a decoding request to another instance; do nothing if it cannot be migrated now."""
    q, dst = s.requests[r], s.instances[target]
    if (
        (q.state != DECODING and q.state != PAUSED)
        or q.migration != NOT_MIGRATING
        or q.instance == target
        or dst.role & DECODE == 0
    ):
        return
    if unlikely(s.options.spans) and span_of(s, r) >= 0:
        return
    catch_up_one(s, q.instance)
    catch_up_one(s, target)
    kv = kv_now(s, r)
    if not fits(s, target, r) or not reserve_for(s, target, r, kv, kv, 0):
        return
    q.migration = COPYING
    q.destination = target
    q.migrated_kv = kv
    dst.incoming += 1
    dst.incoming_kv_tokens += kv
    start_copy(s, r, q.instance, target, tokens_to_copy(s, r, kv))


@inner
def copy_done(s: State, r: int) -> None:
    """Note that the background copy has ended: the request switches at the source's next boundary."""
    s.requests[r].migration = COPIED
    s.instances[s.requests[r].instance].switching = True
    wake(s, s.requests[r].instance)


@inner
def switch_over(s: State, r: int) -> bool:
    """Stop r's decoding at a boundary and send the tail of its KV; False if the destination has no room."""
    q = s.requests[r]
    target = q.destination
    dst = s.instances[target]
    catch_up_one(s, target)
    kv = kv_now(s, r)
    room = kv_of_first_step(s, r, kv) if unlikely(s.options.pulls) else kv
    extra = blocks_of(s, target, room) - blocks_of(s, target, q.migrated_kv)
    if extra > available(s, target):
        cancel_migration(s, r)
        return False
    reserve(s, target, extra)
    dst.incoming_kv_tokens += kv - q.migrated_kv
    q.migration = NOT_MIGRATING
    start_copy(s, r, q.instance, target, kv - q.migrated_kv)
    return True


@inner
def cancel_migration(s: State, r: int) -> None:
    """Free what r had reserved at its destination."""
    target = withdraw_migration(s, r)
    start_transfers(s, target)
    wake(s, target)


@inner
def withdraw_migration(s: State, r: int) -> int:
    """Forget the migration of r and return its destination, to which no other request comes yet."""
    q = s.requests[r]
    target = q.destination
    if q.migration == COPYING:
        withdraw_copy(s, r)
    q.migration = NOT_MIGRATING
    q.destination = -1
    drop_reservation(s, target, r, q.migrated_kv, q.migrated_kv)
    return int(target)
