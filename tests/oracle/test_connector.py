"""Pulled KV against vLLM's prefill and decode servers, every token of drawn runs: skipped where there is no vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle.comparison import VARIABLE, Oracle, differing, interpreter, oracle
from tests.oracle.connector_comparison import PROGRAM, REGIMES, compared, drawn

RUNS = 300
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
    """Of 300 drawn runs a tenth at least has each regime."""
    found = [drawn(seed).regimes for seed in range(RUNS)]
    for regime in REGIMES:
        assert sum(regime in regimes for regimes in found) >= RUNS // 10, regime
