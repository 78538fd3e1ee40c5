"""Ticks: the policy's actions, carried out in order."""

from __future__ import annotations

from framework.codes import BAD_INSTANCE, MIGRATE, PREEMPT, SET_DRAFTS, SET_MAX_BATCH, SET_ROLE, SET_TOKEN_BUDGET
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.migration import migrate
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.leap import catch_up
from framework.engine.events.ask import ask, fail
from framework.engine.events.order import wake
from framework.engine.memory.state import State
from framework.engine.roles.changes import set_role
from framework.policy.hooks import ON_TICK, RAISED


@inner
def tick(s: State, number: int) -> None:
    """Ask for the actions of a tick and carry them out."""
    s.sim.next_tick += 1
    catch_up(s)
    count = ask(s, ON_TICK, number)
    if count == RAISED:
        return
    for j in range(count):
        if unlikely(s.actions[j].kind >= PREEMPT):  # roles/decisions.py carries this out, and all actions behind it
            s.sim.first_action = j
            s.sim.actions = count
            return
        carry_out_for_instance(s, ON_TICK, j)
        if s.error.status != 0:
            return


@inner
def carry_out_for_instance(s: State, hook: int, j: int) -> None:
    """Carry out action number j of the hook's answer, which concerns an instance."""
    action = s.actions[j]
    if action.instance < 0 or action.instance >= s.options.instances:
        fail(s, BAD_INSTANCE, hook, action.request, action.instance)
    elif action.kind == MIGRATE:
        migrate(s, action.request, action.instance)
    elif action.kind == SET_TOKEN_BUDGET:
        s.instances[action.instance].token_budget = action.value
        if not s.instances[action.instance].down:
            wake(s, action.instance)
    elif action.kind == SET_MAX_BATCH:
        s.instances[action.instance].max_batch = action.value
        if not s.instances[action.instance].down:
            start_transfers(s, action.instance)
            wake(s, action.instance)
    elif action.kind == SET_DRAFTS:
        s.instances[action.instance].most_drafts = action.value
        if not s.instances[action.instance].down:
            wake(s, action.instance)
    elif action.kind == SET_ROLE:
        set_role(s, action.instance, action)
