"""A family of random runs in which several instances compute a request together."""

from __future__ import annotations

from dataclasses import replace

from framework.engine.setup.spans import engine_for_spans
from framework.system.cluster import Batching
from framework.system.faults import Faults, FaultSchedule, Recovery
from tests.helpers.broad_families import crowded, doubled, moving, pressed, severed, sharing
from tests.helpers.crashing_family import backed_up, crashes_of, slowdowns_of
from tests.helpers.decided_family import decided
from tests.helpers.drawing import Draw
from tests.helpers.gateway_family import gateway
from tests.helpers.impatient_family import impatient
from tests.helpers.programs_family import programs
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import migrating
from tests.helpers.scenarios import Scenario, scenarios, with_split
from tests.helpers.stale_family import stale

_OTHERS = (scenarios, scenarios, crowded, severed, sharing, pressed, doubled, moving, migrating)
_SELDOM = (decided, gateway, impatient, programs, pulled, stale)
_MODES: tuple[Batching, ...] = (
    "decode_first",
    "decode_first",
    "unified",
    "prefill_first",
    "mixed",
    "chunks_first",
    "static",
)


def spanning(draw: Draw) -> Scenario:
    """What another family draws, on two to five instances that do all, without what does not go together with spans."""
    return with_spans(draw, draw.one((*_OTHERS, *_OTHERS, *2 * _SELDOM))(draw))


def with_spans(draw: Draw, scenario: Scenario) -> Scenario:
    """A run on instances that do all, without what does not go together with spans."""
    model = replace(scenario.model, linear=None)
    first = scenario.cluster.pools[0]
    pool = with_split(first, model, dp=1, pp=1)
    pool = replace(
        pool,
        role="mixed",
        instances=draw.one([2, 2, 3, 4, 4, 5]),
        on_at_start=None,
        rank_choice="even",
        reserve_tokens=None,
        batching=draw.one(_MODES),
    )
    engine = replace(
        engine_for_spans(scenario.engine),
        prefix_unit="trace",
        faults=_faults(draw, pool.instances, float(scenario.workload.arrival_s.max())),
    )
    rules = replace(
        scenario.rules,
        route_decode="",
        fetch_prefix="",
        split_at="",
        select="",
        roles=0,
        scales=0,
        refuse=False,
        batching="" if draw.chance(0.8) else scenario.rules.batching,
        route_prefill=draw.one(["turn", "hash", "queued_tokens"]),
        span=draw.one(["some", "most", "all"]),
        on_failure=draw.apart().one(["", "any"]),
    )
    return replace(scenario, model=model, cluster=replace(scenario.cluster, pools=(pool,)), engine=engine, rules=rules)


def _faults(draw: Draw, instances: int, last_s: float) -> Faults:
    """In a part of all cases instances crash, or are slow."""
    if draw.chance(0.7):
        return Faults()
    crashing = [i for i in range(instances) if draw.chance(0.4)]
    crashes = [crash for i in crashing for crash in crashes_of(draw, range(i, i + 1), last_s)]
    slowdowns = [one for i in range(instances) if draw.chance(0.3) for one in slowdowns_of(draw, i, last_s)]
    noticed, down_until_s = [], dict.fromkeys(range(instances), -1.0)
    for crash in crashes:
        if crash.at_s >= down_until_s[crash.instance]:
            noticed.append(replace(crash, detected_after_s=0.0))
            down_until_s[crash.instance] = noticed[-1].back_s
    recovery: Recovery = draw.one(["recompute", "recompute", "fail"])
    return backed_up(draw.apart(), FaultSchedule(recovery=recovery, crashes=noticed, slowdowns=slowdowns))
