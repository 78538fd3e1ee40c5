"""Limits relative to a request's times alone: 1 s a step, 0.25 s a prompt token."""

from __future__ import annotations

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.slo import Slo, judge
from framework.metrics.slowdown import Slowdown
from framework.objective.run_limits import exceeded, figure
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
TWO = Workload(np.array([0.0, 2.0**-40]), np.array([4, 4]), np.array([3, 3]))
ENGINE = EngineConfig(block_tokens=1, kv_fraction=1.0, kv_tokens=100)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0, per_prefill_token_s=0.25, per_context_token_s=2.0**-40)})


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, [True, True]),
        ({"ttft": 2.01}, [True, True]),
        ({"ttft": 1.99}, [True, False]),
        ({"tpot": 1.51}, [True, True]),
        ({"tpot": 1.49}, [False, True]),
        ({"e2e": 1.51}, [True, True]),
        ({"e2e": 1.49}, [True, False]),
        ({"ttft": 1.99, "tpot": 1.49}, [False, False]),
    ],
)
def test_times_are_held_against_those_alone(limits: dict[str, float], good: list[bool]) -> None:
    """Alone: 2 s and 2 s of decodes. Here token 1 comes at 2 and 4 s, token 2 at 4 and 5 s, token 3 at 5 and 6 s.

    The second request arrives right after the first one has begun.
    """
    result = simulate(TWO, ClusterSpec((PoolSpec("all", "mixed", 1, GPU),), LinkSpec(1.0)), MODEL, TIMING, ENGINE)
    assert result.requests["end_s"] == pytest.approx([5.0, 6.0])
    slo = Slo(None, None, slowdown=Slowdown(MODEL, TIMING, GPU, tp=1, **limits))
    assert judge(result, slo).good.tolist() == good


def test_percentiles_over_requests_are_figures_of_a_run() -> None:
    """TTFT of 1 and 2, TPOT of 1.5 and 1, latency of 1.25 and 1.5 times those alone."""
    result = simulate(TWO, ClusterSpec((PoolSpec("all", "mixed", 1, GPU),), LinkSpec(1.0)), MODEL, TIMING, ENGINE)
    alone = Slowdown(MODEL, TIMING, GPU)
    names = ("p50_ttft_slowdown", "p99_ttft_slowdown", "mean_tpot_slowdown", "p90_e2e_slowdown")
    assert [figure(result, name, 0, 2, alone) for name in names] == pytest.approx([2.0, 2.0, 1.25, 1.5])
    assert exceeded(result, {"p99_ttft_slowdown": 2.1, "p90_e2e_slowdown": 1.4}, 0, 2, alone) == "p90_e2e_slowdown"
    with pytest.raises(InputError, match="slo=slowdown"):
        exceeded(result, {"p99_ttft_slowdown": 2.0}, 0, 2)


def test_alone_counts_each_step_by_its_context() -> None:
    """The prompt, and decodes that read 4, 5 and 6 tokens; a single token leaves none."""
    row = StepRow(base_s=1.0, per_prefill_token_s=0.5, prefill_quadratic_s=0.25, per_context_token_s=2.0)
    alone = Slowdown(MODEL, RowTiming({"gpu": row}), GPU)
    ttft_s, later_s = alone.alone_s(np.array([3, 5, 3]), np.array([4, 1, 1]))
    assert ttft_s.tolist() == [1 + 1.5 + 0.25 * 9, 1 + 2.5 + 0.25 * 25, 1 + 1.5 + 0.25 * 9]
    assert later_s.tolist() == [3 + 2.0 * (4 + 5 + 6), 0.0, 0.0]


def test_a_limit_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match=r"slo.slowdown.tpot"):
        Slowdown(MODEL, TIMING, GPU, tpot=0.0)


def test_scaling_an_slo_scales_its_limits_on_slowdowns() -> None:
    """The second request's TTFT is twice that alone: it misses 1.5 times, and keeps twice that."""
    result = simulate(TWO, ClusterSpec((PoolSpec("all", "mixed", 1, GPU),), LinkSpec(1.0)), MODEL, TIMING, ENGINE)
    slo = Slo(None, None, slowdown=Slowdown(MODEL, TIMING, GPU, ttft=1.5, e2e=1.3))
    assert judge(result, slo).good.tolist() == [True, False]
    assert judge(result, slo.scaled(2.0)).good.tolist() == [True, True]
    assert slo.scaled(2.0).slowdown == Slowdown(MODEL, TIMING, GPU, ttft=3.0, tpot=None, e2e=2.6)
    assert Slo().scaled(2.0) == Slo(ttft_s=4.0, tpot_s=0.1)
