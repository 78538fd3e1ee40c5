"""What crashes cost a run, by hand in both engines, and crashes at rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.metrics.service.crashes import next_tokens_s, recoveries_s
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, RankChoice
from framework.system.faults import Crash, LinkFault
from framework.system.parallelism import Parallelism
from framework.system.random_faults import RandomFaults
from tests.engine.test_faults import GPU, Placed, play, trace
from tests.helpers.recovery import token_times

ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])


@ENGINES
def test_what_a_crash_took_and_when_requests_went_on(engine: str) -> None:
    """Request 0 has 2 + 2 tokens, of which the last is in no KV, when instance 0 crashes at 2.5 s; its next token comes
    at 4 s. Of 2 x 7 s instance 0 is down for 3.
    """
    result = play(engine, trace((0, 2, 6), (0, 2, 6)), Placed(), [Crash(2.5, 0, 3.0)])
    found = summarize(result, Slo())
    assert found["availability"] == pytest.approx(1 - 3 / 14)
    assert (found["dropped"], found["lost_tokens"]) == (1, 3)
    assert found["median_recovery_s"] == found["p99_recovery_s"] == pytest.approx(1.5)
    row = {"at_s": 2.5, "instance": 0, "instances": 1, "down_s": 3.0, "dropped": 1}
    assert found["crashes"] == [row | {"lost_tokens": 3, "settled_s": 1.5}]


@ENGINES
def test_recovery_begins_with_the_crash_that_nobody_notices(engine: str) -> None:
    """Instance 0 hangs from 2.5 to 4.25 s; the next tokens of request 0, and of 2, which came at 3 s, are at 6 s."""
    crash = Crash(2.5, 0, 3.0, detected_after_s=1.75)
    result = play(engine, trace((0, 2, 4), (0, 2, 6), (3.0, 2, 1)), Placed(), [crash])
    found = summarize(result, Slo())
    assert token_times(result) == [[1, 2, 6, 7], [1, 2, 3, 4, 5, 7], [6]]
    assert recoveries_s(result, next_tokens_s(result)).tolist() == [3.5, 3.0]
    assert found["availability"] == pytest.approx(1 - (7 - 2.5) / 14)
    assert (found["crashes"][0]["detected_after_s"], found["crashes"][0]["settled_s"]) == (1.75, 3.5)


@ENGINES
def test_a_hang_that_outlasts_the_run_is_no_time_in_which_the_instance_was_up(engine: str) -> None:
    """Instance 0 hangs from 3.5 s on, empty; the other one answers until 7 s. Nobody has noticed it by then."""
    crash = Crash(3.5, 0, 3.0, detected_after_s=10.0)
    result = play(engine, trace((0, 2, 2), (0, 2, 7)), Placed(), [crash])
    found = summarize(result, Slo())
    assert (result.end_s, found["crashes"]) == (7.0, [])
    assert found["availability"] == pytest.approx(1 - 3.5 / 14)
    before = Crash(0.25, 1, 3.0, detected_after_s=10.0)  # no request has come by then
    assert summarize(play(engine, trace((0.5, 2, 2)), Placed(), [before]), Slo())["availability"] == 0.5


def test_faults_of_networks_are_told_that_had_begun_by_the_last_answer() -> None:
    links = [LinkFault(0.5, 1, 1.0, 0.5), LinkFault(90.0, 0, 1.0, 0.25)]
    found = summarize(play("compiled", trace((0, 2, 3)), Placed(), [], links=links), Slo())
    assert found["link_faults"] == [{"at_s": 0.5, "instance": 1, "for_s": 1.0, "share": 0.5}]
    assert "slowdowns" not in found


@ENGINES
def test_requests_that_fail_recover_never(engine: str) -> None:
    """Both fail at once, at 1.5 s: nothing recovers, and the crash is over at once."""
    result = play(engine, trace((0, 2, 4), (0, 2, 4)), Placed(), [Crash(1.5, 0, 2.0)], "mixed", "fail")
    found = summarize(result, Slo())
    assert (found["dropped"], found["lost_tokens"], found["median_recovery_s"]) == (2, 4, None)
    assert found["crashes"][0]["settled_s"] == 0.0


@ENGINES
def test_each_drop_of_a_request_recovers_by_itself(engine: str) -> None:
    """Instance 0 is down from 1.5 to 2 s and from 3.5 to 4 s. The tokens come at 1, 3, 5 and 6 s. Request 1 comes at
    1.25 s, waits at the first crash and has lost nothing then.
    """
    crashes = [Crash(1.5, 0, 0.5), Crash(3.5, 0, 0.5)]
    result = play(engine, trace((0, 2, 4), (1.25, 3, 2)), Placed(), crashes, "mixed")
    assert token_times(result) == [[1, 3, 5, 6], [3, 5]]
    assert recoveries_s(result, next_tokens_s(result)).tolist() == [1.5, 1.5, 1.5, 1.5]
    assert result.drops["lost_tokens"].tolist() == [2, 0, 3, 3]
    assert summarize(result, Slo())["availability"] == pytest.approx(1 - 1 / 6)


@pytest.mark.parametrize("log", ["full", "reduced"])
def test_without_the_logs_recovery_is_not_known(log: str) -> None:
    result = play("compiled", trace((0, 2, 4)), Placed(), [Crash(1.5, 0, 2.0)], "mixed", log=log)
    found = summarize(result, Slo())
    assert found["lost_tokens"] == 2
    assert (found["median_recovery_s"] is None) == (found["crashes"][0]["settled_s"] is None) == (log == "reduced")


def test_a_run_in_which_nothing_may_crash_has_none_of_it() -> None:
    result = play("compiled", trace((0, 2, 4)), Placed(), [], "mixed")
    assert summarize(result, Slo())["availability"] == 1.0
    assert "availability" not in summarize(_calm(), Slo())


def test_rates_are_those_asked_for() -> None:
    """100 instances of four GPUs, up for 1,000 s on average and down for 100 s: some 9,000 crashes in 100,000 s."""
    crashes = RandomFaults(gpu_mtbf_s=4000.0, down_s=100.0, until_s=1e5, seed=1).schedule(_cluster(100, tp=4)).crashes
    up_s = np.concatenate([np.diff([-100.0, *own]) - 100.0 for own in _by_instance(crashes, 100)])
    assert len(crashes) == pytest.approx(100 * 1e5 / 1100, rel=0.04)
    assert up_s.mean() == pytest.approx(1000, rel=0.05)
    assert up_s.std() == pytest.approx(up_s.mean(), rel=0.05)  # as exponential times have it
    assert [one.at_s for one in crashes] == sorted(one.at_s for one in crashes)
    assert {one.down_s for one in crashes} == {100.0}


def test_the_seed_decides() -> None:
    def drawn(seed: int, instances: int = 4) -> list[Crash]:
        faults = RandomFaults(gpu_mtbf_s=50.0, down_s=1.0, until_s=1000.0, seed=seed)
        return list(faults.schedule(_cluster(instances)).crashes)

    assert drawn(0) == drawn(0) != drawn(1)
    assert [one for one in drawn(0, 8) if one.instance < 4] == drawn(0), "another instance changes nothing"


def test_slow_downs_come_at_their_rate() -> None:
    """100 instances of four GPUs, fast for 900 s on average and slow for 100 s: 100 of each in 100,000 s."""
    faults = RandomFaults(gpu_mtbf_s=None, down_s=1.0, until_s=1e5, gpu_slow_mtbf_s=3600.0, slow_for_s=100.0, seed=3)
    found = faults.schedule(_cluster(100, tp=4))
    assert found.crashes == ()
    assert len(found.slowdowns) == pytest.approx(10_000, rel=0.03)
    assert list(found.slowdowns) == sorted(found.slowdowns)
    assert {(one.for_s, one.factor) for one in found.slowdowns} == {(100.0, 1.34)}


def test_faults_of_networks_come_at_their_rate() -> None:
    """100 networks, whole for 900 s on average and with a quarter of their bandwidth for 100 s."""
    faults = RandomFaults(
        gpu_mtbf_s=None, down_s=1.0, until_s=1e5, link_mtbf_s=900.0, link_for_s=100.0, link_share=0.25, seed=3
    )
    found = faults.schedule(_cluster(100, tp=4))
    assert (found.crashes, found.slowdowns) == ((), ())
    assert len(found.links) == pytest.approx(10_000, rel=0.03)
    assert {(one.for_s, one.share) for one in found.links} == {(100.0, 0.25)}


def test_restarts_fail_at_their_rate() -> None:
    """Half of the restarts fail: an instance is down for twice `down_s` on average, by whole ones."""
    faults = RandomFaults(gpu_mtbf_s=400.0, down_s=3.0, until_s=1e4, detected_after_s=2.0, start_fails=0.5, seed=1)
    crashes = faults.schedule(_cluster(100)).crashes
    down_s = np.array([one.down_s for one in crashes])
    assert set(np.unique(down_s % 3.0)) == {0.0}
    assert down_s.mean() == pytest.approx(6.0, rel=0.1)
    assert {one.detected_after_s for one in crashes} == {2.0}
    assert len(crashes) == pytest.approx(100 * 1e4 / 408, rel=0.05)


def test_ranks_that_step_together_crash_as_one() -> None:
    crashes = RandomFaults(gpu_mtbf_s=40.0, down_s=1.0, until_s=1000.0).schedule(_cluster(4, dp=2)).crashes
    assert {one.instance for one in crashes} == {0, 2}
    assert len(crashes) == pytest.approx(2 * 1000 / 21, rel=0.2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu_mtbf_s": 1e-3}, "faults; 100000 are allowed: raise gpu_mtbf_s, or lower until_s"),
        ({"down_s": 0.0}, "engine.faults.down_s must be"),
        ({"recovery": "later"}, "engine.faults.recovery must be"),
    ],
)
def test_rates_out_of_range_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        RandomFaults(**{"gpu_mtbf_s": 1.0, "down_s": 1e-3, "until_s": 1e6} | given).schedule(_cluster(4))


def _calm() -> Any:
    from framework.engine.setup.config import EngineConfig
    from framework.simulate import simulate
    from tests.engine.test_faults import TIMING
    from tests.helpers.scenarios import MODEL

    config = EngineConfig(block_tokens=1, kv_tokens=100)
    return simulate(trace((0, 2, 4)), _cluster(1), MODEL, TIMING, config)


def _cluster(instances: int, tp: int = 1, dp: int = 1) -> ClusterSpec:
    choice: RankChoice = "routed" if dp > 1 else "even"
    pool = PoolSpec("all", "mixed", instances, GPU, Parallelism(tp=tp, dp=dp), rank_choice=choice)
    return ClusterSpec((pool,), LinkSpec(2.0**60))


def _by_instance(crashes: tuple[Crash, ...], instances: int) -> list[list[float]]:
    return [[one.at_s for one in crashes if one.instance == i] for i in range(instances)]
