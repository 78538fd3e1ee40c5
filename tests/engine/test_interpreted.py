"""The engine as plain Python (NUMBA_DISABLE_JIT=1) gives what the compiled one gives, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conformance import CLUSTERS, MODEL, SCENARIOS, TIMING, digest
from tests.conftest import ROOT

RUNS = """
from framework.simulate import simulate
from policies.ares import Ares
from policies.chunked import Chunked
from policies.continuous import Continuous
from predictors.oracle import Oracle
from tests.conformance import CLUSTERS, MODEL, SCENARIOS, TIMING, digest

POLICIES = {
    "mixed": [Chunked, Continuous],
    "disaggregated": [Ares],
}


def digests():
    for name in sorted(SCENARIOS):
        for cluster, policies in POLICIES.items():
            for policy in policies:
                scenario = SCENARIOS[name]
                parts = (scenario.workload, CLUSTERS[cluster], MODEL, TIMING, scenario.engine)
                yield f"{name}, {policy.__name__}: " + digest(simulate(*parts, policy(), Oracle()))


print("\\n".join(digests()))
"""


def output(**environment: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", RUNS],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_plain_python_gives_the_same_bytes() -> None:
    compiled = output()
    assert len(compiled) == 3 * len(SCENARIOS)
    assert output(NUMBA_DISABLE_JIT="1") == compiled


@pytest.mark.parametrize("scenario", ["tight, swap"])
def test_digests_tell_runs_apart(scenario: str) -> None:
    """So that equal digests mean something."""
    from framework.simulate import simulate
    from policies.chunked import Chunked

    parts = SCENARIOS[scenario]
    results = [
        digest(simulate(parts.workload, CLUSTERS["mixed"], MODEL, TIMING, parts.engine, Chunked(routing)))
        for routing in ("round_robin", "least_queued")
    ]
    assert results[0] != results[1]
