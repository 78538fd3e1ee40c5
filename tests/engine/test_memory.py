"""Memory of a run that is given back before the run ends."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup import allocate
from framework.engine.setup.config import EngineConfig
from framework.replay import compiled
from framework.replay.pages import give_back
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.affine import Affine
from framework.workload import Workload
from tests.helpers.agreement import drawn
from tests.helpers.differences import run_engine
from tests.helpers.parts import load
from tests.helpers.scenarios import MODEL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")
def test_whole_pages_are_given_back_and_no_others() -> None:
    records = np.ones(1 << 20, np.dtype([("value", "<f8")]))
    part = records[1000:-1000]
    give_back(part)
    given = np.flatnonzero(records["value"] == 0)
    assert len(given) > 0.99 * len(part)
    assert 1000 <= given[0] <= given[-1] < len(records) - 1000
    assert (np.diff(given) == 1).all()


def test_outcomes_are_taken_before_requests_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = drawn("many", 0)
    kept = run_engine(scenario)[0]
    monkeypatch.setattr(compiled, "_LARGE_BYTES", 0)
    monkeypatch.setattr(compiled, "_ROWS_AT_ONCE", 7)
    assert run_engine(scenario)[0].requests.tobytes() == kept.requests.tobytes()


def test_a_log_that_grows_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(np.zeros(80), np.full(80, 100), np.full(80, 40))
    engine = EngineConfig(speculation=Speculation(2, 0.5, draft_cost=0.25), max_batch=2)
    cluster = ClusterSpec((PoolSpec("mixed", "mixed", 2, load("gpu", "h100")),), LinkSpec(1e9))

    def run() -> Result:
        return simulate(workload, cluster, MODEL, Affine(base_s=1e-3), engine)

    whole = run()
    monkeypatch.setattr(allocate, "_LOG_ROWS", 140)  # the least that an event may take up, and some more
    monkeypatch.setattr(compiled, "_WINDOWS", 3)
    monkeypatch.setattr(compiled, "_GROWTH", 2)
    windowed = run()
    assert len(whole.step_log) > 4 * 140
    assert windowed.step_log.tobytes() == whole.step_log.tobytes()
    assert windowed.token_log.tobytes() == whole.token_log.tobytes()
