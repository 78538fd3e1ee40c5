"""`policy=sglang` against SGLang's own scheduler, every token of drawn workloads: skipped where there is no SGLang."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle.comparison import Oracle, differing, interpreter, oracle
from tests.oracle.sglang_comparison import PROGRAM, REGIMES, VARIABLE, compared, drawn

RUNS = 60
_BLOCK = 20  # runs of one test


@pytest.fixture(scope="module")
def sglang() -> Iterator[Oracle]:
    python = interpreter(VARIABLE)
    if python is None:
        pytest.skip(f"{VARIABLE} is not set: no Python that has SGLang")
    with oracle(python, PROGRAM) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, RUNS, _BLOCK))
def test_every_token_comes_at_the_same_time(sglang: Oracle, first: int) -> None:
    assert not differing(sglang, drawn, compared, range(first, first + _BLOCK))


def test_drawn_workloads_reach_each_regime() -> None:
    found = [drawn(seed).regimes for seed in range(RUNS)]
    for regime in REGIMES:
        assert sum(regime in regimes for regimes in found) >= RUNS // 6, regime
    assert any(not regimes for regimes in found)
