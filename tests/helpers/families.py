"""All families of random runs, by name. A seed means another run if their order changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import (
    crowded,
    doubled,
    fetching,
    moving,
    pressed,
    severed,
    shared,
    sharing,
    staged,
)
from tests.helpers.crashing_family import crashing
from tests.helpers.crossing_family import crossing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.ending_family import ending
from tests.helpers.gateway_family import gateway
from tests.helpers.impatient_family import impatient
from tests.helpers.late_family import late
from tests.helpers.lockstep_family import grouped
from tests.helpers.meeting_family import meeting
from tests.helpers.narrowed_family import narrowed
from tests.helpers.pinned_family import pinned
from tests.helpers.prefetched_family import prefetched
from tests.helpers.programs_family import programs
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import (
    clocked,
    many,
    migrating,
    ranked,
    rationed,
    scattered,
    streams,
    trickling,
    unequal,
)
from tests.helpers.reserve_families import reserving, seated
from tests.helpers.returning_family import returning
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, scenarios
from tests.helpers.spanning_family import spanning
from tests.helpers.stale_family import stale
from tests.helpers.stateful_family import stateful
from tests.helpers.tiered_family import tiered

Family = Callable[..., Scenario]
_BROAD = (scenarios, crowded, severed, sharing, shared, pressed, staged, doubled, fetching, moving, early)
_RARE = (clocked, ranked, migrating, streams, trickling, unequal, many, rationed, returning)
_MORE = (*_RARE, reserving, scattered, grouped, seated, pulled, ending, drafting, crossing, ahead, decided, crashing)
_LAST = (impatient, scaling, stale, programs, gateway, stateful, pinned, tiered, late, spanning, narrowed, prefetched)
_ALL = (*_MORE, *_LAST, meeting)
BROAD: Mapping[str, Family] = {family.__name__: family for family in _BROAD}
FAMILIES: Mapping[str, Family] = {**BROAD, **{family.__name__: family for family in _ALL}}
