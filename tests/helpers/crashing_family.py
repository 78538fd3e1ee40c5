"""A family of random runs in which instances crash and come back, or are slow, together with every other mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from framework.system.faults import Crash, FaultSchedule, LinkFault, Recovery, Slowdown
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import doubled, fetching, moving, pressed, sharing, staged
from tests.helpers.crossing_family import crossing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.ending_family import ending
from tests.helpers.lockstep_family import grouped
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import migrating, ranked
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scenarios import Scenario, scenarios

_OTHERS: tuple[Callable[[Draw], Scenario], ...] = (
    *(scenarios, scenarios, scenarios, pressed, sharing, staged, doubled, fetching, moving, early, crossing, pulled),
    *(drafting, ending, grouped, migrating, ranked, reserving, returning, returning, ahead, decided, decided, decided),
    *(grouped, grouped, grouped, decided, decided, decided, decided, decided),  # what is rare together with crashes
)
_MOST = 3  # crashes of one group of instances


def crashing(draw: Draw) -> Scenario:
    """Of another family, with instances that are down for a while, at times all of one kind at once."""
    return with_faults(draw, draw.one(_OTHERS)(draw))


def with_faults(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with instances that crash, are slow or are cut off from the network."""
    last_s = float(scenario.workload.arrival_s.max())
    crashes = [
        crash for group in scenario.cluster.groups if draw.chance(0.6) for crash in crashes_of(draw, group, last_s)
    ]
    recovery: Recovery = draw.one(["recompute", "recompute", "recompute", "fail"])
    slowdowns = [one for i in range(scenario.cluster.instances) for one in slowdowns_of(draw, i, last_s)]
    shares = scenario.cluster.link.sharing == "fair"
    links = [one for i in range(scenario.cluster.instances * shares) for one in _links_of(draw, i, last_s)]
    faults = FaultSchedule(recovery=recovery, crashes=tuple(crashes), slowdowns=slowdowns, links=links)
    rules = replace(scenario.rules, on_failure=draw.apart().one(["", "", "any"]))
    return replace(scenario, rules=rules, engine=replace(scenario.engine, faults=backed_up(draw.apart(), faults)))


def backed_up(draw: Draw, faults: FaultSchedule) -> FaultSchedule:
    """The same faults; in half of all cases KV is restored from backups, in blocks of a few tokens."""
    recovery: Recovery = "restore" if draw.chance(0.5) else faults.recovery
    bytes_s = draw.one([None, 2.0 ** draw.integer(8, 12), 2.0 ** draw.integer(12, 20)])
    return replace(faults, recovery=recovery, backup_tokens=draw.one([1, 1, 2, 3, 4, 16]), restore_bytes_s=bytes_s)


def crashes_of(draw: Draw, group: range, last_s: float) -> list[Crash]:
    """Those of instances that step together, one after the other; many at the time of another event."""
    found, time_s = [], 0.0
    for _ in range(draw.integer(1, _MOST)):
        soon_s = [draw.dyadic(0, 64, -6), last_s, draw.dyadic(0, 8, -3), draw.dyadic(0, 96, -7)]
        at_s = time_s + draw.one([*soon_s, draw.dyadic(0, 64, -4), draw.dyadic(0, 128, -3)])
        down_s = draw.dyadic(1, 40, draw.one([-7, -6, -5]))
        noticed_s = draw.one([0.0, 0.0, 0.0, draw.dyadic(1, 40, draw.one([-7, -6, -5]))])
        found.append(Crash(at_s, draw.integer(group.start, group.stop - 1), down_s, noticed_s))
        time_s = found[-1].back_s
    return found


def slowdowns_of(draw: Draw, instance: int, last_s: float) -> list[Slowdown]:
    """Those of an instance, one after the other, the next at times where the one before it ends."""
    found, time_s = [], 0.0
    while draw.chance(0.5):
        at_s = time_s + draw.one([0.0, last_s, draw.dyadic(0, 64, -6), draw.dyadic(0, 96, -7), draw.dyadic(0, 64, -4)])
        for_s = draw.dyadic(1, 64, draw.one([-7, -6, -5, -3]))
        found.append(Slowdown(at_s, instance, for_s, draw.one([1.5, 2.0, 3.0, 4.0])))
        time_s = found[-1].back_s
    return found


def _links_of(draw: Draw, instance: int, last_s: float) -> list[LinkFault]:
    """Those of an instance's network, one after the other, parted as often as not."""
    found, time_s = [], 0.0
    while draw.chance(0.3):
        at_s = time_s + draw.one([0.0, last_s, draw.dyadic(0, 64, -6), draw.dyadic(0, 96, -7), draw.dyadic(0, 64, -4)])
        for_s = draw.dyadic(1, 64, draw.one([-7, -6, -5, -3]))
        found.append(LinkFault(at_s, instance, for_s, draw.one([0.0, 0.0, 0.25, 0.5])))
        time_s = found[-1].back_s
    return found
