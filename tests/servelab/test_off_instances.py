"""The policy of docs/decisions.md that starts and stops instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servelab
from framework.cli.outside import class_of
from tests.helpers.readme import example_files

SPARE: dict[str, Any] = {"cluster__instances": 1, "cluster__spare": 3, "engine__start_s": 5}


@pytest.fixture
def kind(tmp_path: Path) -> Any:
    (tmp_path / "on_demand.py").write_text(example_files()["mine/on_demand.py"])
    return class_of(tmp_path / "on_demand.py", "OnDemand")


def run(policy: servelab.Policy) -> servelab.Run:
    return servelab.run(policy, "synthetic", rate=40, limit=1500, **SPARE)


def test_as_many_are_on_as_the_queue_asks_for(kind: Any) -> None:
    hasty, patient = run(kind(queue_tokens=1000)), run(kind(queue_tokens=10**9))
    assert patient.requests["prefill_instance"].max() == 0
    assert (hasty.requests["prefill_instance"] >= 1).any()
    assert hasty.summary["mean_ttft_ms"] < patient.summary["mean_ttft_ms"] / 2


def test_a_policy_that_cannot_use_them_is_refused(kind: Any) -> None:
    kind.roles = ("mixed",)
    with pytest.raises(servelab.InputError, match=r"cannot use off instances; choose cluster=mixed cluster.spare=0"):
        run(kind())
