"""The bound on goodput: no schedule beats it, and where theory knows the best one it is close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose as compose_config
from hydra import initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.bound.bound import Bound, any_plan, any_role, any_stream, bound, shortest_time_s, streams_apart
from framework.bound.demand import demand_of, most_started
from framework.bound.fluid import least_duration, most_good, proof
from framework.bound.program import Duals
from framework.bound.requests import least_needs, make_pools
from framework.bound.setting import Setting
from framework.engine.durations.attention_overlap import Attention
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Closed, Load, Open
from framework.metrics.slo import Slo, judge
from framework.metrics.summary import summarize
from framework.policy import Disaggregated, Policy
from framework.result import Result
from framework.run.compose import compose
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, disaggregated, mixed
from framework.timing.affine import Affine
from framework.timing.roofline import Roofline
from framework.timing.table import StepRow, Timing
from framework.workload import Workload, chosen, consecutive
from policies.chunked import Chunked
from policies.continuous import Continuous
from policies.distserve import DistServe
from tests.conftest import ROOT
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.bounds import retimed, saturated, server, with_options
from tests.helpers.differences import run_engine
from tests.helpers.drawing import Draw, each
from tests.helpers.families import Family
from tests.helpers.parts import load as part
from tests.helpers.pulled_family import pulled
from tests.helpers.quick import marks
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import MODEL, RowTiming, Scenario, scenarios

GPU, LLAMA = part("gpu", "h100"), part("model", "llama3_8b")
TIMING = Affine(base_s=0.01, per_prefill_token_s=2e-5, per_sequence_s=2e-5, per_context_token_s=1e-7)
ANY, OPEN = Slo(None, None), Open()
NEAR = 1 + 1e-6


# whatever the policy


def check_scenario(scenario: Scenario, rng: np.random.Generator) -> None:
    """Run it; under SLOs that lie on what it reached, no bound may be lower than what it reached."""
    result, _ = run_engine(scenario)
    plans = bool(scenario.rules.batching) or scenario.rules.budgets or bool(scenario.rules.split_at)
    cluster = any_plan(scenario.cluster) if plans else scenario.cluster
    if scenario.rules.roles:
        cluster = any_role(scenario.cluster)
    if scenario.rules.batching == "mode" or scenario.rules.roles:  # what is planned may be to share GPUs
        cluster = any_stream(cluster)
    latencies = judge(result, ANY)
    for _ in range(2):
        limits = [limit_among(values, rng) for values in (latencies.ttft_s, latencies.tpot_s) for _ in range(2)]
        classes = {"a": {"ttft_s": limits[1]}, "b": {"tpot_s": limits[3]}} if rng.random() < 0.5 else {}
        slo = Slo(limits[0], limits[2], classes=classes)
        good = judge(result, slo).good
        setting = Setting(
            scenario.workload, cluster, scenario.model, scenario.timing, scenario.engine, scenario.load, slo=slo
        )
        check_bound(bound(setting), result, setting)
        apart = replace(setting, workload=result.workload, cluster=streams_apart(cluster, scenario.engine))
        check_parts(apart, result, good, rng)


def limit_among(values: np.ndarray[Any, Any], rng: np.random.Generator) -> float | None:
    values = values[values > 0]
    return None if len(values) == 0 or rng.random() < 0.15 else float(rng.choice(values) * rng.choice([1, 1, 1.5]))


def duration_s(result: Result) -> float:
    finished = result.requests["state"] == 1
    return float(result.requests["end_s"][finished].max() - np.nanmin(result.requests["arrival_s"]))


def shortest_s(result: Result, setting: Setting, cluster: ClusterSpec, some: np.ndarray[Any, Any]) -> float:
    """The least time for some of the requests of a run, on a cluster."""
    return shortest_time_s(replace(setting, workload=chosen(result.workload, some), cluster=cluster))


def check_bound(found: Bound, result: Result, setting: Setting) -> float:
    """Hold the bound of a setting against a run; the goodput of that."""
    sent = np.arange(len(result.requests)) if result.request_ids is None else result.request_ids
    anywhere = any_role(setting.cluster)
    summary = summarize(result, setting.slo, lambda some: shortest_s(result, setting, anywhere, some))
    good = judge(result, setting.slo).good & (True if result.counted is None else result.counted)
    assert found.offered == len(setting.workload)
    assert good.sum() <= found.good <= np.count_nonzero(found.alone)
    assert not np.any(good & ~found.alone[sent])
    assert summary["goodput_rps"] <= found.goodput * NEAR
    if np.all(result.requests["state"] == 1):  # nobody was rejected: then the run takes as long as it must
        assert duration_s(result) * NEAR >= shortest_s(result, setting, setting.cluster, np.ones(len(sent), np.bool_))
    return float(summary["goodput_rps"])


def check_parts(setting: Setting, result: Result, good: np.ndarray[Any, Any], rng: np.random.Generator) -> None:
    """Each bound by itself, on nothing but the requests that were good; the fluid one at any prices."""
    pools = make_pools(setting)
    needs = least_needs(setting, pools)
    if setting.arrival_s is not None:
        assert good.sum() <= most_started(setting, pools, needs)
    if not good.any():
        return
    took_s = (result.requests["end_s"] - result.requests["arrival_s"])[good]
    assert np.all(took_s * NEAR >= needs.total_s[good])
    run_s = duration_s(result)
    demand = demand_of(setting, pools, needs, good)
    steps, instances = [pool.steps for pool in pools], np.array([float(pool.spec.instances) for pool in pools])
    assert run_s * NEAR >= least_duration(demand, steps, instances).least_of_all_s()
    fluid = most_good(demand, steps, instances, run_s)
    assert good.sum() <= fluid.most(run_s) * NEAR
    for again in (0.0, 0.5, 1.0, 2.0):
        token, decode, context, pace = 10.0 ** rng.uniform(-2, 2, 4) * (rng.random(4) < 0.75)
        token, decode = token / demand.tokens.sum(), decode / max(demand.decodes.sum(), 1.0)
        context, pace = context / max(demand.context.sum(), 1.0), 0.0 if demand.pace_s is None else pace
        use = 10.0 ** rng.uniform(-2, 2, len(demand.rates)) * (rng.random(len(demand.rates)) < 0.3)
        duals = Duals(token, decode, context, pace, np.zeros(len(pools)), use, again * token)
        found = proof(demand, steps, instances, duals)
        assert found.costs.sum() <= found.rate * run_s * NEAR + 1e-12


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(each(scenarios, exact=False), st.integers(0, 2**32 - 1))
def test_no_policy_beats_it(scenario: Scenario, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_scenario(retimed(scenario, rng) if seed % 2 else scenario, rng)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_no_policy_beats_it_where_something_is_scarce(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(7):
        check_scenario(saturated(rng), rng)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_policy_beats_it_whatever_attention_and_transfers_cost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(6):
        check_scenario(with_options(saturated(rng), rng), rng)


@pytest.mark.parametrize("family", [ahead, pulled, early])
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (5, 10, 15, 20, 25))])
def test_no_policy_beats_it_where_options_meet(family: Family, first: int) -> None:
    """Two streams, each scheduled ahead; KV that is pulled layer by layer, and with drafts; stores of KV blocks."""
    for seed in range(first, first + 5):
        rng = np.random.default_rng(seed)
        check_scenario(retimed(family(Draw(seed)), rng), rng)


def test_no_policy_beats_it_where_token_1_comes_with_drafts_from_elsewhere() -> None:
    """A random run of mixed instances: what is decoded elsewhere has its first token, and drafts, from one step."""
    rng = np.random.default_rng(1)
    check_scenario(retimed(scenarios(Draw(530210), exact=False), rng), rng)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(each(scenarios, exact=False), st.integers(0, 2**32 - 1))
def test_no_policy_beats_it_in_many_more_cases(scenario: Scenario, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_scenario(retimed(scenario, rng) if seed % 4 else scenario, rng)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_no_policy_beats_it_in_many_more_cases_where_something_is_scarce(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(150):
        check_scenario(saturated(rng), rng)


def test_attentions_that_overlap_are_worth_what_they_hide() -> None:
    """A prompt of 32 tokens in each step with 32 decodes: both attentions take 1 s, and then either is free."""
    row = StepRow(base_s=0.01, prefill_quadratic_s=1 / 32**2, per_context_token_s=1 / (32 * 48))
    workload, cluster = requests(400, 32, 33, 1e3), mixed(1, server("gpu", 4000))
    cluster = replace(cluster, pools=tuple(replace(pool, token_budget=64, max_batch=64) for pool in cluster.pools))
    found = []
    for overlap in (0.0, 1.0):
        engine = EngineConfig(attention=Attention(overlap), kv_fraction=1.0, block_tokens=1, watermark=0.0)
        timing = RowTiming({"gpu": row})
        result = simulate(workload, cluster, MODEL, timing, engine, Chunked())
        limit = bound(Setting(workload, cluster, MODEL, timing, engine, slo=ANY))
        found.append((400 / duration_s(result), limit.goodput))
    (_, serial), (reached_with, most) = found
    assert serial * 1.5 < reached_with <= most * NEAR


def test_instances_that_decode_may_win_tokens_by_computing_again() -> None:
    """A prompt takes 0.16 s, and 40 decodes 4 s. There is room for two of 60 requests, so that many are preempted, and
    where they decode a prompt is computed again in 1 ms, so that a token may cost no more.
    """
    rows = {
        "prefill": StepRow(base_s=0.001, per_prefill_token_s=0.02),
        "decode": StepRow(base_s=0.001, per_sequence_s=0.1),
    }
    cluster = disaggregated(1, 1, server("prefill", 4000), decode_gpu=server("decode", 4000))
    cluster = replace(cluster, pools=tuple(replace(pool, batching="prefill_first") for pool in cluster.pools))
    workload, most = requests(60, 8, 41), []
    for recompute in ("there", "routed"):
        engine = EngineConfig(kv_tokens=100, block_tokens=1, watermark=0.0, token_budget=64, recompute=recompute)
        found = bound(Setting(workload, cluster, MODEL, RowTiming(rows), engine, slo=Slo(None, None)))
        result = simulate(workload, cluster, MODEL, RowTiming(rows), engine, Disaggregated())
        assert result.requests["preemptions"].sum() > 0
        assert 60 / duration_s(result) <= found.goodput * NEAR
        most.append(found.goodput)
    assert most[0] > 2 * most[1]


def test_a_solver_that_gives_up_leaves_a_weaker_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, cluster = requests(400, 32, 33, 1e3), mixed(1, server("gpu", 4000))
    engine = EngineConfig(kv_fraction=1.0, block_tokens=1, watermark=0.0, token_budget=64, max_batch=64)
    slo = Slo(None, None)
    solved = bound(Setting(workload, cluster, MODEL, TIMING, engine, slo=slo))
    monkeypatch.setattr("framework.bound.program.minimised", lambda *_: None)
    given_up = bound(Setting(workload, cluster, MODEL, TIMING, engine, slo=slo))
    assert 0 < solved.goodput < given_up.goodput


# where the best schedule is known


def requests(count: int, prompt: int, output: int, rate: float = 1e4) -> Workload:
    """All alike, `rate` a second."""
    return Workload(np.arange(count) / rate, np.full(count, prompt), np.full(count, output))


def reached(
    workload: Workload,
    cluster: ClusterSpec,
    policy: type[Policy],
    engine: EngineConfig,
    timing: Timing = TIMING,
    load: Load = OPEN,
    slo: Slo = ANY,
) -> tuple[float, Bound]:
    """The share of the bound that a policy reaches, and the bound."""
    ready = policy()
    result = simulate(workload, cluster, LLAMA, timing, engine, ready, load=load)
    setting = Setting(workload, result.cluster, LLAMA, timing, engine, load, slo=slo)
    found = bound(setting)
    return found.share(check_bound(found, result, setting)), found


@pytest.mark.parametrize("timing", [TIMING, Roofline()], ids=["affine", "roofline"])
@pytest.mark.parametrize("policy", [Chunked, Continuous])
@pytest.mark.parametrize("prompt", [300, 2048, 7000])
def test_prefill_alone_is_a_queue_with_one_speed(prompt: int, policy: type[Policy], timing: Timing) -> None:
    share, found = reached(requests(1500, prompt, 1), mixed(3, GPU), policy, EngineConfig(), timing)
    assert 0.95 <= share <= 1
    assert found.limit == "GPU time"


@pytest.mark.parametrize(
    ("rate", "limit"), [(0.97, "arrivals"), (1.3, "prefill GPU time in bursts")], ids=["below its rate", "above"]
)
def test_near_the_rate_of_a_server_it_is_the_lesser_of_arrivals_and_rate(rate: float, limit: str) -> None:
    step_s = TIMING.base_s + 2048 * TIMING.per_prefill_token_s
    workload = requests(2000, 1024, 1, rate * 2 / step_s)
    share, found = reached(workload, mixed(1, GPU), Chunked, EngineConfig(), slo=Slo(5.0, None))
    assert (0.95 if rate < 1 else 0.0) <= share <= 1  # above it, first come first served makes all late in the end
    assert found.limit == limit
    window_s = float(workload.arrival_s[-1])  # what has arrived in it may be answered 5 s later
    assert found.goodput == pytest.approx(min(rate, (window_s + 5.0) / window_s) * 2 / step_s, rel=2e-3)


SCARCE = {
    "GPU time": (requests(2000, 1000, 200), mixed(1, GPU), Chunked, EngineConfig()),
    "prefill GPU time": (requests(2000, 1000, 50), disaggregated(1, 1, GPU), DistServe, EngineConfig()),
    "decode GPU time": (requests(2500, 100, 300), disaggregated(1, 1, GPU), DistServe, EngineConfig(max_batch=512)),
    "batch size": (requests(600, 200, 100), mixed(1, GPU), Chunked, EngineConfig(max_batch=8)),
    "KV memory": (
        requests(1500, 200, 200),
        disaggregated(1, 1, GPU),
        DistServe,
        EngineConfig(kv_tokens=16_000, block_tokens=1, preemption="swap"),
    ),
    "link": (
        requests(600, 2000, 2),
        disaggregated(2, 2, GPU, link_bandwidth_bytes_s=1e9),
        DistServe,
        EngineConfig(),
    ),
}


@pytest.mark.parametrize("limit", SCARCE)
def test_what_is_scarce_is_used_up_and_named(limit: str) -> None:
    share, found = reached(*SCARCE[limit])
    assert 0.95 <= share <= 1
    assert found.limit == limit


def test_pace_limits_the_batch() -> None:
    engine, workload = EngineConfig(max_batch=512), requests(3000, 100, 300, 70.0)
    paces = [Slo(30.0, tpot_s) for tpot_s in (None, 0.014, 0.012)]
    found = [bound(Setting(workload, disaggregated(3, 1, GPU), LLAMA, TIMING, engine, slo=slo)) for slo in paces]
    assert found[0].goodput > found[1].goodput > found[2].goodput
    assert found[2].limit == "TPOT"
    # A step of d decodes that read 250 tokens each lasts 10 ms + d (20 + 25) us: at 12 ms d is 44.
    per_token_s = TIMING.per_sequence_s + 250 * TIMING.per_context_token_s
    batch = (0.012 - TIMING.base_s) / per_token_s
    window_s = 2999 / 70  # of arrivals; the last good answer may come 30 s and 299 steps later
    rate_rps = batch / 0.012 / 299
    assert found[2].goodput == pytest.approx(rate_rps * (window_s + 30 + 299 * 0.012) / window_s, rel=0.05)


def test_clients_limit_what_is_under_way() -> None:
    workload = requests(600, 200, 100)
    share, found = reached(workload, mixed(2, GPU), Chunked, EngineConfig(), load=Closed(8))
    assert 0.95 <= share <= 1
    assert found.limit == "clients"
    alone_s = 100 * (TIMING.base_s + TIMING.per_sequence_s) + 200 * TIMING.per_prefill_token_s
    least_s = shortest_time_s(Setting(workload, mixed(2, GPU), LLAMA, TIMING, EngineConfig(), Closed(8), slo=ANY))
    assert least_s == pytest.approx(600 * alone_s / 8, rel=0.02)


def asking(shared: int, own: int, count: int = 1000) -> Workload:
    """Prompts that begin with the same `shared` blocks of 256 tokens; `own` more are each one's own."""
    blocks = np.arange(shared + own)
    ids = np.where(blocks < shared, blocks, 10**4 * (1 + np.arange(count))[:, None] + blocks)
    workload = requests(count, 256 * len(blocks), 1)
    return replace(workload, hash_ids=ids.ravel(), hash_spans=consecutive([len(blocks)] * count), hash_block_tokens=256)


