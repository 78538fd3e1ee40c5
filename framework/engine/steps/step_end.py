"""The end of a step: tokens are emitted; requests finish, or continue here or elsewhere."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.leap import catch_up_one
from framework.engine.durations.speculation import emit_accepted
from framework.engine.durations.totals import count_fixed_depth
from framework.engine.events.order import await_turn, stores_gained, wake
from framework.engine.kv.prefix_cache import register_prefix
from framework.engine.kv.prefix_tiers import keep_prefix
from framework.engine.memory.kv_blocks import available, seats
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.parallel.sm_sharing import complete_prefill_step
from framework.engine.requests.asynchronous import note_late, note_prefill_end
from framework.engine.requests.lifecycle import finish_decodes
from framework.engine.requests.pausing import resume
from framework.engine.steps.destinations import decode_elsewhere
from framework.engine.steps.prefill_end import complete_concurrent_prefills, complete_prefills, end_in_order
from framework.engine.steps.step import complete_step


@inner
def finish_step(s: State, i: int) -> None:
    """End i's leap: emit tokens, let requests finish or move on, and let i schedule its next step."""
    inst = s.instances[i]
    prefilled = s.step[i].prefill_tokens > 0
    if inst.busy:  # Otherwise a run of single steps has counted it.
        if unlikely(s.step[i].fixed_depth):
            count_fixed_depth(s, i)
        complete_step(s, i)
        if unlikely(s.options.speculates):
            emit_accepted(s, i)
    inst.frees_memory = False
    resume(s, i)
    free_blocks, taken_seats = available(s, i), seats(s, i)
    if prefilled:
        inst.changed = True
        _add_chunks(s, i)
        if unlikely(s.options.by_admission):
            end_in_order(s, i)
    if s.step[i].decodes > 0 and inst.decode_steps >= s.step[i].next_finish:
        inst.changed = True
        finish_decodes(s, i)
        if unlikely(inst.split_head >= 0):
            decode_elsewhere(s, i)
    if prefilled:
        complete_prefills(s, i)
    if unlikely(s.options.asynchronous):
        note_late(s, i, free_blocks, taken_seats)
    if inst.frees_memory:
        start_transfers(s, i)
    inst.between = True
    await_turn(s, i)


@inner
def finish_prefill_step(s: State, i: int) -> None:
    """End the prefill step concurrent with i's decodes."""
    inst = s.instances[i]
    complete_prefill_step(s, i)
    wake(s, i)
    catch_up_one(s, i)
    inst.frees_memory = False
    _add_chunks(s, i)
    complete_concurrent_prefills(s, i)
    if unlikely(s.options.asynchronous):
        note_prefill_end(s, i)
    if inst.frees_memory:
        start_transfers(s, i)


@inner
def _add_chunks(s: State, i: int) -> None:
    inst = s.instances[i]
    for j in range(inst.prefilling):
        chunk = s.lists[inst.chunk_at + j]
        if chunk > 0:
            r = s.lists[inst.prefilling_at + j]
            s.requests[r].prefilled += chunk
            inst.queued_tokens -= chunk
            register_prefix(s, i, r, s.requests[r].prefilled)
            if unlikely(s.options.tiers > 0):
                keep_prefix(s, i, r)
    if unlikely(s.options.tiers > 0):
        stores_gained(s)
    load_changed(s, i)
