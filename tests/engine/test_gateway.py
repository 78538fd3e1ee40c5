"""Requests that wait at a gateway, worked out by hand in both engines: a step lasts 1 s, an instance has one seat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Closed, Load, Open, Patience
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate, summarize
from framework.policy import Aggregated, Policy, Preempt
from framework.policy.reports import Views
from framework.policy.view import Cluster, Request
from framework.reference import loop
from framework.reference.simulation import Simulation
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.gateway import Gateway
from framework.workload import Workload
from tests.engine.test_decisions import ENGINES, GPU, TIMING, Rows, ends
from tests.helpers.agreement import drawn
from tests.helpers.differences import run_reference
from tests.helpers.scenarios import MODEL

ONE_WAITS = Gateway("utilization", queue_threshold=1.0)  # on the instance; the others wait at the gateway
FOUR: Rows = [(0, 2, 3), (0.25, 2, 2), (0.5, 2, 2), (0.75, 2, 2)]


def play(
    engine: str,
    rows: Rows,
    gateway: Gateway = ONE_WAITS,
    policy: Policy | None = None,
    load: Load | None = None,
    instances: int = 1,
    views: Views | None = None,
    **columns: Any,
) -> Result:
    """100 tokens of KV, 10 tokens a step."""
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    config = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=100, token_budget=10, max_batch=1, gateway=gateway)
    result = simulate(
        Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs), **columns),
        ClusterSpec((PoolSpec("mixed", "mixed", instances, GPU),), LinkSpec(32.0)),
        MODEL,
        TIMING,
        replace(config, implementation=engine, views=views or Views()),  # type: ignore[arg-type]
        policy or Aggregated(),
        load=load,
    )
    check_result(result)
    return result


def waits(result: Result) -> list[float]:
    """Seconds at the gateway."""
    return [float(one) for one in result.gated_s]


@ENGINES
def test_requests_wait_until_the_instance_has_none_that_waits(engine: str) -> None:
    """0 has the seat up to 3 s, 1 waits for it there, and when 1 has it, 2 is sent."""
    result = play(engine, FOUR)
    assert waits(result) == [0, 0, 2.5, 4.25]
    assert [end for _, _, end in ends(result)] == [3, 5, 7, 9]
    summary = summarize(result, Slo())
    assert summary["mean_gateway_ms"] == pytest.approx(1687.5)
    assert (summary["shed"], summary["expired"], summary["gateway"]) == (0, 0, [])
    assert evaluate(result, Slo()).requests["gateway_s"].to_list() == [0, 0, 2.5, 4.25]


@ENGINES
def test_the_first_band_is_released_first(engine: str) -> None:
    assert waits(play(engine, FOUR, priority=np.array([0, 0, 0, 1]))) == [0, 0, 4.5, 2.25]
    by_class = replace(ONE_WAITS, bands_by="slo_class", band_order=["chat", "batch"])
    assert waits(play(engine, FOUR, by_class, slo_class=("x", "x", "batch", "chat"))) == [0, 0, 4.5, 2.25]
    assert waits(play(engine, FOUR, by_class, slo_class=("x", "x", "x", "batch"))) == [0, 0, 4.5, 2.25]


@ENGINES
def test_tenants_take_turns(engine: str) -> None:
    assert waits(play(engine, FOUR, tenant=("a", "a", "a", "b"))) == [0, 0, 2.5, 4.25]
    in_turn = replace(ONE_WAITS, fairness="round_robin")
    assert waits(play(engine, FOUR, in_turn, tenant=("a", "a", "a", "b"))) == [0, 0, 4.5, 2.25]


@ENGINES
def test_the_tenant_with_the_fewest_tokens_is_next(engine: str) -> None:
    """a is charged 4 tokens when b comes, so b begins with 4. The eight of a's next prompt make room for two of b."""
    rows = [(0, 2, 3), (0.25, 2, 2), (0.5, 8, 2), (0.5, 2, 2), (0.5, 2, 2), (0.5, 2, 2)]
    fair = replace(ONE_WAITS, fairness="tokens", output_weight=0.0)
    tenants = ("a", "a", "a", "a", "b", "b")
    assert waits(play(engine, rows, fair, tenant=tenants)) == [0, 0, 2.5, 8.5, 4.5, 6.5]
    # With outputs, 10 tokens by 3 s: b is next until it is charged as many.
    assert waits(play(engine, rows, replace(fair, output_weight=2.0), tenant=tenants)) == [0, 0, 6.5, 8.5, 2.5, 4.5]


