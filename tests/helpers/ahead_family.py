"""A family of random runs: prefills run concurrently with decodes, and the next step of either is formed meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.setup.config import FirstToken, Preemption, Transfers
from tests.helpers.broad_families import fetching, shared, sharing
from tests.helpers.drawing import Draw
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import clocked, streams, trickling
from tests.helpers.scenarios import Scenario

_OTHERS = (shared, shared, shared, streams, streams, trickling, sharing, fetching, clocked, clocked, pulled, pulled)
_TRANSFERS: tuple[Transfers, ...] = ("sent", "pulled")
_TOLD: tuple[FirstToken, ...] = ("prefill", "join", "decode", "recomputed")
_RESERVE = OutputReserve(0.5, 0.25, decay_steps=16, steps_ahead=4, declared_tokens=20, most_tokens=20)
_PREEMPTIONS: tuple[Preemption, ...] = ("recompute", "swap")


def ahead(draw: Draw) -> Scenario:
    """What other families draw, where single tokens, few seats and little memory come free at either stream's ends."""
    scenario = draw.one(_OTHERS)(draw)
    pools = tuple(
        replace(pool, batching=draw.one([None, None, None, pool.batching])) for pool in scenario.cluster.pools
    )
    workload = scenario.workload
    if draw.chance(0.4):
        single = np.array([draw.chance(0.6) for _ in range(len(workload))])
        workload = replace(workload, output_tokens=np.where(single, 1, workload.output_tokens))
    engine = replace(
        scenario.engine,
        asynchronous=True,
        batching="concurrent",
        transfers=draw.one(_TRANSFERS),
        first_token=draw.one(_TOLD),
        preemption=draw.one(_PREEMPTIONS),
        max_batch=draw.one([2, 3, 4, 12]),
        output_reserve=_RESERVE if draw.chance(0.2) else scenario.engine.output_reserve,
    )
    return replace(scenario, workload=workload, engine=engine, cluster=replace(scenario.cluster, pools=pools))
