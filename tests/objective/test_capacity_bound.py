"""The bound on capacity: no policy sustains more, and where theory knows the best schedule it is near."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from framework.bound.bound import NOT_KNOWN
from framework.engine.setup.config import EngineConfig
from framework.metrics.slo import Slo
from framework.objective.capacity import Capacity
from framework.objective.capacity_bound import CapacityBound, capacity_bound
from framework.objective.experiment import Experiment
from framework.objective.goodput import bound_of
from framework.policy import Cluster, Policy, Request
from framework.report.capacity_table import capacity_table
from framework.run.compose import compose
from framework.system.cluster import disaggregated, mixed
from framework.timing.affine import Affine
from framework.workload import Workload, rate_rps
from policies.chunked import Chunked
from policies.continuous import Continuous
from policies.distserve import DistServe
from policies.slos_serve import SlosServe
from tests.helpers.composing import configured
from tests.helpers.servers import GPU, SERVICE_S, experiment, poisson, regular, requests, ttft_within

NEAR = 1.01  # a capacity is known to 1 %
BY_TOKEN = Affine(base_s=1e-9, per_prefill_token_s=SERVICE_S)  # steps of several prompts save nothing


class LosesOneInTen(Policy):
    """Turns away one request in ten, which is as many as may miss the SLO."""

    def admit(self, request: Request, cluster: Cluster) -> bool:
        return request.id % 10 != 9


def of(one: Experiment, attainment: float = 0.9) -> CapacityBound:
    return capacity_bound(one, attainment, rate_rps(one.workload))


def served_by(one: Experiment, policy: Callable[[], Policy]) -> Experiment:
    return replace(one, policy=policy(), renew=lambda: (policy(), None))


@pytest.mark.parametrize("attainment", [0.9, 0.5])
def test_a_server_need_not_serve_what_may_miss_the_slo(attainment: float) -> None:
    one = experiment(requests(regular(200)), ttft_within(1.0), BY_TOKEN)
    assert of(one, attainment).rate_rps * SERVICE_S * attainment == pytest.approx(1.0, rel=0.003)


def test_the_search_begins_anywhere_and_a_rate_that_just_attains_is_no_bound() -> None:
    """Of 200 requests 66 are in time at the halved rate, and as many up to a rate that is 1.4 % higher."""
    one, rate = experiment(requests(regular(200)), ttft_within(1.0), BY_TOKEN), 200 / 66.9 / SERVICE_S
    assert capacity_bound(one, 66 / 200, 4 * rate).rate_rps == pytest.approx(200 / 66 / SERVICE_S, rel=0.003)


def test_a_policy_reaches_it() -> None:
    one = served_by(experiment(requests(regular(200)), ttft_within(1.0), BY_TOKEN), LosesOneInTen)
    summary = Capacity().measure(one).evaluation.summary
    assert 0.98 < summary["capacity_share_of_bound"] <= NEAR
    assert summary["capacity"] / summary["capacity_bound"] == summary["capacity_share_of_bound"]
    assert summary["capacity_bound_limit"] == "prefill GPU time in bursts"


def test_decodes_of_a_full_batch_reach_it() -> None:
    """A step of the whole batch of 16 gives 16 tokens. A request needs 100 of them; a prompt costs next to nothing."""
    timing = Affine(base_s=0.01, per_prefill_token_s=1e-7, per_sequence_s=0.001)
    one = experiment(requests(regular(400), output_tokens=101), Slo(ttft_s=60.0, tpot_s=0.05), timing, seats=16)
    best = of(one).rate_rps
    assert best * 0.9 * 100 == pytest.approx(16 / (0.01 + 16 * 0.001), rel=0.02)
    found = Capacity().measure(served_by(one, LosesOneInTen)).value
    assert 0.95 * best < found <= NEAR * best


def test_a_share_that_no_rate_attains_and_limits_that_all_do() -> None:
    assert of(experiment(requests(regular(50)), ttft_within(SERVICE_S / 2), BY_TOKEN)).rate_rps == 0.0
    summary = (
        Capacity().measure(experiment(requests(regular(50)), ttft_within(SERVICE_S / 2), BY_TOKEN)).evaluation.summary
    )
    assert (summary["capacity"], summary["capacity_bound"], summary["capacity_share_of_bound"]) == (0.0, 0.0, None)
    one = experiment(requests(regular(5)), ttft_within(1.0), BY_TOKEN)
    ample = capacity_bound(one, 0.9, 2.0**-31 / SERVICE_S)  # a server that is 2**31 times as fast as it need be
    assert ample.figures(1.0)["capacity_bound"] is None
    assert ample.rate_rps == math.inf
    assert CapacityBound(0.5, "decodes").figures(0.25)["capacity_share_of_bound"] == 0.5


def drawn(seed: int) -> Experiment:
    """A small cluster, Poisson arrivals of requests of drawn sizes, and limits that some of them keep."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(60, 200))
    sizes = rng.integers(1, 80, count), rng.integers(1, 40, count)
    timing = Affine(*10.0 ** rng.uniform([-3, -4.5, -9, -4.5, -7], [-1.5, -3, -7, -3, -5]))
    policies: list[Callable[[], Policy]] = [Policy, Chunked, Continuous, LosesOneInTen]
    policies.append(lambda: SlosServe(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s))
    slo = Slo(ttft_s=float(10.0 ** rng.uniform(-1.5, 1)), tpot_s=float(10.0 ** rng.uniform(-2.5, -0.5)))
    is_apart = rng.random() < 0.3
    policy = DistServe if is_apart else policies[rng.integers(len(policies))]
    cluster = disaggregated(int(rng.integers(1, 3)), int(rng.integers(1, 3)), GPU) if is_apart else None
    engine = EngineConfig(
        max_batch=int(rng.choice([1, 4, 32])), token_budget=int(rng.choice([32, 512])), kv_tokens=4000, kv_fraction=1.0
    )
    one = experiment(Workload(poisson(count, seed), *sizes), slo, timing)
    one = replace(one, cluster=cluster or mixed(int(rng.integers(1, 4)), GPU), engine=engine)
    return served_by(one, policy)


