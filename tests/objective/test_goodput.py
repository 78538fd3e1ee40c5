"""What an objective hands on: the run, its figures, and the cluster that the bound may use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from framework.errors import InputError, InvariantError
from framework.metrics.slo import Slo
from framework.objective import experiment as experiments
from framework.objective import goodput
from framework.objective.goodput import Goodput, bound_of, evaluated
from framework.policy import Policy
from framework.run.compose import compose
from framework.system.cluster import ClusterSpec
from framework.timing.affine import Affine
from tests.conftest import ROOT
from tests.helpers.composing import configured
from tests.helpers.results import small_result
from tests.helpers.servers import SERVICE_S, experiment, regular, requests, ttft_within


@pytest.mark.parametrize("name", ["goodput", "capacity", "tightness", "offered"])
def test_settings_and_defaults_are_the_same(name: str) -> None:
    made = instantiate(OmegaConf.load(ROOT / "conf" / "objective" / f"{name}.yaml"), _convert_="all")
    defaults = type(made)()
    for field in vars(defaults):
        assert np.array_equal(getattr(made, field), getattr(defaults, field)), field


def test_goodput_is_that_of_one_run_and_its_buckets() -> None:
    """Prompts of 8, 7 and 9 tokens, which take 0.12, 0.11 and 0.13 s; the last misses its limit."""
    tokens = np.array([8, 7, 9])
    one = experiment(replace(requests(regular(3)), input_tokens=tokens), ttft_within(0.125), Affine(0.04, 0.01))
    seen: list[tuple[int, int]] = []
    measured = Goodput(prompt_edges_tokens=(8,)).measure(one, lambda done, total: seen.append((done, total)))
    assert measured.slo == one.slo
    assert measured.result.requests["end_s"] == pytest.approx([0.12, 1.11, 2.13])
    summary = measured.evaluation.summary
    assert summary["slo_attainment"] == pytest.approx(2 / 3)
    assert measured.value == summary[Goodput.key] > 0
    assert [bucket["offered"] for bucket in summary["buckets"]] == [1, 2]
    assert seen[-1] == (3, 3)


def test_each_rate_has_a_split_of_its_own() -> None:
    tried = compose(configured("policy=distserve", "trace=synthetic", "trace.limit=50")).at_rate(3.0)
    assert tried.cluster.split is not None
    assert tried.cluster.split.rate_rps == pytest.approx(3.0)


def test_a_run_that_breaks_an_invariant_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = small_result()
    broken.requests["first_token_s"][0] = 99.0
    monkeypatch.setattr(experiments, "replay", lambda *_, **__: broken)
    with pytest.raises(InvariantError):
        experiment(requests(regular(5)), ttft_within(1.0)).run()


def test_a_bound_stands_beside_goodput() -> None:
    """A request a second of 0.1 s each, all of which can be good."""
    one = experiment(requests(regular(11)), ttft_within(1.0))
    result = one.run()
    summary = evaluated(one, result).summary
    best = bound_of(one)
    assert best.good == 11
    assert summary["goodput_bound"] == best.goodput
    assert summary["share_of_bound"] == pytest.approx(1.0, rel=0.02)
    assert summary["bound_limit"] == best.limit
    hopeless = replace(one, slo=ttft_within(SERVICE_S / 2))
    assert evaluated(hopeless, result).summary["share_of_bound"] is None


class Plans(Policy):
    tick_s = 1.0

    def on_tick(self, cluster: Any) -> list[Any]:
        return []


class Cuts(Policy):
    def split_at(self, request: Any, cluster: Any) -> int:
        return 0


class Batches(Policy):
    def batching(self, instance: Any, cluster: Any) -> Any:
        return None


class Moves(Policy):
    changes_roles = True


class Shares(Policy):
    shares_gpus = True


@pytest.mark.parametrize(
    ("policy", "used"),
    [
        (Policy(), []),
        (Plans(), ["plan"]),
        (Cuts(), ["plan"]),
        (Batches(), ["plan"]),
        (Moves(), ["role"]),
        (Shares(), ["stream"]),
    ],
)
def test_the_bound_lets_a_policy_do_what_it_may(
    policy: Policy, used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any plan for one that plans steps or cuts prompts, any role, two streams on each instance."""
    done: list[str] = []
    for name in ("plan", "role", "stream"):

        def noted(cluster: ClusterSpec, name: str = name) -> ClusterSpec:
            done.append(name)
            return cluster

        monkeypatch.setattr(goodput, f"any_{name}", noted)
    one = replace(experiment(requests(regular(3)), Slo()), policy=policy)
    bound_of(one)
    assert done == used


def test_edges_of_buckets_are_checked() -> None:
    with pytest.raises(InputError, match=r"objective\.prompt_edges_tokens"):
        Goodput(prompt_edges_tokens=(5, 4))
