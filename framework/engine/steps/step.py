"""The start of an instance's step, once formed, and what is recorded when it ends."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.duration import step_duration
from framework.engine.durations.leap import begin_leap, end_leap, steps_until_decision
from framework.engine.durations.totals import count_steps
from framework.engine.memory.state import State
from framework.engine.parallel.sm_sharing import streaming
from framework.engine.requests.pausing import paused_kv


@inner
def start_step(s: State, i: int, decodes: int, prefill_tokens: int) -> None:
    """Start the formed step: `decodes` running requests (all unpaused ones or none) and the noted chunks.

    If nothing but decoding is going on, its leap lasts until the first decision.
    """
    inst, step = s.instances[i], s.step[i]
    if decodes == 0:
        step.depth = 0
    step.decodes = decodes
    step.prefill_tokens = prefill_tokens
    step.widest_tokens = prefill_tokens
    step.context = inst.decode_kv - paused_kv(s, i) + decodes * (1 + step.depth) + inst.guests if decodes > 0 else 0
    step.start_s = s.sim.now_s
    step.repeats = False
    step.first_s, step.increment_s, straight = step_duration(s, i, decodes, prefill_tokens)
    steps = 1
    if prefill_tokens == 0 and _may_leap(s, i):
        steps = min(steps_until_decision(s, i), straight)
    if unlikely(inst.group > 0) and step.first_s == 0.0:  # It would have ended before its group's steps are formed.
        steps = 1
    inst.swap_bytes = 0.0
    inst.counted_s = inst.counted_s if streaming(s, i) else s.sim.now_s
    inst.busy = True
    begin_leap(s, i, steps)
    if inst.first_tokens_pending > 0 and decodes > 0 and inst.group == 0:  # A group ends only once all ends are known.
        stamp_first_tokens(s, i, step.start_s + step.first_s)


@inner
def _may_leap(s: State, i: int) -> bool:
    """Whether steps of decodes alone may follow each other without an event between them."""
    inst = s.instances[i]
    if unlikely(inst.pins_yielded):
        return False
    return inst.swap_bytes == 0.0 and not inst.preempted and not s.options.speculates and not streaming(s, i)


@inner
def stamp_first_tokens(s: State, i: int, time_s: float) -> None:
    """Stamp the first token of requests that decode in i's present step and have none."""
    inst = s.instances[i]
    for j in range(inst.running - inst.paused):
        q = s.requests[s.lists[inst.running_at + j]]
        if q.first_token_pending:
            stamp_first_token(s, s.lists[inst.running_at + j], time_s)
    inst.first_tokens_pending = 0


@inner
def stamp_first_token(s: State, r: int, time_s: float) -> None:
    """Stamp token 1 of r, which was sent to its decode instance: the token reaches its client at that time."""
    q = s.requests[r]
    q.first_token_pending = False
    q.first_token_s = time_s
    q.previous_token_s = time_s


@inner
def complete_step(s: State, i: int) -> None:
    """End the leap: log it, bring the counters up to its end, and add to the totals."""
    count_steps(s, i, s.sim.now_s)
    s.instances[i].busy = False
    end_leap(s, i)
