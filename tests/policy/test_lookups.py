"""What compiled rules ask of an engine: in machine code the same as in plain Python, at any time of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.compiler.decorators import compiled
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.policy import Aggregated, Plan, decision
from framework.policy.hooks import decode_plan
from framework.policy.view import Cluster, Floats, Request, View
from framework.replay import lookups
from framework.replay.lookups import InterpretedEngine, as_plan, callable_with
from framework.simulate import simulate
from servelab.testing.recording import digest
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS, TIMING

SHARING = Sharing(40, {20: 4.0, 50: 1.6, 100: 1.0}, {20: 2.0, 60: 1.1, 100: 1.0})
LOOKED = 12


@compiled
def looked(engine: Any, i: int, r: int, seen: Floats) -> int:
    """Everything that can be asked about an instance and a request."""
    inst, prompt = lookups.instance_of(engine, i), lookups.request_of(engine, r).input_tokens
    cached = lookups.cached_tokens(engine, i, r)
    seen[0], seen[1], seen[2] = lookups.now_s(engine), inst.queued_tokens, prompt
    seen[3], seen[4] = cached, lookups.prefill_s(engine, i, cached, prompt, 64)
    seen[5], seen[6] = lookups.step_s(engine, i, prompt, 3, 700), lookups.step_s(engine, i, 0, inst.running, 900)
    seen[7], seen[8] = lookups.streams_s(engine, i)
    seen[9], seen[10] = lookups.prefill_slowdown(engine, 30), lookups.decode_slowdown(engine, 30)
    seen[11] = as_plan(30, 512, 6)
    return cached


class Looking(Aggregated):
    """Looks at every instance whenever a request is routed; two streams share each instance."""

    batching_mode = "concurrent"
    shares_gpus = True

    def __init__(self) -> None:
        self.seen: list[Floats] = []
        self.plain: list[Floats] = []

    def prepare(self, cluster: Cluster) -> None:
        self.engine = cluster.view.engine
        self.looked = callable_with(self.engine, looked)
        self.in_python = InterpretedEngine(cluster._engine, SHARING.slowdowns())

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        for i in range(len(cluster.instances)):
            seen, plain = np.zeros(LOOKED), np.zeros(LOOKED)
            self.looked(self.engine, i, request.id, seen)
            callable_with(self.in_python, looked)(self.in_python, i, request.id, plain)
            self.seen.append(seen)
            self.plain.append(plain)
        return request.id % len(cluster.instances)


def play(policy: Aggregated, implementation: Any = "compiled") -> Any:
    scenario = SCENARIOS["prefix stores"]
    engine: dict[str, Any] = vars(scenario.engine) | {"sharing": SHARING, "implementation": implementation}
    return simulate(scenario.workload, CLUSTERS["mixed"], MODEL, TIMING, EngineConfig(**engine), policy)


def test_machine_code_and_python_see_the_same() -> None:
    policy = Looking()
    play(policy)
    seen = np.array(policy.seen)
    assert np.array_equal(seen, np.array(policy.plain))
    varied = [k for k in range(LOOKED) if len(set(seen[:, k])) > 1]
    assert varied == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert decode_plan(int(seen[0, 11])) == (30, 512, 6)
    assert seen[0, 9] == pytest.approx(3.2)  # a third of the way from 4.0 at 20 % to 1.6 at 50 %
    assert seen[0, 10] == pytest.approx(1.775)  # a quarter of the way from 2.0 at 20 % to 1.1 at 60 %


def test_both_engines_answer_alike() -> None:
    compiled_one, plain_one = Looking(), Looking()
    play(compiled_one)
    play(plain_one, "reference")
    assert np.array_equal(np.array(compiled_one.seen), np.array(plain_one.seen))


# --- what a policy prepares -------------------------------------------------------------------------------------------


@decision(observes=False)
def planned(i: int, view: View, params: Floats, state: Floats) -> int:
    params[i] += 1.0
    return as_plan(0, 256, view.instances[i].mode)


class Planned(Aggregated):
    """Counts how often each instance is planned, in an array that is shared with its rule."""

    def __init__(self) -> None:
        vars(self)["batching"] = planned

    def prepare(self, cluster: Cluster) -> None:
        self.compiled_params = np.zeros(len(cluster.instances))


class PlannedPlainly(Aggregated):
    def batching(self, instance: int, cluster: Cluster) -> Plan:
        return Plan(256, "decode_first")


def test_a_compiled_plan_and_the_numbers_that_a_policy_shares_with_its_rules() -> None:
    policy = Planned()
    scenario = SCENARIOS["roomy"]
    engine = EngineConfig(**(vars(scenario.engine) | {"batching": "decode_first"}))
    by_rule, plainly = (
        simulate(scenario.workload, CLUSTERS["mixed"], MODEL, TIMING, engine, chosen)
        for chosen in (policy, PlannedPlainly())
    )
    assert digest(by_rule) == digest(plainly)
    assert np.all(np.asarray(policy.compiled_params) > 10.0)