def test_a_cache_saves_what_is_shared_and_no_more() -> None:
    engine = EngineConfig(prefix_cache=True)
    share, found = reached(asking(4, 4), mixed(1, GPU), Chunked, engine)
    assert 0.95 <= share <= 1
    without = bound(Setting(asking(4, 4), mixed(1, GPU), LLAMA, TIMING, replace(engine, prefix_cache=False), slo=ANY))
    assert found.goodput == pytest.approx(2 * without.goodput, rel=0.01)


def test_how_whole_prompts_fill_steps_is_not_known_with_a_cache() -> None:
    share, _ = reached(asking(4, 12), mixed(1, GPU), Continuous, EngineConfig(prefix_cache=True))
    assert 0.8 <= share <= 1


def test_the_first_to_ask_finds_nothing_unless_another_comes_in_time() -> None:
    prompt_s = 2 * TIMING.base_s + 4096 * TIMING.per_prefill_token_s
    engine = EngineConfig(prefix_cache=True)
    for gap_s, alone in ((2.0, [False, True]), (0.01, [True, True])):
        workload = replace(asking(15, 1, 2), arrival_s=np.array([0.0, gap_s]))
        found = bound(Setting(workload, mixed(2, GPU), LLAMA, TIMING, engine, slo=Slo(0.9 * prompt_s, None)))
        assert found.alone.tolist() == alone


