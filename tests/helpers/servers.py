"""Servers whose queues are known: one instance, one seat, requests of one token that take the same time each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.engine.setup.config import EngineConfig
from framework.load import Open
from framework.metrics.slo import Slo
from framework.objective.experiment import Experiment
from framework.objective.probe import Criterion
from framework.policy import Policy
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.affine import Affine
from framework.workload import Workload
from tests.helpers.scenarios import MODEL

CRITERION = Criterion(attainment=0.9, resolution=0.01, most_requests=200_000)
SERVICE_S = 0.1
GPU = Gpu("server", {"bf16": 1e12}, 1e6, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
Floats = NDArray[np.float64]


def experiment(workload: Workload, slo: Slo, timing: Affine | None = None, seats: int = 1) -> Experiment:
    """One instance; as it comes, requests of one token make it a server that takes SERVICE_S for each."""
    return Experiment(
        workload=workload,
        cluster=mixed(1, GPU),
        model=MODEL,
        timing=timing or Affine(base_s=SERVICE_S),
        engine=EngineConfig(max_batch=seats, kv_tokens=10**6, kv_fraction=1.0),
        policy=Policy(),
        predictor=None,
        load=Open(),
        slo=slo,
        seed=0,
        renew=lambda: (Policy(), None),
        sample=lambda number, block_s: requests(poisson(len(workload), seed=number)),
    )


def requests(arrival_s: Floats, input_tokens: int = 1, output_tokens: int = 1) -> Workload:
    count = len(arrival_s)
    return Workload(arrival_s, np.full(count, input_tokens, np.int64), np.full(count, output_tokens, np.int64))


def regular(count: int) -> Floats:
    return np.arange(count, dtype=np.float64)


def poisson(count: int, seed: int) -> Floats:
    gaps = np.random.default_rng(seed).exponential(1.0, count)
    return np.cumsum(gaps) - gaps[0]


def ttft_within(limit_s: float) -> Slo:
    return Slo(ttft_s=limit_s, tpot_s=None)
