"""A family of random runs in which instances lose GPUs and go on with the others, with every other mechanism."""

from __future__ import annotations

from dataclasses import replace

from framework.system.cluster import PoolSpec
from framework.system.faults import Crash, FaultSchedule, Recovery
from framework.system.fewer_gpus import FewerGpus
from framework.system.model import Model, gpu_weight_bytes, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import doubled, fetching, moving, pressed, sharing, staged
from tests.helpers.crashing_family import crashes_of, slowdowns_of
from tests.helpers.crossing_family import crossing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.ending_family import ending
from tests.helpers.gateway_family import gateway
from tests.helpers.impatient_family import impatient
from tests.helpers.late_family import late
from tests.helpers.pinned_family import pinned
from tests.helpers.programs_family import programs
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import migrating, streams
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, scenarios
from tests.helpers.stale_family import stale
from tests.helpers.stateful_family import stateful
from tests.helpers.tiered_family import tiered

_BROAD = (scenarios, scenarios, pressed, sharing, staged, doubled, fetching, moving, early, crossing, pulled)
_OTHERS = (*_BROAD, drafting, ending, migrating, streams, reserving, returning, returning, ahead, decided, decided)
_SELDOM = (decided, impatient, scaling, stale, programs, gateway, pinned, tiered, late, stateful)
_LOST = {2: (1,), 4: (2, 3)}  # GPUs that instances lose: times of the others are then exact


def narrowed(draw: Draw) -> Scenario:
    """What another family draws, on instances of several GPUs each, some of which fail and are repaired."""
    return with_fewer_gpus(draw, draw.one((*_OTHERS, *_SELDOM))(draw))


def with_fewer_gpus(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, on instances of several GPUs each, some of which fail."""
    model = replace(scenario.model, heads=4, kv_heads=draw.one([1, 2, 4]))
    if model.linear is not None:
        model = replace(model, linear=replace(model.linear, key_heads=4, value_heads=draw.one([4, 8])))
    pools = tuple(_of_several(draw, pool, scenario.model, model) for pool in scenario.cluster.pools)
    cluster = replace(scenario.cluster, pools=pools)
    last_s = float(scenario.workload.arrival_s.max())
    crashes: list[Crash] = []
    for i, k in enumerate(cluster.pool_of_instance.tolist()):
        own = crashes_of(draw, range(i, i + 1), last_s) if draw.chance(0.7) else []
        lost, longer = _LOST[pools[k].parallelism.tp], draw.one([1.0, 4.0])
        for one in own:
            at_s, down_s, late_s = (longer * time_s for time_s in (one.at_s, one.down_s, one.detected_after_s))
            crashes.append(Crash(at_s, i, down_s, late_s, draw.one([0, *lost, *lost, *lost])))
    recovery: Recovery = draw.one(["recompute", "recompute", "recompute", "fail"])
    faults = FaultSchedule(
        recovery=recovery,
        crashes=crashes,
        slowdowns=[one for i in range(cluster.instances) if draw.chance(0.2) for one in slowdowns_of(draw, i, last_s)],
        fewer=FewerGpus(
            after_loss=draw.one(["wait", "go_on", "go_on", "go_on"]),
            setup_s=draw.one([0.0, draw.dyadic(0, 32, -9)]),
            load_bytes_s=2.0 ** draw.integer(18, 24),
            kv_split=draw.one(["even", "heads"]),
        ),
    )
    kv_tokens = draw.one([None, 88, 112, 160])
    engine = replace(scenario.engine, faults=faults, kv_tokens=kv_tokens)
    rules = replace(scenario.rules, reconfigure=draw.one(["", "hash"]))
    return replace(scenario, model=model, cluster=cluster, engine=engine, rules=rules)


def _of_several(draw: Draw, pool: PoolSpec, before: Model, model: Model) -> PoolSpec:
    """On two or four GPUs with memory for about as many tokens as before, or for so many on fewer of them."""
    tokens = kv_capacity_tokens(before, pool.gpu, pool.parallelism, 1.0)
    tp = draw.one([2, 4])
    split = Parallelism(tp=tp, ep=draw.one([1, 1, 2]))
    left = draw.one([tp, tp // 2, 1, 1])
    weights = gpu_weight_bytes(model, Parallelism(left))
    memory = weights + -(-tokens // (tp // left)) * model.kv_bytes_per_token * model.kv_share(left)
    return replace(pool, gpu=replace(pool.gpu, memory_bytes=memory), parallelism=split, rank_choice="even")
