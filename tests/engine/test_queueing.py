"""A single server with constant service: Lindley's recursion for every wait, and the mean wait of M/D/1.

One seat, one output token and a step that costs base_s make an instance a server with service time base_s.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.affine import Affine
from framework.workload import Workload
from tests.helpers.scenarios import MODEL

SERVICE_S = 0.1
Floats = NDArray[np.float64]


def waits(arrival_s: Floats) -> Floats:
    """Simulated time between arrival and start of service, shape (N,)."""
    gpu = Gpu("server", {"bf16": 1e12}, 1e6, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
    ones = np.ones(len(arrival_s), np.int64)
    result = simulate(
        Workload(arrival_s, ones, ones),
        mixed(1, gpu),
        MODEL,
        Affine(base_s=SERVICE_S),
        EngineConfig(max_batch=1, kv_tokens=1024, kv_fraction=1.0, log="reduced"),
    )
    check_result(result)
    assert np.all(result.requests["state"] == 1)
    return np.asarray(result.requests["start_s"] - result.requests["arrival_s"])


def poisson(rho: float, count: int, seed: int) -> Floats:
    gaps = np.random.default_rng(seed).exponential(SERVICE_S / rho, count)
    return np.cumsum(gaps) - gaps[0]


def lindley(arrival_s: Floats) -> Floats:
    """W(k + 1) = max(0, W(k) + S - (a(k + 1) - a(k))) (Lindley 1952)."""
    wait = np.zeros(len(arrival_s))
    for k, gap in enumerate(np.diff(arrival_s)):
        wait[k + 1] = max(0.0, wait[k] + SERVICE_S - gap)
    return wait


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8, 0.9])
def test_every_wait_follows_lindley(rho: float) -> None:
    arrival_s = poisson(rho, 20_000, seed=1)
    np.testing.assert_allclose(waits(arrival_s), lindley(arrival_s), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.6, 0.8])
def test_mean_wait_is_that_of_m_d_1(rho: float) -> None:
    batches = [waits(poisson(rho, 1_000_000, seed)).mean() for seed in range(10)]  # ten million customers
    expected_s = rho * SERVICE_S / (2 * (1 - rho))  # Pollaczek-Khinchine with constant service
    assert np.mean(batches) == pytest.approx(expected_s, rel=0.01)
    assert np.std(batches) > 0