@pytest.mark.parametrize("seed", range(5))
def test_tokens_may_come_from_prefills_after_preemption(seed: int) -> None:
    """Where decodes are dear and prefills cost nothing, thrashing is the faster way."""
    rng = np.random.default_rng(seed)
    workload = Workload(np.zeros(60), np.full(60, rng.integers(1, 10)), np.full(60, rng.integers(30, 80)))
    pool = PoolSpec("mixed", "mixed", 1, server("mixed", 150), max_batch=30)
    timing = RowTiming({"mixed": StepRow(base_s=1e-3, per_sequence_s=0.1)})
    engine = EngineConfig(kv_fraction=1.0, block_tokens=1, watermark=0.0)
    check_scenario(Scenario(workload, ClusterSpec((pool,), LinkSpec(1e6)), MODEL, timing, engine, OPEN, Rules()), rng)


# one request, and the ends


QUADRATIC = replace(TIMING, prefill_quadratic_s=4e-10, intake_s=0.01)
BATCHINGS = ("decode_first", "prefill_first", "mixed", "static", "unified", "chunks_first")


@pytest.mark.parametrize("first_token", ["prefill", "join", "decode", "recomputed"])
@pytest.mark.parametrize(
    "cluster",
    [mixed(1, GPU), disaggregated(1, 1, GPU), mixed(1, GPU, pp=2)],
    ids=["mixed", "disaggregated", "pipeline"],
)
@pytest.mark.parametrize(
    ("timing", "batching"),
    [
        *(pytest.param(QUADRATIC, batching, marks=marks(i % 2 == 0)) for i, batching in enumerate(BATCHINGS)),
        *((Roofline(), batching) for batching in ("mixed", "static")),
        *(pytest.param(Roofline(), batching, marks=pytest.mark.slow) for batching in BATCHINGS[:2] + BATCHINGS[4:]),
    ],
)
def test_a_request_alone_reaches_what_is_said_of_it(
    timing: Timing, batching: Any, cluster: ClusterSpec, first_token: Any
) -> None:
    workload = Workload(np.array([0.0, 1e4, 2e4]), np.array([20, 2048, 30_000]), np.array([1, 3, 300]))
    engine = EngineConfig(batching=batching, first_token=first_token, preemption="swap")
    reached = judge(simulate(workload, cluster, LLAMA, timing, engine), ANY)

    def alone(r: int, ttft: float, tpot: float) -> bool:
        tpot_s = None if np.isnan(reached.tpot_s[r]) else tpot * reached.tpot_s[r]
        slo = Slo(ttft * reached.ttft_s[r], tpot_s)
        return bool(bound(Setting(workload, cluster, LLAMA, timing, engine, slo=slo)).alone[r])

    for r in range(3):
        assert alone(r, 1.0, 1.0)
        assert not alone(r, 0.98, 1.0)  # chunks of a long prompt could be cut a little better than the engine does
        assert alone(r, 1.0, 0.995) == (r == 0)


