"""The bound against second computations: the fluid program with all steps and requests in it, and closed forms."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from framework.bound.bound import Bound, _search, bound, shortest_time_s, sustained
from framework.bound.demand import demand_of, use_names
from framework.bound.fluid import Fluid, _below_zero, _costs, _whole, least_duration, most_good
from framework.bound.linear import minimised
from framework.bound.program import Demand, _classes
from framework.bound.requests import least_needs, make_pools
from framework.bound.setting import Setting
from framework.bound.steps import Prices
from framework.engine.setup.config import EngineConfig
from framework.load import Closed, Load, Open
from framework.metrics.slo import Slo
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, Role, disaggregated, mixed
from framework.timing.table import StepRow
from framework.workload import Workload, consecutive
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming

Rng = np.random.Generator
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
ANY = Slo(None, None)
KV, SEATS, BUDGET = 90, 3, 7
PLAIN = EngineConfig(
    kv_fraction=1.0, block_tokens=1, watermark=0.0, token_budget=BUDGET, max_batch=SEATS, preemption="swap"
)


def drawn(rng: Rng) -> Setting:
    """Pools of affine step times, two kinds of requests, and SLOs that all keep alone."""
    roles: tuple[Role, ...] = (("mixed",), ("prefill", "decode"), ("prefill", "decode", "mixed"))[rng.integers(3)]
    pools = tuple(
        PoolSpec(role, role, int(rng.integers(1, 4)), server(role, KV), link_bytes_s=float(rng.choice([30.0, 1e6])))
        for role in roles
    )
    rows: dict[str, StepRow] = {
        role: StepRow(
            base_s=0.01 + 0.1 * rng.random(),
            per_prefill_token_s=0.03 * rng.random(),
            per_sequence_s=0.05 * rng.random(),
            per_context_token_s=2e-3 * rng.random(),
            per_sampled_s=0.01 * rng.random(),
            prefill_step_s=0.05 * rng.random(),
            intake_s=0.02 * rng.random(),
        )
        for role in roles
    }
    kind = np.arange(10) % 2
    workload = Workload(
        np.zeros(10), np.sort(rng.integers(2, 25, 2))[kind], np.array([1, 12])[kind] + rng.integers(0, 5)
    )
    load: Load = Open() if rng.random() < 0.5 else Closed(int(rng.integers(1, 9)))
    slo = Slo(1e3, float(rng.uniform(0.25, 0.6))) if rng.random() < 0.5 else ANY
    batching: Any = rng.choice(["decode_first", "chunks_first"])
    link = LinkSpec(1e6, fabric_bytes_s=None if rng.random() < 0.5 else 50.0)
    cluster = ClusterSpec(pools, link)
    return Setting(workload, cluster, MODEL, RowTiming(rows), replace(PLAIN, batching=batching), load, slo=slo)


def steps_of(setting: Setting, pool: PoolSpec) -> list[tuple[int, int, int, float]]:
    """Prefill tokens, decodes, tokens that they read and seconds of steps whose mixtures are all of a pool's."""
    row, workload = setting.timing.rows[pool.gpu.name], setting.workload  # type: ignore[attr-defined]
    later = workload.output_tokens > 1
    low = int(workload.input_tokens[later].min()) + 1
    high = int((workload.input_tokens + workload.output_tokens)[later].max()) - 1
    found = []
    for decodes in range(SEATS + 1) if pool.role != "prefill" else [0]:
        if decodes * low > KV:
            continue
        most = (
            0 if pool.role == "decode" or (decodes and setting.engine.batching != "decode_first") else BUDGET - decodes
        )
        for tokens in {0, 1, most} - ({1} if most == 0 else set()) - ({0} if decodes == 0 else set()):
            for read in {decodes * low, min(decodes * high, KV)}:
                time_s = row.base_s + row.per_prefill_token_s * tokens + row.per_context_token_s * read
                time_s += row.prefill_step_s * (tokens > 0) + (row.per_sequence_s + row.per_sampled_s) * decodes
                found.append((tokens, decodes, read, time_s))
    return found


