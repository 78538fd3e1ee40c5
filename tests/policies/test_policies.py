"""Every policy of conf/policy and the example of the docs keep the conformance suite; others are caught."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from framework.cli.conf import CONF
from framework.errors import InputError, PolicyError
from framework.policy import Aggregated, Disaggregated, Policy
from servelab.testing import PolicyConformance
from servelab.testing.worlds import CLUSTERS, SCENARIOS
from tests.helpers.conformance import Conformance
from tests.helpers.readme import example_files

NAMES = sorted(path.stem for path in (CONF / "policy").glob("*.yaml") if not path.stem.startswith("_"))


class TestAggregated(Conformance):
    policy_factory = Aggregated


class TestDisaggregated(Conformance):
    policy_factory = Disaggregated


class TestPolicy(Conformance):
    """The base class itself, on clusters of all roles."""

    policy_factory = Policy


for _name in NAMES:
    _title = f"Test_{_name}"  # so that -k NAME finds it
    globals()[_title] = type(_title, (Conformance,), {"policy_name": _name, "__module__": __name__})


@pytest.fixture(scope="class")
def written_example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that docs/hooks.md has its reader write, where Python and Hydra find them."""
    directory = tmp_path_factory.mktemp("readme")
    for name, text in example_files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    request.cls.config_dir = str(directory / "conf")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield
        for name in ("mine", "mine.soonest"):
            sys.modules.pop(name, None)


@pytest.mark.usefixtures("written_example")
class TestExampleOfTheDocs(PolicyConformance):
    policy_name = "soonest"


# --- the suite itself: its scenarios bite, and what breaks a rule is caught -------------------------------------------


@pytest.mark.parametrize("scenario", ["tight, recompute", "tight, swap"])
@pytest.mark.parametrize("cluster", ["mixed", "disaggregated"])
def test_tight_scenarios_preempt(scenario: str, cluster: str) -> None:
    rows = TestPolicy().play(SCENARIOS[scenario], CLUSTERS[cluster]).requests
    assert rows["preemptions"].sum() > 0


def test_cached_and_closed_loop_scenarios_are_that() -> None:
    cached = TestAggregated().play(SCENARIOS["prefix cache"], CLUSTERS["mixed"]).requests["cached_tokens"]
    assert np.count_nonzero(cached) > 10
    scenario = SCENARIOS["sessions"]
    rows = TestAggregated().play(scenario, CLUSTERS["mixed"]).requests
    later = np.flatnonzero(scenario.workload.previous >= 0)  # type: ignore[operator]
    assert len(later) > 20
    assert np.all(rows["arrival_s"][later] > rows["end_s"][scenario.workload.previous[later]] - 1e-9)  # type: ignore[index]


class Peeking(Aggregated):
    """Reads how long the running requests really are, past the view."""

    def route_prefill(self, request: Any, cluster: Any) -> int:
        first_ends = cluster._engine._memory.step["next_finish"]
        return int(first_ends[cluster.instances.running > 0].sum()) % len(cluster.instances)


class Lasting(Aggregated):
    """Counts on its class, so that a run sees those before it."""

    served: ClassVar[itertools.count[int]] = itertools.count()

    def route_prefill(self, request: Any, cluster: Any) -> int:
        return (next(self.served) // 7) % len(cluster.instances)


class Unseeded(Aggregated):
    def route_prefill(self, request: Any, cluster: Any) -> int:
        return random.randrange(len(cluster.instances))


class Stubborn(Policy):
    """Names instance 0 whatever it is."""

    def route_prefill(self, request: Any, cluster: Any) -> int:
        return 0


class Crashing(Policy):
    """Refuses a cluster by an error of its own."""

    def layout(self, spec: Any) -> Any:
        return spec if len(spec.pools) == 1 else {"prefill": spec}["decode"]


class NeedsPrediction(Aggregated):
    def route_prefill(self, request: Any, cluster: Any) -> int:
        return int(cluster.remaining_tokens(np.array([request.id]))[0]) % len(cluster.instances)


class Meddling(Aggregated):
    def admit(self, request: Any, cluster: Any) -> bool:
        cluster.instances.queued_tokens[0] = 0
        return True


def suite(policy: Callable[[], Policy]) -> PolicyConformance:
    made: PolicyConformance = type("Suite", (PolicyConformance,), {"policy_factory": policy})()
    return made


def test_reading_true_lengths_is_caught() -> None:
    with pytest.raises(AssertionError, match="lengths that nobody can know yet"):
        suite(Peeking).test_true_lengths_stay_hidden("roomy", "longer")


@pytest.mark.parametrize("policy", [Lasting, Unseeded])
def test_runs_that_differ_are_caught(policy: type[Policy]) -> None:
    with pytest.raises(AssertionError):
        suite(policy).test_the_same_run_twice_gives_the_same_bytes("roomy")


def test_routes_to_the_wrong_role_are_caught() -> None:
    with pytest.raises(PolicyError, match=r"Stubborn: route_prefill returned instance 0 .* which is a decode instance"):
        suite(Stubborn).test_every_request_ends_once_on_instances_that_can_serve_it("roomy")


def test_a_layout_that_crashes_is_caught() -> None:
    with pytest.raises(KeyError):
        suite(Crashing).test_layout_accepts_or_refuses_in_one_line()


def test_a_policy_that_cannot_do_without_predictions_is_caught() -> None:
    with pytest.raises(ValueError, match="NaN"):
        suite(NeedsPrediction).test_it_runs_without_a_predictor()


def test_a_policy_that_writes_into_the_view_is_caught() -> None:
    with pytest.raises(ValueError, match="read-only"):
        suite(Meddling).test_every_request_ends_once_on_instances_that_can_serve_it("roomy")


class Choosy(Policy):
    def layout(self, spec: Any) -> Any:
        raise InputError("policy Choosy cannot use this cluster")


def test_a_policy_that_refuses_every_cluster_is_caught() -> None:
    with pytest.raises(AssertionError, match="refuses every cluster"):
        suite(Choosy).usable_clusters()