def test_what_the_engine_rejects_is_never_good() -> None:
    """A prompt longer than the context; an output that is, ends there and is served."""
    workload, small = Workload(np.zeros(3), np.array([100, 9000, 8100]), np.array([10, 10, 9000])), 8192
    found = bound(Setting(workload, mixed(1, GPU), replace(LLAMA, max_context=small), TIMING, EngineConfig(), slo=ANY))
    assert found.alone.tolist() == [True, False, True]
    assert found.good == 2
    assert found.attainment == pytest.approx(2 / 3)
    little = bound(Setting(workload, mixed(1, GPU), LLAMA, TIMING, EngineConfig(kv_tokens=64), slo=ANY))
    assert (little.good, little.goodput, little.share(0.0)) == (0, 0.0, 1.0)


def test_a_request_of_one_token_is_not_held_against_tpot() -> None:
    workload = Workload(np.zeros(2), np.array([100, 100]), np.array([1, 2]))
    found = bound(Setting(workload, mixed(1, GPU), LLAMA, TIMING, EngineConfig(), slo=Slo(None, 1e-3)))
    assert found.alone.tolist() == [True, False]
    assert found.limit == "latency alone"


def test_classes_have_limits_of_their_own() -> None:
    workload = replace(requests(4, 1000, 10), slo_class=("fast", "slow", "fast", "slow"))
    slo = Slo(0.01, 0.05, classes={"slow": {"ttft_s": 1.0}})
    found = bound(Setting(workload, mixed(4, GPU), LLAMA, TIMING, EngineConfig(), slo=slo))
    assert found.alone.tolist() == [False, True, False, True]