def optimum(setting: Setting, demand: Demand, duration_s: float | None) -> float:
    """Most requests within a time, or the least time of all: a variable for each request, pool and step."""
    pools, count = setting.cluster.pools, len(demand.tokens)
    fields = 3 + len(pools) + len(demand.rates) + 1 + count  # supply, time, uses, pace, requests
    time_at, use_at, pace_at, own_at = 3, 3 + len(pools), fields - 1 - count, fields - count
    columns: list[Floats] = []
    for k in range(len(pools)):
        for r in np.flatnonzero(np.isfinite(demand.extra_s[k])):
            column = np.zeros(fields)
            column[:3] = demand.tokens[r], demand.decodes[r], demand.context[r]
            column[time_at + k] = demand.extra_s[k, r]
            column[use_at:pace_at] = demand.uses[:, r]
            column[pace_at] = 0.0 if demand.pace_s is None else -demand.pace_s[r]
            column[own_at + r] = 1.0 if duration_s else -1.0
            columns.append(column)
    requests = len(columns)
    for k, pool in enumerate(pools):
        for tokens, decodes, read, time_s in steps_of(setting, pool):
            column = np.zeros(fields)
            column[:3], column[time_at + k] = (-tokens, -decodes, -read), time_s
            column[use_at:pace_at] = demand.lasting * time_s * decodes
            column[pace_at] = 0.0 if demand.pace_s is None else time_s * decodes
            columns.append(column)
    there = np.zeros(fields)
    there[time_at:use_at] = [-pool.instances for pool in pools]
    there[use_at:pace_at] = -demand.rates
    limits = np.zeros(fields)
    limits[own_at:] = 1.0 if duration_s else -1.0
    objective = np.zeros(len(columns) + 1)
    bounds = np.array([[0.0, np.inf]] * len(objective))
    if duration_s:
        objective[:requests], bounds[-1] = -1.0, duration_s
    else:
        objective[-1] = 1.0
    found = minimised(objective, np.stack([*columns, there], axis=1), limits, bounds)
    assert found is not None
    return abs(float(objective @ found.values))


@pytest.mark.parametrize("seed", range(8))
def test_the_fluid_bound_is_the_optimum_of_the_program_written_out(seed: int) -> None:
    setting = drawn(np.random.default_rng(seed))
    pools = make_pools(setting)
    needs = least_needs(setting, pools)
    demand = demand_of(setting, pools, needs, needs.served)
    steps, instances = [pool.steps for pool in pools], np.array([float(one.instances) for one in setting.cluster.pools])
    assert use_names(setting, pools, needs)[:1] == ["front end"]
    least = least_duration(demand, steps, instances)
    least_s = optimum(setting, replace(demand, pace_s=None), None)
    assert least_s * (1 - 2e-3) <= least.least_of_all_s() <= least_s * (1 + 1e-6)
    for share in (0.2, 0.7, 1.5):
        most = most_good(demand, steps, instances, share * least_s).most(share * least_s)
        best = optimum(setting, demand, share * least_s)
        assert best * (1 - 1e-6) <= most <= best * (1 + 2e-3) + 1e-9


