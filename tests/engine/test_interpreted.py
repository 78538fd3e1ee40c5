"""The engine as plain Python (NUMBA_DISABLE_JIT=1) gives what the compiled one gives, to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.policy import Policy
from framework.simulate import simulate
from policies.ares import Ares
from policies.chunked import Chunked
from policies.continuous import Continuous
from predictors.oracle import Oracle
from servelab.testing.recording import digest
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS, TIMING
from tests.helpers.interpreted import printed_interpreted

POLICIES: dict[str, tuple[str, type[Policy]]] = {
    "chunked": ("mixed", Chunked),
    "ares": ("disaggregated", Ares),
    "continuous": ("mixed", Continuous),
}
PRINTED = "from tests.engine.test_interpreted import digests; print(*digests({!r}, {!r}), sep=chr(10))"


def digests(name: str, one_of: int) -> Iterator[str]:
    """Of one in so many scenarios."""
    cluster, policy = POLICIES[name]
    for title, scenario in sorted(SCENARIOS.items())[::one_of]:
        parts = (scenario.workload, CLUSTERS[cluster], MODEL, TIMING, scenario.engine)
        yield f"{title}: " + digest(simulate(*parts, policy(), Oracle()))


@pytest.mark.parametrize(
    ("name", "one_of"), [("ares", 6), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in POLICIES)]
)
def test_plain_python_gives_the_same_bytes(name: str, one_of: int) -> None:
    assert printed_interpreted(PRINTED.format(name, one_of)).splitlines() == list(digests(name, one_of))


@pytest.mark.parametrize("scenario", ["tight, swap"])
def test_digests_tell_runs_apart(scenario: str) -> None:
    """So that equal digests mean something."""
    parts = SCENARIOS[scenario]
    results = [
        digest(simulate(parts.workload, CLUSTERS["mixed"], MODEL, TIMING, parts.engine, Chunked(routing)))
        for routing in ("round_robin", "least_queued")
    ]
    assert results[0] != results[1]