def test_bursts_are_told_apart_from_load() -> None:
    step_s = TIMING.base_s + 2048 * TIMING.per_prefill_token_s
    arrival_s = np.repeat(np.arange(50.0), 40)  # 40 prompts at once, for 19 of which there is time
    workload = Workload(arrival_s, np.full(2000, 2048), np.ones(2000, np.int64))
    found = bound(Setting(workload, mixed(1, GPU), LLAMA, TIMING, EngineConfig(), slo=Slo(19.5 * step_s, None)))
    assert found.good == 50 * 19
    assert found.limit == "prefill GPU time in bursts"
    assert found.describe(0.5 * found.goodput) == ("50 % of what any schedule could reach (prefill GPU time in bursts)")


class Picky(Chunked):
    """Takes every fourth request."""

    def admit(self, request: Any, cluster: Any) -> bool:
        return bool(request.id % 4 == 0)


def test_who_rejects_is_judged_by_the_time_of_all_arrivals() -> None:
    workload, slo = requests(401, 500, 100, 20.0), Slo(1.0, 0.03)
    policy = Picky()
    result = simulate(workload, mixed(1, GPU), LLAMA, TIMING, EngineConfig(), policy)
    setting = Setting(workload, result.cluster, LLAMA, TIMING, EngineConfig(), slo=slo)
    found = bound(setting)
    assert check_bound(found, result, setting) == pytest.approx(101 / 20.0)
    assert found.goodput == pytest.approx(401 / 20.0)