@pytest.mark.parametrize("recomputes", [True, False])
def test_costs_of_whole_prompts_are_those_of_their_steps(recomputes: bool) -> None:
    """In one of two pools a prompt beyond the budget has a step of its own that costs 5, again or at first."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        count, budget = 5, 20
        known, decodes = np.zeros(count), rng.integers(0, 12, count)
        prompts = rng.integers(2, 40, count)
        token, decode, context = rng.random(3) * [1.0, 12.0, 0.6]
        extra_s, again_s, second = rng.random((2, count)), rng.random((2, count)), rng.random(2)
        alone = np.array([prompts > budget, np.zeros(count, bool)])
        demand: Any = SimpleNamespace(
            tokens=prompts.astype(float),
            first_context=prompts + 1.0,
            computed=prompts.astype(float),
            known=known,
            decodes=decodes,
            context=decodes * prompts + 0.5 * decodes * (decodes + 1),
            extra_s=extra_s,
            again_s=again_s,
            alone=alone,
            recomputes=recomputes,
        )
        whole: Any = SimpleNamespace(
            chunks=SimpleNamespace(whole=True, budget=budget),
            own=lambda prices: prices,
            whole_prompts=lambda tokens, second, prices: np.full(len(tokens), 5.0),
        )
        cut: Any = SimpleNamespace(chunks=SimpleNamespace(whole=False, budget=budget), own=lambda prices: prices)
        found = _costs(demand, [whole, cut], Prices(token, decode, context, 0.0), second)
        for r in range(count):
            starts = [5.0 if alone[0, r] else token * prompts[r], token * prompts[r]]
            later = 0.0
            rising, anew = [], []
            for k in range(2):
                lone = k == 0 and prompts[r] + 1 + decodes[r] > budget
                rising.append(0.0 if lone else token)
                anew.append(
                    (min(5.0, token * (prompts[r] + 1)) if lone else token * (prompts[r] + 1))
                    + second[k] * again_s[k, r]
                )
            for read in prompts[r] + 1 + np.arange(decodes[r]):
                again = min(anew) + min(rising) * (read - prompts[r] - 1)
                later += min(decode + context * read, again) if recomputes else decode + context * read
            first = min(start + price * own for start, price, own in zip(starts, second, extra_s[:, r], strict=True))
            assert found[r] == pytest.approx(first + later)


def test_of_many_lengths_of_prompts_some_are_priced_and_those_between_cost_no_more() -> None:
    pool, prices = cast(Any, SimpleNamespace(whole_prompts=lambda lengths, *_: 2 * lengths)), cast(Any, None)
    few, many = np.arange(256, 0, -1.0), np.arange(600, 0, -1.0)
    assert _whole(pool, few, 1.0, prices).tolist() == (2 * few).tolist()
    assert _whole(pool, many, 1.0, prices).tolist() == (2 * (many - (many - 1) % 3)).tolist()  # 1, 4, 7, ...


def test_the_sum_of_what_is_below_zero_is_added_up() -> None:
    rng = np.random.default_rng(1)
    start, slope, count = rng.uniform(-9, 9, 200), rng.uniform(-2, 2, 200), rng.integers(0, 12, 200)
    slope[::5] = 0.0
    found = _below_zero(start, slope, count.astype(float))
    terms = [begin + each * np.arange(many) for begin, each, many in zip(start, slope, count, strict=True)]
    assert found == pytest.approx([np.minimum(one, 0.0).sum() for one in terms])


# closed forms

PREFILL_S = 0.5  # a prompt of 4 tokens
ROW = StepRow(base_s=0.1, per_prefill_token_s=0.1, per_sequence_s=0.1)
ONE = mixed(1, server("gpu", 1000))


def asked(
    workload: Workload, slo: Slo = ANY, load: Load | None = None, cluster: ClusterSpec = ONE, **options: Any
) -> Setting:
    engine = EngineConfig(kv_fraction=1.0, block_tokens=1, watermark=0.0, token_budget=4, **options)
    rows = {pool.gpu.name: ROW for pool in cluster.pools}
    return Setting(workload, cluster, MODEL, RowTiming(rows), engine, load or Open(), slo=slo)


def prompts(arrival_s: Floats, output_tokens: int = 1) -> Workload:
    count = len(arrival_s)
    return Workload(arrival_s.astype(np.float64), np.full(count, 4), np.full(count, output_tokens))


def same(found: Bound, other: Bound) -> bool:
    close = other.goodput == pytest.approx(found.goodput, rel=1e-6)
    return close and (found.good, found.limit) == (other.good, other.limit)


@pytest.mark.parametrize("gap_s", [0.2, 1.0])
@pytest.mark.parametrize("slo", [ANY, Slo(None, 1.0), Slo(2.0, None)])
def test_the_clock_may_begin_anywhere(gap_s: float, slo: Slo) -> None:
    at_s = gap_s * np.arange(9)
    here, later = (asked(prompts(begin_s + at_s), slo) for begin_s in (0.0, 64.0))
    assert same(bound(here), bound(later))
    assert same(_search(here).of_run(), _search(later).of_run())
    assert shortest_time_s(here) == pytest.approx(shortest_time_s(later))


def test_a_window_may_begin_anywhere() -> None:
    """Twenty requests in 3.8 s, which have 2.5 s for 0.4 s of prefill and 0.5 s of decoding or more."""
    here, later = (asked(prompts(begin_s + 0.2 * np.arange(20), 6), Slo(1.0, 0.3)) for begin_s in (0.0, 64.0))
    assert same(bound(here), bound(later))
    assert 0 < bound(here).good <= (3.8 + 2.5) / 0.9


def test_a_run_ends_with_its_last_arrival_or_its_last_prefill() -> None:
    """Nine prompts of half a second each, one a second or five a second; the last may be one that nobody serves."""
    slow, fast = (prompts(gap_s * np.arange(9)) for gap_s in (1.0, 0.2))
    too_long = replace(slow, input_tokens=np.array([4] * 8 + [2000]))
    found = [(one.good, one.goodput, one.limit) for one in map(bound, map(asked, (slow, fast, too_long)))]
    expected: list[Any] = [
        (9, pytest.approx(9 / 8.5), "latency alone"),
        (9, pytest.approx(9 / 4.5), "GPU time"),
        (8, pytest.approx(8 / 8.0), "latency alone"),
    ]
    assert found == expected
    slow_only = bound(asked(slow))
    assert slow_only.describe(slow_only.goodput) == "100 % of what any schedule could reach (latency alone)"


def test_a_number_of_requests_that_just_fits_counts() -> None:
    """Of 200 prompts for 100 of which there is time before the last deadline."""
    setting = asked(prompts(np.zeros(200)), Slo(50.0, None))
    good, limit = _search(setting)._most(200, 50.0, "none")
    assert (good, limit) == (100, "GPU time")
    assert bound(setting).good == 100


def test_of_those_that_come_at_once_only_some_are_in_time_in_the_long_run_too() -> None:
    """Four of eight prompts of half a second each begin and end within 2.1 s, however seldom they come."""
    found = sustained(asked(prompts(np.zeros(8)), Slo(2.1, None)), 100.0)
    assert (found.good, found.goodput) == (4, 4 / 100)


def test_sessions_and_clients_wait_for_answers_and_thoughts() -> None:
    """Two sessions of two turns of half a second, 3 s of thought before a second turn."""
    turns = replace(prompts(np.zeros(4)), previous=np.array([-1, -1, 0, 1]), think_s=np.array([9.0, 9.0, 3.0, 3.0]))
    both = mixed(2, server("gpu", 1000))
    assert shortest_time_s(asked(turns, cluster=both)) == pytest.approx(0.5 + 3.0 + 0.5)
    assert shortest_time_s(asked(turns, cluster=both, load=Closed(2))) == pytest.approx(0.5 + 3.0 + 0.5)
    assert shortest_time_s(asked(turns, cluster=both, load=Closed(1))) == pytest.approx(4 * 0.5 + 2 * 3.0)


def test_the_front_end_takes_one_after_the_other() -> None:
    row = replace(ROW, intake_s=2.0, request_s=1.0, intake_token_s=0.25)
    setting = replace(asked(prompts(np.array([0.0, 0.0, 3.0, 20.0]))), timing=RowTiming({"gpu": row}))
    needs = least_needs(setting, make_pools(setting))
    assert needs.ready_s.tolist() == [4.0, 6.0, 5.0, 4.0]


@pytest.mark.parametrize(("prefill_kv", "decode_kv"), [(99, 9), (9, 99)])
def test_who_has_no_room_where_it_computes_or_decodes_is_not_served(prefill_kv: int, decode_kv: int) -> None:
    """Prompts of 4 and outputs of 8 tokens, and of 4 and 1; one of the instances holds 9 tokens."""
    workload = Workload(np.zeros(2), np.array([4, 4]), np.array([8, 1]))
    cluster = disaggregated(1, 1, server("prefill", prefill_kv), decode_gpu=server("decode", decode_kv))
    setting = asked(workload, cluster=cluster)
    assert least_needs(setting, make_pools(setting)).served.tolist() == [False, True]


@pytest.mark.parametrize(("fabric_bytes_s", "rate"), [(None, 30.0), (45.0, 30.0), (12.0, 12.0)])
def test_a_link_is_as_fast_as_the_slowest_of_its_parts(fabric_bytes_s: float | None, rate: float) -> None:
    """Three instances that send 10 bytes a second each, and two that take 20."""
    cluster = disaggregated(3, 2, server("gpu", 1000))
    pools = tuple(replace(pool, link_bytes_s=20.0 if pool.role == "decode" else 10.0) for pool in cluster.pools)
    cluster = ClusterSpec(pools, LinkSpec(1e6, fabric_bytes_s=fabric_bytes_s))
    setting = asked(prompts(np.zeros(5), 3), cluster=cluster)
    pools_of = make_pools(setting)
    needs = least_needs(setting, pools_of)
    demand = demand_of(setting, pools_of, needs, needs.served)
    assert use_names(setting, pools_of, needs) == ["front end", "link"]
    assert demand.rates.tolist() == [1.0, rate]
    bytes_ = 4 * MODEL.kv_bytes_per_token
    assert demand.uses[1].tolist() == [bytes_] * 5
    assert needs.transfer_s == pytest.approx(bytes_ / min(10.0, rate))


@pytest.mark.parametrize(("kv_tokens", "recomputes"), [(23, True), (24, False)])
def test_requests_may_be_preempted_where_those_with_a_seat_have_no_room(kv_tokens: int, recomputes: bool) -> None:
    """Three requests that end with 12 tokens, and two seats where they decode."""
    cluster = disaggregated(1, 1, server("prefill", 99), decode_gpu=server("decode", kv_tokens))
    setting = asked(prompts(np.zeros(3), 9), cluster=cluster, max_batch=2)
    assert setting.recomputes == recomputes


def test_turns_of_a_session_are_not_known_to_arrive() -> None:
    turns = replace(prompts(np.zeros(2)), previous=np.array([-1, 0]), think_s=np.zeros(2))
    assert asked(turns).arrival_s is None
    assert asked(replace(turns, previous=np.array([-1, -1]))).arrival_s is not None


def test_nothing_is_scarce_for_who_does_not_decode() -> None:
    setting = asked(prompts(np.zeros(2), 3), cluster=disaggregated(1, 1, server("gpu", 99)))
    prefill, _ = make_pools(setting)
    assert prefill.steps.scarce(Prices(0.0, 0.0, 0.0, 0.0), 0.0) is None


@pytest.mark.parametrize(("token", "scarce"), [(1.0, "batch size"), (1.01, None)])
def test_steps_tell_what_is_scarce_if_half_of_what_they_are_worth_are_decodes(token: float, scarce: str | None) -> None:
    """The best steps compute two tokens beside two decodes, and a decode is worth 1."""
    slow = RowTiming({"gpu": replace(ROW, base_s=1.0)})
    (pool,) = make_pools(replace(asked(prompts(np.zeros(2), 3), max_batch=2), timing=slow))
    prices = Prices(token, 1.0, 0.0, 0.0)
    assert pool.steps.scarce(prices, pool.steps.price(prices)) == scarce


def test_nothing_is_scarce_where_time_costs_nothing() -> None:
    slow = RowTiming({"gpu": replace(ROW, base_s=1.0)})
    setting = asked(prompts(np.zeros(2), 3), cluster=disaggregated(1, 1, server("gpu", 99)), max_batch=1)
    _, decode = make_pools(replace(setting, timing=slow))
    assert decode.steps.scarce(Prices(0.0, 1.0, 0.0, 0.0), 1e-9) == "batch size"
    assert decode.steps.scarce(Prices(0.0, 1.0, 0.0, 0.0), 0.0) is None


def test_the_best_number_of_requests_is_that_of_the_most_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that cost less than they bring: with more of them than take no time each further one costs goodput."""
    search, unknown = _search(asked(prompts(np.zeros(9)))), cast(Any, None)
    fluid = Fluid(Prices(1.0, 0.0, 0.0, 0.0), unknown, np.array([0.1, 0.9, 0.5] * 3), np.array([1.5, 0.5]))
    monkeypatch.setattr("framework.bound.bound.most_good", lambda *_: fluid)
    monkeypatch.setattr(search, "_scarce", lambda _: "GPU time")
    counts = np.arange(1.0, 10.0)
    for least_s in (0.4, 0.8, 1.3, 2.0, 9.0):
        best = float((counts / np.maximum(least_s, fluid.least_s(counts))).max())
        assert search._best(9, least_s, np.inf, "").goodput == pytest.approx(best, rel=1e-5)


