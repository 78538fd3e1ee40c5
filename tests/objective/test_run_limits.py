"""Capacity by limits on figures of the whole run, on a server whose queue is known."""

from __future__ import annotations

import numpy as np
import pytest

from framework.errors import InputError
from framework.metrics.slo import Slo
from framework.metrics.slowdown import Slowdown
from framework.objective.capacity import Capacity
from framework.objective.run_limits import exceeded, figure, require_known
from framework.timing.affine import Affine
from framework.workload import Workload
from tests.helpers.servers import SERVICE_S, experiment, poisson, regular, requests

ANY = Slo(ttft_s=None, tpot_s=None)


@pytest.mark.parametrize("wait_s", [0.05, 0.2])
def test_capacity_for_a_mean_wait_is_that_of_theory(wait_s: float) -> None:
    one = experiment(requests(poisson(20_000, seed=3)), ANY)
    found = Capacity(run_limits={"mean_queue_s": wait_s}).measure(one).value
    rho = 2 * wait_s / (SERVICE_S + 2 * wait_s)  # M/D/1: a mean wait of rho * service / (2 * (1 - rho))
    assert found * SERVICE_S == pytest.approx(rho, rel=0.04)


def test_figures_are_those_of_the_requests_asked_for() -> None:
    one = experiment(requests(regular(40), input_tokens=8, output_tokens=3), ANY, Affine(base_s=SERVICE_S))
    result = one.run()
    assert figure(result, "p50_tpot_s", 0, 40) == pytest.approx(SERVICE_S)
    assert figure(result, "mean_e2e_s", 20, 40) == pytest.approx(3 * SERVICE_S)
    assert figure(result, "p90_normalized_s", 20, 40) == pytest.approx(SERVICE_S)
    assert figure(result, "p99_tbt_s", 0, 40) == pytest.approx(SERVICE_S)
    assert exceeded(result, {"p50_ttft_s": 0.11, "mean_tbt_s": 0.09}, 0, 40) == "mean_tbt_s"
    assert exceeded(result, {"p50_ttft_s": 0.11, "mean_tbt_s": 0.11}, 0, 40) is None


def test_a_percentile_of_requests_is_reached_by_none_less() -> None:
    one = experiment(requests(np.zeros(10)), ANY)
    result = one.run()  # waits of 0, 1, ... 9 service times
    assert figure(result, "p50_queue_s", 0, 10) == pytest.approx(5 * SERVICE_S)
    assert figure(result, "p90_queue_s", 0, 10) == pytest.approx(9 * SERVICE_S)


@pytest.mark.parametrize("name", ["p99_ttft", "most_queue_s", "p42_tbt_s", "queue_s", "p100_queue_s"])
def test_a_figure_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"objective\.run_limits\.{name}: no such figure; choose"):
        Capacity(run_limits={name: 1.0})


def test_a_limit_that_no_rate_keeps_is_named() -> None:
    one = experiment(requests(regular(50)), ANY)
    measured = Capacity(run_limits={"p50_ttft_s": SERVICE_S / 2}).measure(one)
    assert measured.value == 0
    assert "no rate keeps p50_ttft_s 0.05" in measured.notes[0]


def test_a_request_that_was_not_served_counts_as_infinite() -> None:
    """Of ten the last two are too long to be served."""
    tokens = np.ones(10, np.int64)
    tokens[8:] = 2 * 10**6
    result = experiment(Workload(regular(10), tokens, np.ones(10, np.int64)), ANY).run()
    assert figure(result, "mean_ttft_s", 0, 10) == np.inf
    assert figure(result, "mean_ttft_s", 0, 8) == pytest.approx(SERVICE_S)
    assert figure(result, "p50_ttft_s", 0, 10) == pytest.approx(SERVICE_S)
    assert figure(result, "p90_e2e_s", 0, 10) == np.inf
    assert exceeded(result, {"mean_queue_s": 1e9}, 0, 10) == "mean_queue_s"
    assert exceeded(result, {"mean_queue_s": 1e9}, 0, 8) is None


def test_a_figure_that_no_request_has_keeps_any_limit() -> None:
    """Requests of one token have no TPOT."""
    result = experiment(requests(regular(4)), ANY).run()
    assert figure(result, "mean_tpot_s", 0, 4) == 0.0
    assert exceeded(result, {"mean_tpot_s": 1e-9}, 0, 4) is None


def test_a_limit_is_kept_by_what_equals_it() -> None:
    result = experiment(requests(np.array([0.0, 4.0])), ANY, Affine(base_s=0.5)).run()
    assert exceeded(result, {"mean_ttft_s": 0.5}, 0, 2) is None
    assert exceeded(result, {"mean_ttft_s": 0.499}, 0, 2) == "mean_ttft_s"


@pytest.mark.parametrize("name", ["p5_queue_s", "p99.9_e2e_s", "mean_ttft_slowdown", "p50_tbt_s"])
def test_figures_that_exist_are_known(name: str) -> None:
    require_known("objective.run_limits", {name: 1.0})
    with pytest.raises(InputError, match=rf"run_limits\.{name} must"):
        require_known("objective.run_limits", {name: 0.0})


def test_a_figure_relative_to_times_alone_needs_a_machine_to_compare_with() -> None:
    """Two at once: the first takes as long as alone, the second waits for it."""
    timing = Affine(base_s=SERVICE_S)
    result = experiment(requests(np.zeros(2)), ANY, timing).run()
    alone = Slowdown(result.model, timing, result.cluster.pools[0].gpu)
    assert [figure(result, "mean_e2e_slowdown", r, r + 1, alone) for r in (0, 1)] == pytest.approx([1.0, 2.0])
    with pytest.raises(InputError, match="mean_e2e_slowdown has no machine to compare with"):
        figure(result, "mean_e2e_slowdown", 0, 2)
