"""The seconds that figures are over, by hand: one instance, a request at a time, every step 1 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.load import Closed, Load, Open
from framework.metrics.clock import Clock, clock_of
from framework.metrics.service.late_turns import sent_in_time
from framework.metrics.slo import Slo, judge
from framework.metrics.usage import gpus_on, pool_table, price_usd_per_hour, usage
from framework.policy import Plan, Policy
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.results import GPU, REQUEST_FIELDS, records, small_result
from tests.helpers.scenarios import MODEL, RowTiming

STEP = RowTiming({GPU.name: StepRow(base_s=1.0)})
ENGINE = EngineConfig(max_batch=1, kv_tokens=64, block_tokens=1, watermark=0.0)
SLO = Slo(ttft_s=2.0, tpot_s=1.0)  # of requests of two tokens, which take 2 s, it allows 3 s


class Some(Policy):
    """Turns away the requests of these numbers, on arrival."""

    refused: tuple[int, ...] = ()

    def admit(self, request: Any, cluster: Any) -> bool:
        return request.id not in self.refused


def play(arrival_s: list[float], load: Load, refused: tuple[int, ...] = (), output: int = 2) -> Result:
    """Requests of one token of prompt and so many of output."""
    policy = Some()
    policy.refused = refused
    count = len(arrival_s)
    workload = Workload(np.array(arrival_s), np.ones(count, np.int64), np.full(count, output))
    return simulate(workload, mixed(1, GPU), MODEL, STEP, ENGINE, policy, load=load)


def two_seconds_each(some: np.ndarray[Any, Any]) -> float:
    return 2.0 * float(np.count_nonzero(some))


def window(result: Result, slo: Slo = SLO) -> tuple[float, str]:
    clock = clock_of(result, slo, two_seconds_each)
    return clock.window_s, clock.name


def test_an_open_load_lasts_from_the_first_to_the_last_arrival_whoever_is_served() -> None:
    arrivals_s = [1.0, 4.0, 9.0]
    for refused in ((), (0,), (2,), (0, 1, 2)):
        assert window(play(arrivals_s, Open(), refused)) == (8.0, "first to last arrival")


def test_no_shorter_than_what_the_slo_allows_one_request_or_any_schedule_takes() -> None:
    assert window(play([1.0, 2.0], Open())) == (4.0, "shortest time for all that was offered")
    assert window(play([1.0], Open())) == (3.0, "what the SLO allows one request")
    for refused in ((), (1,), (0, 1)):  # two take 4 s at least
        assert window(play([1.0, 1.0], Open(), refused))[0] == 4.0


def test_without_a_limit_what_is_turned_away_counts_as_if_it_was_served_behind_the_rest() -> None:
    """Three take 6 s. Two take 4 s, and the third half as long as both; with one refused it is the same for each."""
    no_limit = Slo(None, None)
    assert window(play([0.0] * 3, Open()), no_limit) == (6.0, "first request to last answer")
    for refused in ((1,), (0, 1)):
        window_s, name = window(play([0.0] * 3, Open(), refused), no_limit)
        # of one served in 2 s: no shorter than the 6 s that all take at least, and twice as long for two more
        assert window_s == {1: 6.0 * (1 + 2 / 4), 2: 6.0 * (1 + 4 / 2)}[len(refused)]
        assert name.endswith("longer for what was not served")


def test_a_closed_load_lasts_as_long_as_it_says() -> None:
    """One client sends at 0, 2, 4 and 6 s, and not at 8 s."""
    result = play([0.0] * 9, Closed(1, duration_s=7.0, backoff_s=1.0))
    assert result.requests["arrival_s"].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert window(result) == (8.0, "shortest time for all that was offered")  # which four take
    assert window(play([0.0] * 9, Closed(1, duration_s=8.0, backoff_s=1.0))) == (8.0, "duration of the load")


def test_clients_that_run_out_of_requests_have_sent_until_the_last_of_them() -> None:
    """Two clients in turn at one seat: at 0, 0, 2 and 4 s. Four requests take 8 s at least."""
    for load in (Closed(2), Closed(2, duration_s=100.0, backoff_s=1.0)):
        result = play([0.0] * 4, load)
        assert result.requests["arrival_s"].tolist() == [0.0, 0.0, 2.0, 4.0]
        assert clock_of(result, SLO).window_s == 4.0
        assert window(result)[0] == 8.0


def test_a_client_that_is_refused_returns_with_the_same_request() -> None:
    """It is sent at 0, 3 and 6 s, and not at 9 s; what it would have sent next never is."""
    result = play([0.0] * 3, Closed(1, duration_s=9.0, backoff_s=3.0), refused=(0,))
    assert result.requests["arrival_s"].tolist() == [0.0]
    assert result.requests["end_s"].tolist() == [6.0]
    assert window(result) == (9.0, "duration of the load")


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_what_no_client_could_send_any_more_is_no_request_of_the_load(implementation: Any) -> None:
    """From 3 s on no prompt is computed: the second request, of 2 s, waits for ever, and its client with it."""

    class Stops(Policy):
        def batching(self, instance: int, cluster: Any) -> Any:
            return Plan(64, "decode_only" if cluster.now_s >= 2.0 else "decode_first")

    workload = Workload(np.zeros(4), np.ones(4, np.int64), np.full(4, 2))
    engine = EngineConfig(max_batch=1, kv_tokens=64, block_tokens=1, watermark=0.0, implementation=implementation)
    load = Closed(1, duration_s=9.0, backoff_s=1.0)
    result = simulate(workload, mixed(1, GPU), MODEL, STEP, engine, Stops(), load=load)
    assert result.requests["state"].tolist() == [1, 3]
    assert [result.reasons[reason] for reason in result.requests["reason"]] == ["", "stalled"]
    clock = clock_of(result, SLO)  # the second is overdue from 2 + 2 x 3 s on
    assert clock.overdue == 1 / 9
    assert clock.window_s == pytest.approx(9 / (1 - 1 / 9))


def test_the_time_of_clients_that_wait_in_vain_makes_the_window_longer() -> None:
    """Two clients, one of which is refused each second, from 0 to 9 s: overdue for 3 of the 20 s of both, and in a
    window that begins at 7 s for 2 of 6.
    """
    for warmup_s, overdue in ((0.0, 3 / 20), (7.0, 2 / 6)):
        clock = clock_of(play([0.0] * 9, Closed(2, 10.0, 1.0, warmup_s), refused=(0,)), SLO)
        assert clock.overdue == overdue
        assert clock.name.endswith("longer for clients that were kept waiting")
    result = play([0.0] * 9, Closed(2, 10.0, 1.0), refused=(0,))
    assert clock_of(result, Slo(2.0, None)).overdue == 0.0  # nothing says how long two tokens may take
    assert clock_of(result, Slo(None, None, normalized_s=1.0)).overdue == 5 / 20
    assert clock_of(play([0.0, 9.0], Open()), SLO).overdue is None


@pytest.mark.parametrize(
    ("slo", "allowed"),
    [
        (SLO, [2.0, 5.0]),
        (Slo(2.0, None), [2.0, np.inf]),
        (Slo(None, 1.0), [np.inf, np.inf]),
        (Slo(2.0, 1.0, normalized_s=1.5), [1.5, 5.0]),
        (Slo(None, None, normalized_s=1.5), [1.5, 6.0]),
    ],
)
def test_what_the_slo_allows_a_request_of_one_token_and_of_four(slo: Slo, allowed: list[float]) -> None:
    assert slo.allowed_s(Workload(np.zeros(2), np.ones(2, np.int64), np.array([1, 4]))).tolist() == allowed


@pytest.mark.parametrize(
    ("between", "load", "good"),
    [(2, Open(), True), (3, Open(), False), (3, Closed(2, 60.0, 1.0), True)],
)
def test_a_turn_is_in_time_if_those_before_it_took_no_more_than_twice_what_they_may(
    between: int, load: Load, good: bool
) -> None:
    """Turns take 1 s, and may take 1 s. The second one waits for the steps of another request: it ends 3 s after it was
    sent, or 4 s, so that both before the third take 4 s or 5 s. Clients of a closed load are overdue instead.
    """
    previous = np.array([-1, -1, 0, 2])
    outputs = np.array([1, between, 1, 1])
    ones = np.ones(4, np.int64)
    workload = Workload(np.zeros(4), ones, outputs, previous=previous, think_s=np.zeros(4))
    result = simulate(workload, mixed(1, GPU), MODEL, STEP, ENGINE, Some(), load=load)
    assert result.requests["end_s"].tolist() == [1.0, 1.0 + between, 2.0 + between, 3.0 + between]
    judged = judge(result, Slo(ttft_s=1.0, tpot_s=5.0))
    assert judged.good.tolist() == [True, False, False, good]
    assert judged.ttft_ok[3]


@pytest.mark.parametrize(("first_s", "in_time"), [(4.0, True), (7.0, False)])
def test_a_call_that_waits_for_two_is_in_time_by_the_later_of_what_they_may_take(first_s: float, in_time: bool) -> None:
    """Its calls may take 1 and 3 s, so it may be sent 6 s after they were, and is sent at 5 or 7 s."""
    requests = records(REQUEST_FIELDS, [{"end_s": end_s} for end_s in (first_s, 5.0, 9.0)])
    ones, joins = np.ones(3, np.int64), np.array([[2, 1]])
    calls: Any = {"previous": np.array([-1, -1, 0]), "joins": joins, "session_id": np.zeros(3, np.int64)}
    workload = Workload(np.zeros(3), ones, ones, think_s=np.zeros(3), **calls)
    result = small_result(workload=workload, requests=requests)
    assert sent_in_time(result, np.array([1.0, 3.0, 1.0])).tolist() == [True, True, in_time]


def test_what_a_warm_up_left_unserved_counts_if_it_is_more_than_elsewhere() -> None:
    """Four of ten are sent in it."""
    arrivals_s, load = [float(k) for k in range(10)], Open(warmup_s=3.5)
    clock = clock_of(play(arrivals_s, load, refused=(0, 1, 3), output=1), SLO)
    assert clock.counted.tolist() == [True, True, False, True] + [True] * 6
    assert clock.window_s == 5.5 * 9 / 6
    assert clock.name == "first to last arrival, longer for what was not served outside it"
    for refused in ((0,), (0, 1, 3, 5, 6, 7), tuple(range(10)), (5,)):
        clock = clock_of(play(arrivals_s, load, refused, output=1), SLO)
        assert clock.counted.tolist() == [False] * 4 + [True] * 6
        assert (clock.window_s, clock.name) == (5.5, "first to last arrival")


def cut(result: Result) -> Clock:
    return clock_of(result, SLO, two_seconds_each)


def test_shares_are_cut_at_the_ends_of_the_window() -> None:
    """Steps from 0 to 1, 1 to 2, 5 to 6, 6 to 7, 9 to 10 and 10 to 11 s; the window lasts from 0 to 9 s."""
    result = play([0.0, 5.0, 9.0], Open())
    (pool,) = pool_table(result, cut(result)).to_dicts()
    assert pool["utilization"] == pytest.approx(4 / 9)
    # a token is held in the first step of each, two in the second: 3 token-seconds each
    assert pool["kv_utilization"] == usage(result, cut(result))["kv_utilization"] == pytest.approx(6 / (64 * 9))


def test_a_step_that_was_under_way_as_the_window_began_is_counted_from_its_start() -> None:
    """A warm-up of 0.5 s: the step from 0 to 1 s ends in the window, which then has 9 s for its work, not 8.5 s."""
    result = play([0.0, 0.75, 5.0, 9.0], Open(warmup_s=0.5))
    clock = cut(result)
    assert clock.counted.tolist() == [False, True, True, True]
    assert (clock.window_s, clock.lengths_s.tolist()) == (8.5, [9.0])
    assert clock.totals["prefill_tokens"].tolist() == [3]  # at 1, 3 and 6 s
    (pool,) = pool_table(result, clock).to_dicts()
    assert pool["utilization"] == pytest.approx((4 + 2 - 0.5) / 8.5)


def test_turning_away_the_last_request_saves_no_money() -> None:
    """The window lasts 9 s, the run 11 s or 9 s: the GPU is paid for all of it, and for no more than it."""
    for refused in ((), (2,)):
        result = play([0.0, 5.0, 9.0], Open(), refused)
        clock = cut(result)
        assert clock.run_s == (9.0 if refused else 11.0)
        assert gpus_on(result, clock) == 1.0
        assert price_usd_per_hour(result, clock) * clock.window_s == pytest.approx(3.0 * 9)
        assert usage(result, clock)["cost_usd"] == pytest.approx(3.0 * clock.run_s / 3600)


def test_a_run_that_is_over_before_the_window_has_as_many_gpus_on_in_the_rest_of_it() -> None:
    """All is refused at once: the run takes no time, and the window the 3 s that the SLO allows."""
    result = play([0.0, 1.0], Open(), refused=(0, 1))
    clock = cut(result)
    assert (clock.run_s, clock.window_s) == (1.0, 4.0)
    assert gpus_on(result, clock) == 1.0
    assert price_usd_per_hour(result, clock) * clock.window_s == pytest.approx(3.0 * 4)
