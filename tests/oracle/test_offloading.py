"""A tier in host memory against vLLM's OffloadingConnector, every token of drawn runs: skipped without vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle.comparison import VARIABLE, Oracle, differing, interpreter, oracle
from tests.oracle.offloading_comparison import PROGRAM, REGIMES, compared, drawn, simulated

RUNS = 200
_BLOCK = 25  # runs of one test


@pytest.fixture(scope="module")
def vllm() -> Iterator[Oracle]:
    python = interpreter()
    if python is None:
        pytest.skip(f"{VARIABLE} is not set: no Python that has vLLM")
    with oracle(python, PROGRAM) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, RUNS, _BLOCK))
def test_every_token_comes_at_the_same_time(vllm: Oracle, first: int) -> None:
    assert not differing(vllm, drawn, compared, range(first, first + _BLOCK))


def test_drawn_workloads_reach_each_regime() -> None:
    """Of 200 drawn runs a tenth at least has each regime."""
    found = [drawn(seed).regimes for seed in range(RUNS)]
    for regime in REGIMES:
        assert sum(regime in regimes for regimes in found) >= RUNS // 10, regime


def test_drawn_runs_load_from_host_memory() -> None:
    assert sum(bool(simulated(drawn(seed)).tiers["hit_tokens"].sum()) for seed in range(20)) >= 5
