"""Questions to the policy: every hook is called through `ask`."""

from __future__ import annotations

import numpy as np

from framework.codes import BAD_INSTANCE, BAD_ROLE, DECODE, HOOK_RAISED, PREFILL
from framework.compiler.decorators import inner, unlikely
from framework.compiler.dispatchers import numba_config
from framework.engine.durations.leap import catch_up, catch_up_one
from framework.engine.events.agreement import require_agreement
from framework.engine.memory.queues import queue_pop, queue_push
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import least_queued
from framework.policy.hooks import BATCHING, PRIORITIZE, RAISED, REFUSED, ROUTE_DECODE, ROUTE_PREFILL, SELECT, SPLIT_AT
from framework.policy.hooks import decode_plan as _decode_plan

if numba_config.DISABLE_JIT:
    import ctypes

    _DECISION_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)

    def _call(address: int, argument: int) -> int:
        return int(_DECISION_CALLBACK(int(address))(int(argument)))

    def _call_with(address: int, argument: int, seen: int) -> int:
        raise AssertionError("there is no machine code to call")

else:
    from numba import types

    from framework.compiler.calls import caller, caller_with
    from framework.engine.memory.attach import DECISION

    _call = caller(types.int64)
    _call_with = caller_with(DECISION)

decode_plan = inner(_decode_plan)


@inner
def fail(s: State, status: int, hook: int, argument: int, value: int) -> None:
    """Stop the run because of a hook's failure; only the first failure is kept."""
    error = s.error
    if error.status == 0:
        error.status = status
        error.hook = hook
        error.argument = argument
        error.value = value


@inner
def is_asked(s: State, hook: int) -> bool:
    """Whether the policy has a hook of that number."""
    return s.hooks[hook].address != 0


@inner
def bring_up_to_date(s: State, hook: int) -> None:
    """Bring all records up to date before a hook that may look at what changes within a leap."""
    if s.hooks[hook].looks:
        catch_up(s)


@inner
def ask(s: State, hook: int, argument: int) -> int:
    """A hook's answer about a request, an instance or a tick; RAISED, with the run stopped, if the hook raised."""
    asked = s.hooks[hook]
    bring_up_to_date(s, hook)
    require_agreement(s)
    if asked.compiled:
        answer = _call_with(asked.address, argument, s.seen)
    else:
        answer = _call(asked.address, argument)
    if unlikely(answer == RAISED):
        fail(s, HOOK_RAISED, hook, argument, answer)
    return answer


@inner
def ask_route(s: State, hook: int, r: int) -> int:
    """Ask a routing hook for r's instance; -1, with the run stopped, if the answer is invalid.

    `route_decode` may also refuse; a refusal (REFUSED or less) is returned as it is.
    """
    if hook == ROUTE_PREFILL and unlikely(s.options.keeps_loads):
        i = least_queued(s)
    elif hook == ROUTE_DECODE and s.options.finds_least_kv:
        i = least_kv(s)
    else:
        i = ask(s, hook, r)
    if i == RAISED:
        return -1
    if hook == ROUTE_DECODE and i <= REFUSED:
        return i
    if i < 0 or i >= s.options.instances:
        fail(s, BAD_INSTANCE, hook, r, i)
        return -1
    phase = PREFILL if hook == ROUTE_PREFILL else DECODE
    if s.instances[i].role & phase == 0:
        fail(s, BAD_ROLE, hook, r, i)
        return -1
    return i


@inner
def least_kv(s: State) -> int:
    """The decode instance with the fewest KV tokens held or incoming, as the policy rule of that name defines it.

    KV only grows within a leap, so an instance that already had more at its last update needs no new update.
    """
    best, least = -1, 0
    for i in range(s.options.instances):
        if s.instances[i].role & DECODE and (best < 0 or _kv(s, i) < least):
            best, least = i, _kv(s, i)
    if best < 0:
        return best
    catch_up_one(s, best)
    least = _kv(s, best)
    for i in range(s.options.instances):
        if s.instances[i].role & DECODE and _kv(s, i) <= least and i != best:
            catch_up_one(s, i)
            kv = _kv(s, i)
            if kv < least or (kv == least and i < best):
                best, least = i, kv
    return best


@inner
def _kv(s: State, i: int) -> int:
    """KV tokens held on i or incoming, as of the last update of its record."""
    return s.instances[i].kv_tokens + s.instances[i].incoming_kv_tokens


@inner
def ask_split(s: State, r: int) -> None:
    """Ask at which token r, just routed, is split; a split in the output is at the first output token or later."""
    q = s.requests[r]
    split = ask(s, SPLIT_AT, r)
    if split < 0:
        fail(s, HOOK_RAISED, SPLIT_AT, r, split)
    else:
        q.split = split if split < q.input_tokens else max(split, q.input_tokens + 1)


@inner
def ask_key(s: State, r: int) -> None:
    """Ask for the key of r in the waiting queue that it is about to enter."""
    s.lists[s.options.asked_at] = r
    ask(s, PRIORITIZE, 1)


@inner
def ask_batching(s: State, i: int) -> None:
    """Ask for the plan of i's next steps and, if keys are dynamic, for new keys of its queue."""
    inst = s.instances[i]
    if is_asked(s, BATCHING):
        plan = ask(s, BATCHING, i)
        if plan <= 0:
            fail(s, HOOK_RAISED, BATCHING, i, plan)
        else:
            percent, inst.token_budget, inst.mode = decode_plan(plan)
            if percent > 0:
                inst.prefill_percent = percent
    if s.options.dynamic_keys and inst.waiting_root >= 0:
        _renew_keys(s, i)


@inner
def ask_select(s: State, i: int) -> None:
    """Ask which decodes i's next steps leave out, if i has several; before the answer, none is left out."""
    inst = s.instances[i]
    for j in range(inst.running):
        s.requests[s.lists[inst.running_at + j]].skips = False
    count = ask(s, SELECT, i) if inst.running > 1 else 0
    for j in range(count):
        s.requests[s.actions[j].request].skips = True


@inner
def _renew_keys(s: State, i: int) -> None:
    """Ask again for the keys of i's queue, in queue order, and reorder it; preempted requests stay before all others.

    The queue is complete while the policy looks at it.
    """
    at, last = s.options.asked_at, s.options.asked_at + s.options.requests - 1
    asked = preempted = 0
    while s.instances[i].waiting_root >= 0:
        r = queue_pop(s, i)
        if s.requests[r].key == -np.inf:
            s.lists[last - preempted] = r
            preempted += 1
        else:
            s.lists[at + asked] = r
            asked += 1
    _queue_listed(s, i, asked, preempted)
    if asked > 0:
        ask(s, PRIORITIZE, asked)
        s.instances[i].waiting_root = -1
        _queue_listed(s, i, asked, preempted)


@inner
def _queue_listed(s: State, i: int, asked: int, preempted: int) -> None:
    """Put the requests listed from both ends of the list at `asked_at` into i's queue."""
    at, last = s.options.asked_at, s.options.asked_at + s.options.requests - 1
    for k in range(preempted):
        queue_push(s, i, s.lists[last - k])
    for k in range(asked):
        queue_push(s, i, s.lists[at + k])
