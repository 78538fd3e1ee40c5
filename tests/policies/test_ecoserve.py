"""Phases in turn and rolling activation, on instances whose steps last a second."""

from __future__ import annotations

import numpy as np

from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.affine import Affine
from framework.workload import Workload
from policies.ecoserve import EcoServe
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL

GPU = server("g", 4000)


def play(workload: Workload, policy: EcoServe) -> Result:
    engine = EngineConfig(token_budget=10, block_tokens=1, watermark=0.0, kv_tokens=400)
    spec = ClusterSpec((PoolSpec("all", "mixed", 2, GPU),), LinkSpec(2.0**40))
    result = simulate(workload, spec, MODEL, Affine(base_s=1.0), engine, policy)
    check_result(result)
    return result


def trace(*arrivals_s: float, output: int) -> Workload:
    count = len(arrivals_s)
    return Workload(np.array(arrivals_s), np.full(count, 10), np.full(count, output))


def test_the_active_instance_takes_what_keeps_its_ttft() -> None:
    """A prompt takes a second; the third of three at once would wait for longer than 2.5 s."""
    result = play(trace(0, 0, 0, output=1), EcoServe(ttft_s=2.5, tpot_s=2.0))
    assert [*result.requests["prefill_instance"]] == [0, 0, 1]


def test_a_prefill_waits_for_time_saved() -> None:
    """At 3 request 0 has had three tokens, two of them in two seconds: at 2 s a token 4 s are saved, at 0.9 s 0.7 s."""
    for tpot_s, place in ((2.0, 0), (0.9, 1)):
        result = play(trace(0, 3, output=10), EcoServe(ttft_s=100.0, tpot_s=tpot_s))
        assert [*result.requests["prefill_instance"]] == [0, place]


def test_no_step_prefills_and_decodes() -> None:
    result = play(trace(*np.arange(30) / 2, output=7), EcoServe(ttft_s=5.0, tpot_s=1.5))
    assert not np.any((result.step_log["prefill_tokens"] > 0) & (result.step_log["batch"] > 0))
    assert result.instances["transferred_bytes"].sum() == 0


def test_arrivals_of_one_instant_see_each_other() -> None:
    """A prompt that waits for a second behind its own prefill has no time left at 0.5 s a token: each has an instance
    of its own, though nothing decodes yet. At 1.5 s a token both are prefilled by one, right after each other.
    """
    for tpot_s, places, first_token_s in ((0.5, [0, 1], [1, 1]), (1.5, [0, 0], [1, 2])):
        result = play(trace(0, 0, output=10), EcoServe(ttft_s=100.0, tpot_s=tpot_s))
        assert [*result.requests["prefill_instance"]] == places
        assert [*result.requests["first_token_s"]] == first_token_s


def test_what_nobody_could_take_waits_for_time_saved() -> None:
    """Two prompts on each instance leave no time for a fifth. On instance 0 the first one has saved a second, which the
    prefill takes, with its fourth token, at 5 s.
    """
    result = play(trace(0, 0, 0, 0, 0, output=10), EcoServe(ttft_s=100.0, tpot_s=1.25, period_s=1.0))
    assert [*result.requests["prefill_instance"]] == [0, 0, 1, 1, 0]
    assert [*result.requests["first_token_s"]] == [1, 2, 1, 2, 6]