@ENGINES
def test_a_tenant_is_charged_for_the_outputs_that_it_got(engine: str) -> None:
    """By 8 s a is charged 4 tokens of prompts and 8 of an output, b has begun with 4."""
    rows = [(0, 2, 8), (0.25, 2, 2), (0.5, 2, 2), (0.5, 2, 2), (0.5, 2, 2)]
    fair = replace(ONE_WAITS, fairness="tokens", output_weight=1.0)
    assert waits(play(engine, rows, fair, tenant=("a", "a", "a", "b", "b"))) == [0, 0, 11.5, 7.5, 9.5]


@ENGINES
def test_the_gateway_sees_kv_that_grows_within_a_leap(engine: str) -> None:
    """One token a second: at 55.5 s more than half of the KV is used, up to 60 s."""
    by_kv = Gateway("utilization", kv_threshold=0.5)
    assert waits(play(engine, [(0, 10, 60), (55.5, 2, 2)], by_kv)) == [0, 4.5]


@ENGINES
def test_a_client_gives_up_before_its_request_expires_at_that_time(engine: str) -> None:
    result = play(engine, FOUR, replace(ONE_WAITS, ttl_s=2.0), load=Open(patience=Patience(2.0)))
    assert ends(result)[2] == ("cancelled", "gave up", 2.5)


@ENGINES
def test_who_has_waited_for_too_long_is_refused(engine: str) -> None:
    result = play(engine, FOUR, replace(ONE_WAITS, ttl_s=3.0), slo_class=("chat", "chat", "chat", "batch"))
    assert ends(result)[2:] == [("finished", "", 7.0), ("rejected", "expired", 3.75)]
    summary = summarize(result, Slo(ttft_s=100.0, tpot_s=None))
    assert (summary["expired"], summary["rejected"], summary["slo_attainment"]) == (1, 1, 0.75)
    batch, chat = summary["gateway"]
    assert (batch["by"], batch["name"], batch["expired"], batch["mean_gateway_ms"]) == ("class", "batch", 1, None)
    assert (chat["name"], chat["expired"], chat["p99_gateway_ms"] > 2000.0) == ("chat", 0, True)
    at_once = play(engine, FOUR, replace(ONE_WAITS, bands={"-1": {"ttl_s": 0.0}}), priority=np.array([0, 0, -1, 0]))
    assert ends(at_once)[2] == ("rejected", "expired", 0.5)
    assert waits(at_once) == [0, 0, 0, 2.25]


@ENGINES
def test_the_last_of_the_last_band_is_shed(engine: str) -> None:
    result = play(engine, FOUR, replace(ONE_WAITS, most_waiting=1), priority=np.array([0, 0, 0, 1]))
    assert ends(result)[2:] == [("rejected", "shed", 0.75), ("finished", "", 7.0)]
    assert ends(play(engine, FOUR, replace(ONE_WAITS, most_waiting=1)))[3] == ("rejected", "shed", 0.75)
    of_band = replace(ONE_WAITS, bands={"1": {"most_waiting": 1}})
    rows = [*FOUR, (0.75, 2, 2)]
    assert ends(play(engine, rows, of_band, priority=np.array([0, 0, 0, 1, 1])))[4] == ("rejected", "shed", 0.75)


@ENGINES
def test_a_client_of_a_closed_load_that_is_refused_sends_again(engine: str) -> None:
    load = Closed(3, duration_s=50.0, backoff_s=3.5)
    result = play(engine, [(0, 2, 3), (0, 2, 2), (0, 2, 2)], replace(ONE_WAITS, ttl_s=0.0), load=load)
    assert [(state, end) for state, _, end in ends(result)] == [("finished", 3.0), ("finished", 5.5), ("finished", 9.0)]


@ENGINES
def test_a_fleet_is_saturated_on_average_or_as_a_whole(engine: str) -> None:
    """90 of 100 tokens of KV are in use on one instance up to 11 s, and none on the other."""

    class First(Aggregated):
        """All prompts go to instance 0."""

        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            return 0

    rows = [(0, 90, 3), (0.25, 2, 2)]
    by_kv = Gateway("utilization", kv_threshold=0.5, queue_threshold=9.0)
    assert waits(play(engine, rows, by_kv, First(), instances=2)) == [0, 0]
    low = replace(by_kv, kv_threshold=0.25)
    assert waits(play(engine, rows, low, First(), instances=2)) == [0, 10.75]
    assert waits(play(engine, rows, replace(low, saturated_at="all"), First(), instances=2)) == [0, 0]


