"""The engine as plain Python (NUMBA_DISABLE_JIT=1) gives what the compiled one gives, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from framework.policy import Policy
from framework.simulate import simulate
from policies.ares import Ares
from policies.chunked import Chunked
from policies.continuous import Continuous
from predictors.oracle import Oracle
from tests.conformance import CLUSTERS, MODEL, SCENARIOS, TIMING, digest
from tests.conftest import ROOT

POLICIES: dict[str, list[type[Policy]]] = {
    "mixed": [Chunked, Continuous],
    "disaggregated": [Ares],
}
PRINTED = "from tests.engine.test_interpreted import digests; print(*digests(), sep=chr(10))"


def digests() -> Iterator[str]:
    for name, scenario in sorted(SCENARIOS.items()):
        for cluster, policies in POLICIES.items():
            for policy in policies:
                parts = (scenario.workload, CLUSTERS[cluster], MODEL, TIMING, scenario.engine)
                yield f"{name}, {policy.__name__}: " + digest(simulate(*parts, policy(), Oracle()))


def in_plain_python() -> list[str]:
    run = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", PRINTED],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_plain_python_gives_the_same_bytes() -> None:
    compiled = list(digests())
    assert len(compiled) == 3 * len(SCENARIOS)
    assert in_plain_python() == compiled


@pytest.mark.parametrize("scenario", ["tight, swap"])
def test_digests_tell_runs_apart(scenario: str) -> None:
    """So that equal digests mean something."""
    parts = SCENARIOS[scenario]
    results = [
        digest(simulate(parts.workload, CLUSTERS["mixed"], MODEL, TIMING, parts.engine, Chunked(routing)))
        for routing in ("round_robin", "least_queued")
    ]
    assert results[0] != results[1]
