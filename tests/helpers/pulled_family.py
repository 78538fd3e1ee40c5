"""A family of random runs in which instances fetch KV as they form steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.setup.config import FirstToken, PrefixUnit, StepOrder
from tests.helpers.drawing import Draw
from tests.helpers.returning_family import returning
from tests.helpers.scenarios import Scenario

_UNITS: tuple[PrefixUnit, ...] = ("trace", "engine", "engine")
_TOLD: tuple[FirstToken, ...] = ("prefill", "join", "recomputed", "recomputed")
_NOT_AGAIN: tuple[FirstToken, ...] = ("prefill", "prefill", "join")
_ORDERS: tuple[StepOrder, ...] = ("decodes_first", "admission", "admission")


def pulled(draw: Draw) -> Scenario:
    """Instances that decode have few seats and too little memory, and more waits for them than they can hold."""
    scenario = returning(draw)
    engine = replace(
        scenario.engine,
        transfers="pulled",
        layerwise_tokens=draw.one([None, 1, 1, 8]),
        first_token=draw.one(_TOLD),
        step_order=draw.one(_ORDERS),
        prefix_unit=draw.one(_UNITS),
        max_batch=draw.one([2, 3, 6]),
        batching=draw.one(["unified", "unified", scenario.engine.batching]),
        asynchronous=draw.chance(0.2),
    )
    workload = scenario.workload
    if draw.chance(0.3):  # prompts that are to be fetched while they are computed, and then go nowhere
        engine = replace(engine, layerwise_tokens=1, first_token=draw.one(_NOT_AGAIN), max_batch=2)
        single = np.array([draw.chance(0.5) for _ in range(len(workload))])
        workload = replace(workload, output_tokens=np.where(single, 1, workload.output_tokens))
    rules = replace(scenario.rules, split_at=draw.one(["", "", "prompt", "output", "both"]))
    return replace(scenario, workload=workload, engine=engine, rules=rules)