def check(seed: int) -> bool:
    """Hold the capacity of a drawn case against its bound; whether there is a capacity."""
    one = drawn(seed)
    aim = Capacity(attainment=float(np.random.default_rng(seed).choice([0.5, 0.9, 0.99])), most_requests=2000)
    found_rps = aim.rate_rps(one)
    best_rps = capacity_bound(one, aim.attainment, found_rps or rate_rps(one.workload)).rate_rps
    assert found_rps <= best_rps * NEAR, f"seed {seed}: {found_rps} > {best_rps}"
    return found_rps > 0


@pytest.mark.slow
def test_a_policy_that_leaves_the_first_requests_waiting_sustains_no_more() -> None:
    """SLOs-Serve gives up promises to the first requests, whose wait hides that the queue grows."""
    assert check(20372)


def test_no_policy_sustains_more() -> None:
    assert sum(check(seed) for seed in range(6)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11_000, 500))
def test_no_policy_sustains_more_in_many_cases(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 500)) > 250


def test_the_terminal_says_it() -> None:
    one = compose(configured("policy=chunked", "trace=synthetic", "trace.requests=150", "cluster.instances=1"))
    measurement = Capacity(tolerance=0.2, most_requests=2000).measure(one)
    assert measurement.probes is not None
    summary = measurement.evaluation.summary
    file = io.StringIO()
    Console(file=file, width=120).print(capacity_table(summary, measurement.probes))
    share = 100 * summary["capacity_share_of_bound"]
    assert 20 < share <= 100
    assert f"{share:.1f} % of the" in file.getvalue()
    assert "req/s that no schedule sustains (" in file.getvalue()
    older = {key: value for key, value in summary.items() if not key.startswith("capacity_bound")}
    Console(file=file, width=120).print(capacity_table(older, measurement.probes))


def test_no_bound_is_known_where_instances_share_requests() -> None:
    sharing = compose(configured("policy=loongserve", "trace=synthetic", "trace.limit=5"))
    assert bound_of(sharing).goodput == math.inf
    assert capacity_bound(sharing, 0.9, 1.0) == CapacityBound(math.inf, NOT_KNOWN)
