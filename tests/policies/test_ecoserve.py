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


# --- fleets -----------------------------------------------------------------------------------------------------------


def fleet(*arrivals_s: float, on_at_start: int, refused: float = 0.1, calm_s: float = 60.0) -> Result:
    """Three instances of a step a second; a start takes 2 s."""
    engine = EngineConfig(token_budget=10, block_tokens=1, watermark=0.0, kv_tokens=400, start_s=2.0)
    spec = ClusterSpec((PoolSpec("all", "mixed", 3, GPU, on_at_start=on_at_start),), LinkSpec(2.0**40))
    policy = EcoServe(ttft_s=2.5, tpot_s=100.0, period_s=1.0, look_s=2.0, refused=refused, calm_s=calm_s)
    result = simulate(trace(*arrivals_s, output=1), spec, MODEL, Affine(base_s=1.0), engine, policy)
    check_result(result)
    return result


def test_a_fleet_grows_where_nobody_takes_the_prompts() -> None:
    """Two of three prompts keep 2.5 s on the only instance. The look at 2 s starts another, which takes one at 5 s. The
    look at 6 s finds that both were full: the third takes one at 9 s.
    """
    result = fleet(0, 0, 0, 4, 4, 4, 4, 4, 9, 9, 9, 9, 9, 9, 20, on_at_start=1)
    assert [*result.requests["prefill_instance"][:3]] == [0, 0, 0]
    assert set(result.requests["prefill_instance"][3:8]) == {0, 1}
    assert set(result.requests["prefill_instance"][8:14]) == {0, 1, 2}
    lazy = fleet(0, 0, 0, 4, 4, 4, 4, 4, 9, 9, 9, 9, 9, 9, 20, on_at_start=1, refused=0.7)
    assert set(lazy.requests["prefill_instance"]) == {0}


def test_a_fleet_shrinks_after_a_time_in_which_all_was_taken() -> None:
    """All are taken. At 6 s, the first look after 5 s, instance 1 of two goes off; the third is off all the time."""
    result = fleet(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, on_at_start=2, calm_s=5.0)
    assert [*result.instances["off_s"]] == [0.0, 5.0, 11.0]
