"""Changes of role (SEMANTICS.md: Roles)."""

from __future__ import annotations

from framework.codes import DECODE, MIXED, OFF, PREFILL, ROLE_CHANGE, ROLES
from framework.reference.asking import ask_route_prefill
from framework.reference.faults.parking import park
from framework.reference.holdings import coming
from framework.reference.pins import end_pins
from framework.reference.simulation import Simulation
from framework.reference.state import FAILED, Instance, Request


def set_role(s: Simulation, i: Instance, role: int, plan: tuple[int, str, int] | None) -> None:
    """Begin to change i's role; do nothing if that is its next role, or if a phase would lose its last instance.

    An instance that is down comes back in that role.
    """
    kept = i.draining_role & role
    lost = i.role & ~kept
    for other in s.instances:
        lost &= ~other.role if other is not i else MIXED
    if role == i.next_role or lost:
        return
    if i.down:
        i.next_role, i.next_plan = role, plan
        return
    s.role_changes += 1
    note_trend(s, i, role)
    if i.change_event is not None:
        s.withdrawn.add(i.change_event)
    if i.off_since_s is not None:
        i.off_s += s.now_s - i.off_since_s
        i.starts += 1
    i.role, i.next_role, i.next_plan, i.change_event = kept, role, plan, None
    i.off_since_s = None
    if role == OFF:
        end_pins(i)
    if not i.draining_role and not i.next_role:
        switch_off(s, i)
    s.wake(i)
    if not kept & PREFILL:
        i.take_in_arrivals()
        leaving = [entry for entry in sorted(i.waiting) if not s.recomputes_here(entry[2])]
        i.waiting = [entry for entry in i.waiting if s.recomputes_here(entry[2])]
        for entry in leaving:
            reroute(s, entry)


def note_trend(s: Simulation, i: Instance, role: int) -> None:
    """Count a reversal of i if a phase's number of instances last grew and now shrinks, or the reverse."""
    turned = False
    for phase in (PREFILL, DECODE):
        change = bool(role & phase) - bool(i.next_role & phase)
        turned |= change * s.trends[phase] < 0
        s.trends[phase] = change or s.trends[phase]
    i.reversals += turned


def may_go(s: Simulation, i: Instance) -> bool:
    """Whether each phase of i's present role has another instance, and each of its next role too."""
    now = after = OFF
    for other in s.instances:
        if other is not i:
            now, after = now | other.role, after | other.next_role
    return not i.role & ~now and not i.next_role & ~after


def scale(s: Simulation, pool: int, count: int) -> None:
    """Switch instances of a pool on or off until `count` are on, or none of those that are on may go."""
    there = [i for i in s.instances if i.spec.pool == pool]
    while sum(i.next_role != OFF for i in there) < count:
        waiting = [i for i in there if i.next_role == OFF]
        first = min(waiting, key=lambda i: (i.draining_role == OFF, i.down, i.id))
        set_role(s, first, ROLES[first.spec.role], None)
    while sum(i.next_role != OFF for i in there) > count:
        able = [i for i in there if i.next_role != OFF and may_go(s, i)]
        if not able:
            return
        set_role(s, min(able, key=lambda i: (i.draining_role != OFF, requests_on(s, i), -i.id)), OFF, None)


def requests_on(s: Simulation, i: Instance) -> int:
    """The number of requests on i, or on their way there."""
    here = i.prefilling + i.running + i.joining + i.computed + i.swapped + suspended_on(s, i)
    return len(i.waiting + i.inbox) + len(here + i.incoming + i.reserved)


def reroute(s: Simulation, entry: tuple[float, int, Request]) -> None:
    """Queue an entry, from a queue or a crashed instance, at `route_prefill`'s instance; it keeps key and number."""
    r = entry[2]
    if s.unserved:
        park(s, r)
        return
    target = ask_route_prefill(s, r)
    if not s.fits(target, r):
        s.end_request(r, FAILED, "kv")
        return
    s.queue_of_arrivals(target).append(entry)
    r.instance = target.id
    s.wake(target)


def has_drained(s: Simulation, i: Instance) -> bool:
    """Whether i has no work left of the phases that it leaves and, if it goes off, no KV."""
    leaves = i.draining_role & ~i.next_role
    unfilled = [r for _, _, r in i.waiting] + i.prefilling
    again = [r for r in unfilled if s.recomputes_here(r)]
    if leaves & PREFILL and (len(unfilled) > len(again) or i.inbox or coming(i) or i.prefill_step):
        return False
    decodes = again + i.running + i.joining + i.computed + i.incoming + i.reserved + i.swapped + suspended_on(s, i)
    return not (leaves & DECODE and decodes) and (bool(i.next_role) or i.cache.used == 0)


def suspended_on(s: Simulation, i: Instance) -> list[Request]:
    """Suspended requests that will decode on i again: with their KV, or after recomputation."""
    suspended = [r for r in s.present.values() if r.suspended and r.instance == i.id]
    return [r for r in suspended if r.swapped_out or r in i.kept or s.recomputes_here(r)]


def proceed(s: Simulation, i: Instance) -> None:
    """Let the change of i, which has drained, take effect, or set a time for it."""
    delay_s = s.options.role_change_s if i.draining_role else i.spec.start_s
    if not i.next_role & ~i.draining_role or delay_s == 0:
        take_role(s, i)
        return
    if not i.draining_role:
        if s.options.start_draws:
            longer_s, tries = s.options.start_draws[s.timed_starts % len(s.options.start_draws)]
            delay_s, s.timed_starts = max(delay_s + longer_s, 0.0) * tries, s.timed_starts + 1
        reads_s = s.now_s + i.spec.provisioning_s
        turn_s = max(reads_s, s.source_free_s)
        if i.spec.source_s:
            s.source_free_s = turn_s + i.spec.source_s
            delay_s += turn_s - reads_s
    i.change_event = s.push(s.now_s + delay_s, ROLE_CHANGE, i.id)


def take_role(s: Simulation, i: Instance) -> None:
    """Let the change under way take effect."""
    s.role_changes += 1
    i.role = i.draining_role = i.next_role
    i.change_event, i.changed = None, True
    if i.next_plan is not None:
        follow_plan(i, i.next_plan)
    if not i.next_role:
        switch_off(s, i)
        i.cache.clear()


def switch_off(s: Simulation, i: Instance) -> None:
    """Let i be off from now on."""
    i.off_since_s = s.now_s
    i.stops += 1


def follow_plan(i: Instance, plan: tuple[int, str, int]) -> None:
    """Set the token budget, the mode and, unless it is 0, the percent of the SMs for prefills."""
    i.token_budget, i.mode, percent = plan
    i.prefill_percent = percent or i.prefill_percent