def test_turns_of_a_session_wait_for_each_other() -> None:
    turns = replace(requests(8, 100, 100), previous=np.array([-1, 0, 1, 2, -1, 4, 5, 6]), think_s=np.full(8, 2.0))
    share, _ = reached(turns, mixed(1, GPU), Chunked, EngineConfig())
    least_s = shortest_time_s(Setting(turns, mixed(1, GPU), LLAMA, TIMING, EngineConfig(), slo=ANY))
    assert least_s > 3 * 2.0 + 4 * 99 * TIMING.base_s
    assert 0.95 <= share <= 1


def test_plans_of_its_own_lift_budgets() -> None:
    workload, engine = requests(500, 500, 1), EngineConfig(token_budget=256)
    kept, free = (
        bound(Setting(workload, cluster, LLAMA, TIMING, engine, slo=ANY))
        for cluster in (mixed(1, GPU), any_plan(mixed(1, GPU)))
    )
    assert free.goodput > 1.5 * kept.goodput


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        bound(Setting(requests(1, 1, 1), mixed(1, GPU), part("model", "llama3_70b"), TIMING, EngineConfig(), slo=ANY))


@pytest.mark.parametrize("policy", ["ares", "chunked", "continuous", "distserve"])
def test_shipped_policies_on_a_recorded_trace(policy: str, real_trace: Callable[[str], Path]) -> None:
    real_trace("conversation_trace.jsonl")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose_config("config", [f"policy={policy}", "trace.limit=1500", "engine.prefix_cache=true"])
    one = compose(config)
    result = one.run()
    setting = replace(one.setting, cluster=result.cluster)
    found = bound(setting)
    assert found.share(check_bound(found, result, setting)) > 0.8


