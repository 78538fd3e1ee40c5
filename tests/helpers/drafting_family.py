"""A family of random runs in which decode steps draft a fixed number of tokens and mostly follow each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.load import Closed, Open
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import RowTiming, Scenario, scenarios, with_split


def drafting(draw: Draw) -> Scenario:
    """Runs of plain drafted steps, which arrivals, ends, other instances and short memory cut."""
    scenario = scenarios(draw)
    count, depth = draw.integer(2, 24), draw.integer(1, 3)
    workload = Workload(
        draw.dyadic(1, 30, -6) * np.cumsum([draw.one([0, 0, 1, 1, 3]) for _ in range(count)]),
        np.array(draw.integers(1, 40, count)),
        np.array(draw.integers(10, 90, count)),
    )
    first = scenario.cluster.pools[0]
    mixed = replace(
        with_split(first, scenario.model, pp=1, dp=1),
        role="mixed",
        instances=draw.integer(1, 3),
        reserve_tokens=None,
        max_batch=None,
        batching=None,
    )
    rows = {
        name: replace(row, skew_s=0.0, host_s=draw.one([row.host_s, row.base_s + 2.0**-8]))
        for name, row in scenario.timing.rows.items()
    }
    meets = draw.chance(0.5)
    if meets:  # steps of several instances end at one time, and what then comes is in the next ones
        rows = dict.fromkeys(rows, StepRow(base_s=2.0**-5, per_sequence_s=draw.one([0.0, 2.0**-5])))
        mixed = replace(mixed, instances=draw.integer(2, 4))
    engine = replace(
        scenario.engine,
        block_tokens=draw.one([4, 8, 16]),
        kv_tokens=draw.one([160, 160, 320, 4096]),
        max_batch=draw.integer(1, 6),
        watermark=0.0,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        batching=draw.one(["decode_first", "unified", "prefill_first", "mixed"]),
        step_order="decodes_first",
        asynchronous=False,
        speculation=Speculation(
            depth, draw.one([0.0, 0.5, 0.75, 1.0]), draft_cost=0.0 if meets else draw.integer(0, 8) / 16
        ),
    )
    rules = replace(scenario.rules, roles=0, moves=0, batching="", route_decode="")
    return replace(
        scenario,
        workload=workload,
        cluster=replace(scenario.cluster, pools=(mixed,)),
        model=replace(scenario.model, experts=None, max_context=1 << 12),
        timing=RowTiming(rows),
        engine=engine,
        load=draw.one([Open(), Closed(draw.integer(1, 8))]),
        rules=rules,
    )
