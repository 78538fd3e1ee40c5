"""Runs with one planted bottleneck, which the diagnosis names; and runs of which it says nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from framework.diagnosis.findings import Diagnosis, diagnose
from framework.diagnosis.losses import CAUSES
from framework.engine.setup.config import EngineConfig
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.policy import Aggregated
from framework.policy.base import Policy
from framework.report.why_table import why_table
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, disaggregated, mixed
from framework.timing.affine import Affine
from framework.workload import Workload
from policies.distserve import DistServe
from tests.helpers.results import GPU
from tests.helpers.scenarios import MODEL

_MODEL = replace(MODEL, max_context=100_000)


def steady(count: int, rate: float, prompt: int, output: int) -> Workload:
    """Requests of one size, evenly spaced."""
    return Workload(np.arange(count) / rate, np.full(count, prompt), np.full(count, output))


def alternating(count: int, rate: float, small: tuple[int, int], large: tuple[int, int]) -> Workload:
    """Every fourth request is a large one."""
    sizes = np.array([large if number % 4 == 3 else small for number in range(count)])
    return Workload(np.arange(count) / rate, sizes[:, 0].copy(), sizes[:, 1].copy())


class ToTheFirst(Aggregated):
    """A router that ignores load."""

    def route_prefill(self, request: Any, cluster: Any) -> int:
        return 0


@dataclass(frozen=True)
class Plant:
    workload: Workload
    cluster: ClusterSpec
    timing: Affine = field(default_factory=lambda: Affine(base_s=0.01, per_prefill_token_s=1e-5, per_sequence_s=1e-4))
    engine: dict[str, Any] = field(default_factory=dict)
    slo: Slo = field(default_factory=lambda: Slo(ttft_s=1.0, tpot_s=0.03))
    policy: Callable[[], Policy] = Aggregated

    def run(self) -> Result:
        engine = EngineConfig(**({"kv_tokens": 200_000} | self.engine))
        return simulate(self.workload, self.cluster, _MODEL, self.timing, engine, self.policy())

    def diagnosis(self) -> Diagnosis:
        result = self.run()
        return diagnose(result, evaluate(result, self.slo), self.slo)


PLANTS = {
    "prefill capacity": Plant(steady(150, 30.0, 5000, 10), disaggregated(1, 1, GPU), policy=DistServe),
    "Prefill itself": Plant(
        steady(40, 0.3, 5000, 10), disaggregated(1, 1, GPU), Affine(0.01, per_prefill_token_s=4e-4), policy=DistServe
    ),
    "KV memory is full": Plant(
        steady(200, 8.0, 400, 200), mixed(1, GPU), engine={"kv_tokens": 5000}, slo=Slo(1.0, tpot_s=1.0)
    ),
    "KV memory is full while requests wait": Plant(  # not 80 % of it: one more prompt takes a quarter
        steady(200, 30.0, 2000, 50), mixed(1, GPU), engine={"kv_tokens": 8000}, slo=Slo(1.0, tpot_s=0.03)
    ),
    "Batches are full": Plant(steady(200, 8.0, 400, 200), mixed(1, GPU), engine={"max_batch": 4}),
    "routing": Plant(steady(200, 20.0, 8000, 10), mixed(4, GPU), policy=ToTheFirst),
    "transfer of KV": Plant(
        steady(100, 5.0, 1000, 20), disaggregated(1, 1, GPU, link_bandwidth_bytes_s=32e3), policy=DistServe
    ),
    "wait for room to decode": Plant(
        steady(150, 8.0, 400, 100), disaggregated(1, 1, GPU), engine={"max_batch": 4}, policy=DistServe
    ),
    "Prefills stall decodes": Plant(
        alternating(200, 5.0, (200, 60), (30_000, 20)),
        mixed(1, GPU),
        engine={"batching": "prefill_first"},
        slo=Slo(1.0, tpot_s=0.015),
    ),
    "Preemptions": Plant(
        steady(120, 6.0, 50, 400), mixed(1, GPU), engine={"kv_tokens": 4000}, slo=Slo(None, tpot_s=0.03)
    ),
    "Long contexts": Plant(
        steady(80, 0.7, 8000, 200), mixed(1, GPU), Affine(0.01, per_prefill_token_s=1e-6, per_context_token_s=1e-6)
    ),
    "Decode steps": Plant(steady(150, 8.0, 100, 100), mixed(1, GPU), Affine(0.01, 1e-6, per_sequence_s=4e-3)),
    "not served": Plant(alternating(40, 4.0, (100, 10), (9000, 10)), mixed(1, GPU), engine={"kv_tokens": 5000}),
}


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_bottleneck_is_named_first(name: str) -> None:
    diagnosis = PLANTS[name].diagnosis()
    assert diagnosis.findings, name
    first = diagnosis.findings[0]
    sentences = [f"{finding.title} ({finding.lost}): {finding.evidence}" for finding in diagnosis.findings]
    assert name in first.title, sentences
    assert first.evidence.endswith(".")
    assert not {"nan", "unknown"} & set(first.evidence.split())
    assert sum((diagnosis.losses.of(cause)).sum() for cause in CAUSES) == diagnosis.lost


NOTHING = {
    "no load": Plant(steady(100, 1.0, 500, 20), mixed(2, GPU)),
    "no limits": Plant(steady(100, 30.0, 8000, 20), mixed(1, GPU), slo=Slo(None, None)),
    "the odd one": Plant(alternating(400, 4.0, (100, 10), (100, 10)), mixed(2, GPU)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_said_of_a_run_that_lost_nothing(name: str) -> None:
    diagnosis = NOTHING[name].diagnosis()
    assert diagnosis.findings == ()
    assert diagnosis.signature == ""


def test_the_signature_tells_which_limit_was_missed() -> None:
    late = PLANTS["prefill capacity"].diagnosis().signature
    assert late.startswith("TTFT high, TPOT normal (")
    slow = PLANTS["Decode steps"].diagnosis().signature
    assert slow.startswith("TTFT normal, TPOT high (")


def test_a_finding_has_the_numbers_of_the_run() -> None:
    plant = PLANTS["prefill capacity"]
    result = plant.run()
    diagnosis = diagnose(result, evaluate(result, plant.slo), plant.slo)
    lost = diagnosis.losses.of("queue")
    waited_s = (result.requests["start_s"] - result.requests["arrival_s"])[lost].mean()
    first = diagnosis.findings[0]
    assert (first.lost, first.share) == (lost.sum(), lost.mean())
    assert f"They wait {waited_s:.3g} s for admission, then " in first.evidence


def test_contexts_are_what_a_step_takes_for_them() -> None:
    plant = PLANTS["Long contexts"]
    steps = plant.diagnosis().losses.steps
    assert steps is not None
    assert steps.context_s == pytest.approx(1e-6 * steps.batch * steps.context_tokens, rel=1e-6)
    assert steps.step_s == pytest.approx(plant.timing.base_s + steps.context_s, rel=1e-6)
    assert steps.growth > 1.0


def test_without_prefills_nothing_interferes() -> None:
    losses = PLANTS["transfer of KV"].diagnosis().losses
    assert np.nanmax(losses.seconds["interference"]) == 0.0


def test_interference_is_what_prefills_add() -> None:
    """A decode step takes base_s, and a prompt of n tokens in it as much more as its tokens."""
    whole = Workload(np.array([0.0, 0.2]), np.array([100, 2000]), np.array([61, 2]))
    plant = Plant(whole, mixed(1, GPU), Affine(base_s=0.01, per_prefill_token_s=1e-4), {"token_budget": 8192})
    seconds = plant.diagnosis().losses.seconds
    assert seconds["interference"][0] == pytest.approx(0.2, rel=1e-6)
    assert seconds["decode"][0] == pytest.approx(0.6, rel=1e-6)


def test_with_the_log_reduced_causes_are_told_from_what_is_known() -> None:
    plant = replace(PLANTS["prefill capacity"], engine={"log": "reduced"})
    first = plant.diagnosis().findings[0]
    assert first.cause == "queue"
    assert "TTFT limit 1 s" in first.evidence


def test_the_terminal_is_told_the_two_causes_that_cost_most() -> None:
    diagnosis = PLANTS["Prefills stall decodes"].diagnosis()
    diagnosis = replace(diagnosis, findings=tuple(replace(diagnosis.findings[0], lost=lost) for lost in (40, 30, 20)))
    file = io.StringIO()
    Console(file=file, width=80).print(why_table(diagnosis))
    lines = file.getvalue().splitlines()
    assert f"lost  {diagnosis.lost:,} of 200 requests; TTFT normal, TPOT high" in file.getvalue()
    assert [line.split()[0] for line in lines if line[:2].strip().isdigit()] == ["40", "30"]
    assert max(map(len, lines)) <= 80