def test_streams_that_share_a_gpu_may_each_do_all_that_it_can() -> None:
    """As two instances could: by the engine's batching, or by that of a pool."""
    workload = requests(500, 2048, 1)

    def most(instances: int, batching: Any, of_pool: Any = None) -> float:
        cluster = mixed(instances, GPU)
        cluster = replace(cluster, pools=tuple(replace(pool, batching=of_pool) for pool in cluster.pools))
        return bound(Setting(workload, cluster, LLAMA, TIMING, EngineConfig(batching=batching), slo=ANY)).goodput

    assert most(1, "concurrent") == pytest.approx(most(2, "decode_first"))
    assert most(1, "decode_first", "concurrent") == pytest.approx(most(2, "decode_first"))
    assert most(1, "concurrent", "decode_first") == pytest.approx(most(1, "decode_first"))
    assert most(2, "decode_first") == pytest.approx(2 * most(1, "decode_first"), rel=0.01)


def test_an_output_ends_where_the_context_does() -> None:
    """A prompt of 6 tokens of 8: the first token and one decode step, however long the output was to be."""
    small = replace(LLAMA, max_context=8)
    workload = Workload(np.zeros(1), np.array([6]), np.array([100]))
    least_s = (
        2 * TIMING.base_s + 6 * TIMING.per_prefill_token_s + TIMING.per_sequence_s + 7 * TIMING.per_context_token_s
    )
    found = bound(Setting(workload, mixed(1, GPU), small, TIMING, EngineConfig(), Closed(1), slo=ANY))
    shortest_s = shortest_time_s(Setting(workload, mixed(1, GPU), small, TIMING, EngineConfig(), Closed(1), slo=ANY))
    assert shortest_s == pytest.approx(least_s)
    assert found.good == 1
    assert found.goodput == pytest.approx(1 / least_s)


def test_the_time_that_an_slo_allows_is_for_outputs_that_fit_the_context() -> None:
    """One request a second for 100 s, each good within 2 s and one step: a window of arrivals longer than that."""
    small = replace(LLAMA, max_context=8)
    workload = Workload(np.arange(101.0), np.full(101, 6), np.full(101, 10_000))
    found = bound(Setting(workload, mixed(1, GPU), small, TIMING, EngineConfig(), OPEN, slo=Slo(2.0, 0.05)))
    assert found.goodput == pytest.approx(101 / 100.0)


def test_a_policy_that_changes_roles_may_do_anything_anywhere() -> None:
    """Of three instances one prefills; with any role all do, and the pool where requests arrive comes first."""
    cluster = disaggregated(1, 2, GPU)
    found = any_role(replace(cluster, pools=cluster.pools[::-1]))
    assert [(pool.name, pool.role, pool.instances) for pool in found.pools] == [
        ("prefill", "mixed", 1),
        ("decode", "mixed", 2),
    ]
    kept, free = (
        bound(Setting(requests(500, 2048, 1), one, LLAMA, TIMING, EngineConfig(), slo=ANY)) for one in (cluster, found)
    )
    assert free.goodput > 2.5 * kept.goodput
