"""Memory of a run that is given back before the run ends."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from framework.replay import compiled
from framework.replay.pages import give_back
from tests.helpers.agreement import drawn
from tests.helpers.differences import run_engine


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