def test_requests_are_alike_where_sizes_are_and_they_fit_the_same_pools() -> None:
    sizes = np.repeat([10.0, 20.0, 30.0], 4)
    again_s = np.where(np.arange(12) % 2 == 0, 1.0, np.inf)
    demand: Any = SimpleNamespace(computed=sizes, decodes=np.ones(12), again_s=np.array([again_s, np.ones(12)]))
    found = _classes(demand)
    pairs = set(zip(sizes.tolist(), again_s.tolist(), found.tolist(), strict=True))
    assert sorted({number for *_, number in pairs}) == list(range(6))
    assert len(pairs) == 6


@pytest.mark.parametrize(("tpot_s", "good"), [(0.21, True), (0.19, False)])
def test_two_tokens_are_one_step_apart(tpot_s: float, good: bool) -> None:
    """A decode step takes 0.2 s."""
    assert bound(asked(prompts(np.zeros(1), 2), Slo(None, tpot_s))).alone.tolist() == [good]


@pytest.mark.parametrize(("ttft_s", "good"), [(0.71, True), (0.69, False)])
def test_a_first_token_may_wait_for_the_first_decode_elsewhere(ttft_s: float, good: bool) -> None:
    """The prompt takes 0.5 s, the step that decodes 0.2 s, and the copy nearly nothing."""
    setting = asked(
        prompts(np.zeros(1), 3), Slo(ttft_s, 10.0), cluster=disaggregated(1, 1, server("gpu", 99)), first_token="decode"
    )
    assert bound(setting).alone.tolist() == [good]


