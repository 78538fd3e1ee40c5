"""`engine.implementation`: each policy fares alike in the compiled engine and in the reference one; what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.cli.explain import explain
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, PolicyError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.policy import Plan, Policy, decision
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.run.compose import compose
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.conftest import ROOT
from tests.golden.configurations import EXACT
from tests.helpers.bounds import server
from tests.helpers.composing import configured
from tests.helpers.differences import differences
from tests.helpers.quick import one_in
from tests.helpers.recovery import step_times, token_times
from tests.helpers.scenarios import MODEL, RowTiming

INEXACT = ("nexus",)  # slowdowns by the percent of the SMs are quotients
POLICIES = sorted(path.stem for path in (ROOT / "conf" / "policy").glob("*.yaml"))
TOTALS = ("steps", "decode_steps", "prefill_tokens", "decode_tokens", "drafted_tokens", "accepted_tokens")
TIMING = RowTiming({"gpu": StepRow(base_s=2.0**-7, per_prefill_token_s=2.0**-10, per_context_token_s=2.0**-14)})
MIXED = ClusterSpec((PoolSpec("all", "mixed", 2, server("gpu", 1000)),), LinkSpec(2.0**20))
COMPILED = EngineConfig(token_budget=64, max_batch=4, kv_fraction=1.0)
REFERENCE = replace(COMPILED, implementation="reference")
SLO = Slo(ttft_s=0.25, tpot_s=0.0625)


def outcome(result: Result) -> dict[str, Any]:
    """The requests table, every step and every token, and whole numbers of the totals."""
    rows = {name: result.requests[name].tolist() for name in result.requests.dtype.names or () if name != "reason"}
    return {
        "requests": {name: [None if value != value else value for value in column] for name, column in rows.items()},
        "reasons": [result.reasons[row["reason"]] for row in result.requests],
        "steps": step_times(result),
        "tokens": token_times(result),
        "instances": {name: result.instances[name].tolist() for name in TOTALS},
        "tiers": result.tiers["hit_tokens"].tolist(),
    }


def run_configured(policy: str, implementation: str) -> Result:
    """40 requests, or turns, of the golden run of a policy; its step times are dyadic."""
    words = [word for word in EXACT[policy].overrides if not word.startswith("trace.requests=")]
    return compose(configured(*words, "trace.requests=40", f"engine.implementation={implementation}")).run()


def play(policy: Policy, engine: EngineConfig, count: int = 24) -> Result:
    workload = Workload(
        np.array([k * 2.0**-6 for k in range(count)]), 8 + np.arange(count) * 7 % 50, 1 + np.arange(count) * 5 % 23
    )
    result = simulate(workload, MIXED, MODEL, TIMING, engine, policy)
    check_result(result)
    return result


@pytest.mark.parametrize("policy", one_in(3, POLICIES))
def test_every_policy_fares_alike_in_both(policy: str) -> None:
    reference, compiled = (outcome(run_configured(policy, name)) for name in ("reference", "compiled"))
    tolerance = 1e-9 if policy in INEXACT else 0.0
    assert not differences(reference, compiled, tolerance)


class InPython(Policy):
    """Hooks in Python that look at requests and instances alike."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        held = cluster.instances.kv_tokens + cluster.instances.queued_tokens
        return cluster.instances.argmin(held + cluster.instances.step_s())

    def prioritize(self, queue: Any, cluster: Cluster) -> Any:
        return cluster.requests.input_tokens[queue]

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        return Plan(16 + int(cluster.instances.running[instance]), "decode_first")

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return "long" if request.input_tokens > 54 else True


@decision(observes=True)
def emptier(request: int, view: Any, params: Any, state: Any) -> int:
    """The instance with fewer KV blocks in use, and every so often the other one."""
    state[0] += 1
    first, second = view.instances[0], view.instances[1]
    one = first.total_blocks - first.free_blocks + first.queued_tokens // view.options[0].block_tokens
    two = second.total_blocks - second.free_blocks + second.queued_tokens // view.options[0].block_tokens
    nearer = 0 if one <= two else 1
    return 1 - nearer if state[0] % params[0] == 0.0 else nearer


class Ticking(Policy):
    """Has a period, and nothing to do at its ticks."""

    tick_s = 2.0**-5


class ByRule(Policy):
    """A compiled rule with a parameter and a state of its own."""

    route_prefill = emptier
    route_decode = emptier
    compiled_params = (5.0,)


@pytest.mark.parametrize("policy", [InPython, ByRule, Ticking, Policy])
def test_hooks_see_and_decide_the_same(policy: type[Policy]) -> None:
    reference = play(policy(), REFERENCE)
    assert outcome(reference) == outcome(play(policy(), COMPILED))
    assert len(set(reference.requests["prefill_instance"].tolist()) - {-1}) == 2


def test_metrics_read_the_result_of_either() -> None:
    reference, compiled = (evaluate(play(InPython(), engine), SLO) for engine in (REFERENCE, COMPILED))
    assert reference.requests.equals(compiled.requests)
    assert reference.summary["rejected"] > 0
    for name, value in compiled.summary.items():
        if isinstance(value, float):
            assert reference.summary[name] == pytest.approx(value, rel=1e-9, nan_ok=True), name


def test_what_a_policy_raises_comes_out_as_it_is() -> None:
    class Fails(Policy):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        play(Fails(), REFERENCE)


@pytest.mark.parametrize("engine", [REFERENCE, COMPILED])
def test_a_hook_that_would_end_the_process_ends_the_run_and_says_where(engine: EngineConfig) -> None:
    class Quits(Policy):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            sys.exit(0)

    with pytest.raises(RuntimeError, match=r"sys\.exit\(0\) would end the process") as raised:
        play(Quits(), engine)
    assert str(explain(raised.value)).startswith("policy Quits: route_prefill for request 0 at ")


@pytest.mark.parametrize("answer", [2, -1, "there"])
def test_an_answer_that_cannot_be_used_is_refused_alike(answer: Any) -> None:
    class Wrong(Policy):
        def route_prefill(self, request: Request, cluster: Cluster) -> Any:
            return answer

    said = []
    for engine in (REFERENCE, COMPILED):
        with pytest.raises(PolicyError) as error:
            play(Wrong(), engine)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_long_runs_are_refused() -> None:
    with pytest.raises(InputError, match="20000 requests at most, not 20001"):
        play(Policy(), REFERENCE, 20_001)


def test_a_reduced_log_is_refused() -> None:
    with pytest.raises(InputError, match=r"keeps the whole step log; set engine\.log=full"):
        EngineConfig(implementation="reference", log="reduced")


def test_an_engine_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine\.implementation"):
        EngineConfig(implementation="quick")  # type: ignore[arg-type]
