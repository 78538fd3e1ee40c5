"""Runs that use few mechanisms take less code, and come to the same as with all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import pytest

from framework.engine.loop import run, run_plain
from framework.engine.memory.attach import handed
from framework.engine.memory.state import Memory
from framework.engine.memory.unused import UNUSED
from framework.policy import Policy
from framework.replay import compiled
from framework.result import Result
from framework.simulate import simulate
from policies.ares import Ares
from policies.chunked import Chunked
from policies.distserve import DistServe
from predictors.oracle import Oracle
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS, TIMING
from tests.engine.test_implementation import outcome

POLICIES: dict[str, tuple[str, Callable[[], Policy]]] = {
    "chunked": ("mixed", Chunked),
    "distserve": ("disaggregated", DistServe),
    "ares": ("disaggregated", Ares),
}
pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")  # type: ignore[attr-defined]


class Taken:
    """Which of the two is called, and the memory as it leaves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self.memory: Memory | None = None
        self.calls = {"run": self._noting("run", run), "run_plain": self._noting("run_plain", run_plain)}
        for name, call in self.calls.items():
            monkeypatch.setattr(compiled, name, call)
        monkeypatch.setattr("framework.engine.setup.binding.handed", self._handed)

    def _handed(self, memory: Memory, *others: Any) -> Any:
        self.memory = memory
        return handed(memory, *others)

    def _noting(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> int:
            self.names.add(name)
            return int(function(*arguments))

        return call


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return Taken(monkeypatch)


def play(scenario: str, policy: str) -> Result:
    setting, (cluster, make) = SCENARIOS[scenario], POLICIES[policy]
    return simulate(setting.workload, CLUSTERS[cluster], MODEL, TIMING, setting.engine, make(), Oracle())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scenario", ["roomy", "tight, recompute", "sessions", "small budgets", "prefix cache"])
def test_a_plain_run_is_the_same_as_with_all_mechanisms(
    scenario: str, policy: str, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = play(scenario, policy)
    assert taken.names == {"run_plain"}
    monkeypatch.setattr(compiled, "run_plain", taken.calls["run"])
    assert outcome(result) == outcome(play(scenario, policy))
    assert taken.names == {"run_plain", "run"}
    assert taken.memory is not None
    for name, value in UNUSED.items():
        record, field = name.split(".")
        assert (taken.memory._asdict()[record][field] == value).all(), name


@pytest.mark.parametrize("scenario", ["tight, swap", "prefix stores", "scheduled ahead, KV pulled"])
def test_a_run_with_a_mechanism_takes_all_of_them(scenario: str, taken: Taken) -> None:
    play(scenario, "chunked")
    assert taken.names == {"run"}