@pytest.mark.parametrize(("tpot_s", "good"), [(0.24, True), (0.23, False)])
def test_a_second_token_may_come_from_another_prefill_and_the_others_from_decodes(tpot_s: float, good: bool) -> None:
    """No first decode gives two tokens within 0.6 s: eight more take a prefill of 0.5 s and seven steps of 0.2 s."""
    cluster = disaggregated(1, 1, server("prefill", 99), decode_gpu=server("decode", 23))
    setting = asked(prompts(np.zeros(3), 9), Slo(0.6, tpot_s), cluster=cluster, max_batch=2, first_token="decode")
    assert setting.recomputes
    assert bound(setting).alone.tolist() == [good] * 3


def test_of_what_prompts_share_only_the_rest_is_sent_for_each() -> None:
    """Three prompts of 4 tokens, of which two begin with the same block of 2."""
    workload = replace(
        prompts(np.zeros(3), 3),
        hash_ids=np.array([1, 2, 1, 3, 4, 5]),
        hash_spans=consecutive([2] * 3),
        hash_block_tokens=2,
    )
    setting = asked(workload, cluster=disaggregated(1, 1, server("gpu", 1000)), prefix_cache=True)
    pools = make_pools(setting)
    needs = least_needs(setting, pools)
    token_s = MODEL.kv_bytes_per_token / setting.cluster.link_bytes_s[0]
    assert needs.transfer_s == pytest.approx(token_s * np.array([2, 2, 4]), abs=1e-9)
    link = demand_of(setting, pools, needs, needs.served).uses[1]  # of all together, 10 tokens
    assert link.tolist() == [MODEL.kv_bytes_per_token * each for each in (3, 3, 4)]


def test_a_prompt_that_just_fills_a_step_may_share_it() -> None:
    """Prompts of 3, 4 and 5 tokens, which are not cut, in steps of 4."""
    workload = Workload(np.zeros(3), np.array([3, 4, 5]), np.ones(3, np.int64))
    setting = asked(workload, batching="prefill_first")
    pools = make_pools(setting)
    needs = least_needs(setting, pools)
    assert demand_of(setting, pools, needs, needs.served).alone.tolist() == [[False, False, True]]
