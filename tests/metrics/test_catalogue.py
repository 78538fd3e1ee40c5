"""Every key of a summary is explained, and nothing else is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from framework.metrics.catalogue import METRICS
from framework.objective.capacity import Capacity
from framework.objective.goodput import Goodput, Objective
from framework.objective.tightness import Tightness
from framework.run.compose import compose
from tests.helpers.composing import configured

TIER = re.compile(r"(cache_hit_rate|loaded_bytes)_(dram|ssd)")
SMALL = ("policy=chunked", "cluster.instances=1", "trace=synthetic", "trace.limit=60")
RUNS: list[tuple[Objective, tuple[str, ...]]] = [
    (Goodput(), ()),
    (Goodput(), ("timing=roofline", "cluster.pp=2", "engine/speculation=draft")),
    (Goodput(), ("trace=mooncake", "engine.prefix_cache=true", "engine/prefix_stores=dram_ssd")),
    (Goodput(), ("trace.slo_classes={chat:0.5,batch:0.5}",)),
    (Goodput(), ("policy=static",)),
    (Goodput(), ("trace.arrivals.end_rate=40", "trace.arrivals.ramp_s=60")),  # of which 60 are the slow beginning
    (Tightness(), ()),
    (Capacity(replicates=2, most_requests=2000, tolerance=0.3), ()),
]


def summary(objective: Objective, overrides: tuple[str, ...]) -> dict[str, Any]:
    return objective.measure(compose(configured(*SMALL, *overrides))).evaluation.summary


@pytest.fixture(scope="module")
def keys() -> set[str]:
    return {TIER.sub(r"\1_TIER", key) for run in RUNS for key in summary(*run)}


def test_every_key_is_explained(keys: set[str]) -> None:
    assert not keys - METRICS.keys()


def test_nothing_else_is(keys: set[str]) -> None:
    assert not METRICS.keys() - keys