@ENGINES
def test_requests_in_flight_are_counted_where_they_are(engine: str) -> None:
    two = Gateway("in_flight", most_in_flight=1)
    assert waits(play(engine, FOUR, two, instances=2)) == [0, 0, 1.75, 2.25]
    # With old views all go to the first instance, but the gateway knows whom it has sent.
    assert waits(play(engine, FOUR, two, instances=2, views=Views(100.0))) == [0, 0, 2.5, 4.25]


@ENGINES
def test_the_gateway_sees_instances_as_they_last_reported(engine: str) -> None:
    """All that come before a report comes see an empty instance. 3 comes after that of 2 s, which tells of two that
    wait; the next is taken at 4 s, when one waits, and that of 6 s is the first to tell of none."""
    rows = [(0, 2, 3), (0.25, 2, 2), (0.5, 2, 2), (2.75, 2, 2)]
    assert waits(play(engine, rows, views=Views(2.0, 0.5))) == [0, 0, 0, 3.75]
    assert waits(play(engine, rows, views=Views(2.0, 0.5, "on_tick"))) == waits(play(engine, rows))


class Holding(Aggregated):
    """Takes request 0 off with its KV, and never lets it go on."""

    tick_s = 0.5

    def on_tick(self, cluster: Cluster) -> Sequence[Preempt]:
        return [Preempt(0, "kv")] if cluster.now_s == 6.5 else []


@ENGINES
@pytest.mark.parametrize("views", [Views(), Views(1.0, 0.25)])
def test_a_fleet_that_stays_saturated_fails_who_waits(engine: str, views: Views) -> None:
    by_kv = Gateway("utilization", kv_threshold=0.5)
    result = play(engine, [(0, 60, 5), (7.5, 2, 2)], by_kv, Holding(), views=views)
    assert [(state, reason) for state, reason, _ in ends(result)] == [("failed", "stalled")] * 2


@ENGINES
def test_clients_give_up_at_the_gateway_and_come_back(engine: str) -> None:
    """2 is given up at 2 s, comes again at 3.5 s, and is sent at once: 1, which was given up too, has the seat."""
    load = Open(patience=Patience(1.5, retries=1, retry_backoff_s=1.5))
    result = play(engine, [(0, 2, 3), (0.25, 2, 1), (0.5, 2, 2)], load=load)
    assert ends(result)[2] == ("finished", "", 6.25)
    assert waits(result) == [0, 0, 1.5]
    assert result.attempts.tolist() == [1, 2, 2]


def test_nobody_is_lost_at_any_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that has come and not ended is in one place, at the gateway among others."""
    seen = {"waiting": 0, "events": 0}
    tell = vars(loop)["tell"]

    def told(s: Simulation) -> None:
        tell(s)
        assert s.gate is not None
        waiting = s.gate.waiting
        there = [r for r in s.present.values() if r.instance >= 0 or r in s.parked]
        assert len({r.id for r in waiting}) == len(waiting)
        assert not {r.id for r in waiting} & {r.id for r in there}
        assert {r.id for r in waiting} <= set(s.present)
        assert len(s.present) + len(s.ended) <= len(s.requests)
        seen["waiting"] += len(waiting)
        seen["events"] += 1

    monkeypatch.setattr(loop, "tell", told)
    for seed in range(40):
        run_reference(drawn("gateway", seed))
    assert seen["waiting"] > seen["events"] / 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bands_by": "slo_class"}, "gateway.bands_by=slo_class needs gateway.band_order, the first band first"),
        ({"band_order": ["a"]}, "gateway.band_order orders classes or tenants"),
        ({"bands_by": "tenant", "band_order": ["a", "a"]}, "gateway.band_order names a band twice: a, a"),
        ({"bands": {"0": {"ttl": 3}}}, "gateway.bands.0.ttl: no such limit; choose from most_waiting, ttl_s"),
        ({"bands": {"0": {"ttl_s": -1.0}}}, "gateway.bands.0.ttl_s must be a finite number of at least 0"),
        ({"queue_threshold": 0.0}, "gateway.queue_threshold must be a finite number above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        Gateway("utilization", **settings)
    assert said in str(error.value)


@ENGINES
def test_bands_that_the_trace_does_not_have_are_refused(engine: str) -> None:
    with pytest.raises(InputError, match=r"gateway\.bands\.7: no request is in this band; the bands are 0"):
        play(engine, FOUR, replace(ONE_WAITS, bands={"7": {"ttl_s": 1.0}}))
    with pytest.raises(InputError, match=r"gateway\.bands_by=tenant: trace workload has no column tenant"):
        play(engine, FOUR, replace(ONE_WAITS, bands_by="tenant", band_order=["a"]))
