"""Leaps: runs of decode steps without a decision between them, in closed form.

The context grows by the batch each step and the step time is affine in it, so step j (from 0) lasts
`first_s + j * increment_s`, and its end is a sum with a closed form. A single step is a leap of length 1.
"""

from __future__ import annotations

import math

import numpy as np

from framework.codes import STEP_END
from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.kv_cache import allocate, allocate_noted
from framework.engine.memory.kv_blocks import available, note_tokens
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import set_time
from framework.engine.parallel.data_parallel import steps_of_choice


@inner
def boundary_s(s: State, i: int, steps: int) -> float:
    """End of step number `steps` (from 1) of the leap."""
    step = s.step[i]
    return step.start_s + (steps * step.first_s + step.increment_s * (steps * (steps - 1) // 2))


@inner
def steps_passed(s: State, i: int) -> int:
    """Steps of the running leap that end before the present event or with it."""
    sim, step = s.sim, s.step[i]
    elapsed_s = sim.now_s - step.start_s
    slope = 0.5 * step.increment_s
    linear = step.first_s - slope
    denominator = linear + math.sqrt(linear * linear + 4.0 * slope * elapsed_s)
    steps = step.steps
    if 2.0 * elapsed_s < steps * denominator:
        steps = int(2.0 * elapsed_s / denominator)
    # If an instance has scheduled at this time, the step that ends now has no length, and all earlier steps have ended.
    included = sim.scheduled >= 0 or sim.kind > STEP_END or i <= sim.id
    while steps < step.steps and _passed(boundary_s(s, i, steps + 1), sim.now_s, included):
        steps += 1
    while steps > 0 and not _passed(boundary_s(s, i, steps), sim.now_s, included):
        steps -= 1
    return steps


@inner
def steps_begun(s: State, i: int, passed: int) -> int:
    """Steps of the running leap that have been formed by the present event, given that `passed` steps have ended.

    The step that follows a boundary at the present time is formed when i's turn to schedule comes, after all events.
    """
    if passed > 0 and s.sim.scheduled < i and boundary_s(s, i, passed) == s.sim.now_s:
        return passed
    return int(min(passed + 1, s.step[i].steps))


@inner
def _passed(boundary: float, now_s: float, included: bool) -> bool:
    return boundary < now_s or (included and boundary == now_s)


@inner
def growth(s: State, i: int, from_step: int, steps: int) -> int:
    """New blocks that the running requests need for `steps` decode steps of i, from its step number `from_step` on."""
    inst, block = s.instances[i], s.options.block_tokens
    if inst.reserve_blocks > 0:
        return 0
    rounds = steps // block
    count = rounds * (inst.running - inst.paused)
    phase = from_step % block
    for _ in range(steps - rounds * block):
        count += s.lists[inst.growth_at + phase]
        phase += 1
        if phase == block:
            phase = 0
    return count


@inner
def boundaries_s(s: State, i: int, first: int, stride: int, count: int) -> float:
    """Sum of the ends of `count` steps of the leap: every `stride`-th, from step number `first` on."""
    step = s.step[i]
    pairs = count * (count - 1) // 2
    numbers = count * first + stride * pairs
    squares = count * first * first + 2 * first * stride * pairs + stride * stride * (pairs * (2 * count - 1) // 3)
    return count * step.start_s + (numbers * step.first_s + step.increment_s * ((squares - numbers) // 2))


@inner
def _grow(s: State, i: int, begun: int) -> None:
    """Allocate the new blocks of i's leap up to its step number `begun`, each as of the start of its step."""
    inst, step, block = s.instances[i], s.step[i], s.options.block_tokens
    count = begun - step.grown
    blocks, taken_s = 0, 0.0
    if inst.reserve_blocks == 0:
        phase = (inst.decode_steps - step.done + step.grown) % block
        if count <= block:
            blocks, taken_s = _grown_once(s, i, phase, count)
        else:
            for j in range(block):
                growing = s.lists[inst.growth_at + phase]
                if growing > 0:
                    rounds = (count - j - 1) // block + 1
                    blocks += growing * rounds
                    taken_s += growing * boundaries_s(s, i, step.grown + j, block, rounds)
                phase += 1
                if phase == block:
                    phase = 0
    allocate_noted(s, i, blocks, taken_s)
    step.grown = begun


@inner
def _grown_once(s: State, i: int, phase: int, count: int) -> tuple[int, float]:
    """The blocks that i's leap takes in its next `count` steps, at most one block's tokens, and the sum of the times at
    which it takes them. The sum uses integers and equals the sum of single `boundary_s` values.
    """
    inst, step = s.instances[i], s.step[i]
    blocks, numbers, pairs = 0, 0, 0
    for number in range(step.grown, step.grown + count):
        growing = s.lists[inst.growth_at + phase]
        blocks += growing
        numbers += growing * number
        pairs += growing * (number * (number - 1) // 2)
        phase += 1
        if phase == s.options.block_tokens:
            phase = 0
    return blocks, blocks * step.start_s + (numbers * step.first_s + step.increment_s * pairs)


@inner
def advance(s: State, i: int, steps: int, begun: int) -> None:
    """Advance i's counters to the point where `steps` steps of its leap have ended and `begun` have been formed."""
    inst, step = s.instances[i], s.step[i]
    fresh = steps - step.done
    if begun > step.grown:
        _grow(s, i, begun)
    if fresh > 0:
        added_s = step.decodes * boundaries_s(s, i, step.done + 1, 1, fresh)
        note_tokens(s, i, fresh * step.decodes, added_s)
        step.done = steps
        inst.decode_steps += fresh
        inst.decode_kv += fresh * step.decodes


@inner
def catch_up(s: State) -> None:
    """Bring every instance's record up to the present event, before a hook looks at it."""
    for k in range(s.sim.leaping):
        catch_up_one(s, s.lists[s.options.leaping_at + k])


@inner
def catch_up_one(s: State, i: int) -> None:
    """Bring i's record up to the present event."""
    inst, step = s.instances[i], s.step[i]
    if inst.busy and step.steps > 1:
        passed = steps_passed(s, i)
        advance(s, i, passed, steps_begun(s, i, passed))


@inner
def end_leap_early(s: State, i: int) -> None:
    """End i's leap at its first boundary, now or later, at which the next step is not formed yet."""
    step = s.step[i]
    if step.steps > 1:
        passed = steps_passed(s, i)
        begun = steps_begun(s, i, passed)
        if begun < step.steps:
            if begun == passed:
                advance(s, i, passed, begun)  # later looks at this time find no leap to catch up with
            step.steps = begun
            set_time(s, STEP_END, i, boundary_s(s, i, begun))
            if unlikely(s.instances[i].group > 0):
                _end_group_early(s, i, begun)


@inner
def _end_group_early(s: State, i: int, steps: int) -> None:
    """End the leaps of all instances that step together with i after the same number of steps as i's."""
    inst = s.instances[i]
    for k in range(inst.group_first, inst.group_first + inst.group):
        if s.instances[k].busy and s.step[k].steps > steps:
            catch_up_one(s, k)
            s.step[k].steps = steps
            set_time(s, STEP_END, k, boundary_s(s, k, steps))


@inner
def reserve(s: State, i: int, blocks: int) -> None:
    """Take available blocks for KV that arrives from elsewhere; a leap that counted on them ends earlier."""
    evictable = s.instances[i].evictable_blocks
    allocate(s, i, blocks)
    keep_room(s, i, evictable)


@inner
def keep_room(s: State, i: int, evictable: int) -> None:
    """End i's leap earlier if blocks that it counted on are taken; `evictable`: the evictable blocks before."""
    inst, step = s.instances[i], s.step[i]
    if inst.busy and step.steps > 1:
        ungrown = step.steps - step.grown
        is_tight = growth(s, i, inst.decode_steps - step.done + step.grown, ungrown) > _room_of_leap(s, i)
        if is_tight or (_waits_for_chunk(s, i) and inst.evictable_blocks < evictable):
            end_leap_early(s, i)


@inner
def steps_until_decision(s: State, i: int) -> int:
    """Decode-only steps of i up to the first decision: a finish, the admission of a queue, or the end of KV memory."""
    inst, step = s.instances[i], s.step[i]
    steps = step.next_finish - inst.decode_steps
    if inst.admission_opens > inst.decode_steps:
        steps = min(steps, inst.admission_opens - inst.decode_steps)
    if unlikely(inst.ranks > 0) and inst.waiting_root >= 0:
        steps = min(steps, steps_of_choice(s, i))
    room = _room_of_leap(s, i)
    if ((steps - 1) // s.options.block_tokens + 1) * step.decodes > room:
        low, high = 1, steps  # the first step has its blocks already
        while low < high:
            middle = (low + high + 1) // 2
            if growth(s, i, inst.decode_steps + 1, middle - 1) <= room:
                low = middle
            else:
                high = middle - 1
        steps = low
    return steps


@inner
def _room_of_leap(s: State, i: int) -> int:
    """Blocks that i's decodes may take before a decision is due.

    Evicting a cached block is a decision if the block may belong to the prefix of a waiting prompt. If that prompt
    waits for room for its first chunk alone, the rest of its prefix then becomes room for it. If its chunks follow a
    schedule, its first chunk may become larger.
    """
    return s.instances[i].free_blocks if unlikely(_waits_for_chunk(s, i)) else available(s, i)


@inner
def _waits_for_chunk(s: State, i: int) -> bool:
    inst = s.instances[i]
    return inst.waiting_root >= 0 and (s.options.room_for_chunk or inst.chunk_stages > 0)


@inner
def begin_leap(s: State, i: int, steps: int) -> None:
    """Begin a leap of `steps` steps with the present step of i."""
    step = s.step[i]
    steps = steps_to_mark(s, i, steps)
    step.steps = steps
    step.done = 0
    step.grown = 1
    set_time(s, STEP_END, i, boundary_s(s, i, steps))
    if steps > 1:
        step.leaping_index = s.sim.leaping
        s.lists[s.options.leaping_at + s.sim.leaping] = i
        s.sim.leaping += 1


@inner
def steps_to_mark(s: State, i: int, steps: int) -> int:
    """Limit i's leap so that its last step is the one that runs at the mark: all earlier steps are counted by then."""
    mark_s = s.sim.mark_s
    if boundary_s(s, i, steps) <= mark_s:
        return steps
    low, high = 1, steps
    while low < high:
        middle = (low + high + 1) // 2
        if boundary_s(s, i, middle) <= mark_s:
            low = middle
        else:
            high = middle - 1
    return low


@inner
def end_leap(s: State, i: int) -> None:
    """Note that i's leap is over."""
    step = s.step[i]
    set_time(s, STEP_END, i, np.inf)
    if step.leaping_index >= 0:
        s.sim.leaping -= 1
        last = s.lists[s.options.leaping_at + s.sim.leaping]
        s.lists[s.options.leaping_at + step.leaping_index] = last
        s.step[last].leaping_index = step.leaping_index
        step.leaping_index = -1
