"""The split that a load asks for, worked out by hand, and with every other split of the same instances."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from framework.bound.setting import Setting
from framework.diagnosis.remedies import remedies
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Closed, Load, Open
from framework.metrics.slo import Slo
from framework.objective.capacity import Capacity
from framework.objective.goodput import Goodput
from framework.report.run_table import run_table
from framework.run.compose import compose
from framework.run.job import flattened
from framework.run.run_key import run_key
from framework.simulate import simulate
from framework.sizing.by_load import _chunks_s, sized
from framework.system.cluster import ClusterSpec, disaggregated
from framework.system.split import Split
from framework.timing.affine import Affine
from framework.timing.table import StepRow, stack
from framework.workload import Workload, consecutive
from tests.helpers.composing import configured
from tests.helpers.scenarios import MODEL as SHORT
from tests.helpers.servers import GPU

BUDGET, PROMPT, OUTPUT, STEP_S = 2048, 1024, 101, 2.0**-6
TIMING = Affine(base_s=STEP_S, per_prefill_token_s=2.0**-14)
PROMPT_S = (STEP_S + BUDGET * 2.0**-14) * PROMPT / BUDGET  # its share of a step that is full
CONTEXT = PROMPT + OUTPUT / 2
LOOSE = Slo(ttft_s=None, tpot_s=None)
MODEL = replace(SHORT, max_context=10_000)


def workload(prompt: int = PROMPT, output: int = OUTPUT, hash_ids: list[int] | None = None, size: int = 16) -> Workload:
    """Two requests a second, all alike; each has the blocks `hash_ids`."""
    count = 50
    return Workload(
        np.arange(count) / 2.0,
        np.full(count, prompt),
        np.full(count, output),
        hash_ids=np.tile(np.asarray(hash_ids or [], np.int64), count),
        hash_spans=None if hash_ids is None else consecutive([len(hash_ids)] * count),
        hash_block_tokens=size if hash_ids else 0,
    )


def split_of(
    cluster: ClusterSpec | None = None,
    requests: Workload | None = None,
    slo: Slo = LOOSE,
    load: Load | None = None,
    timing: Affine = TIMING,
    **engine: Any,
) -> Split:
    cluster = cluster or disaggregated("auto", None, GPU, link_bandwidth_bytes_s=1e12)
    options = EngineConfig(**{"max_batch": 8, "kv_tokens": 10**6, "kv_fraction": 1.0} | engine)
    setting = Setting(requests or workload(), cluster, MODEL, timing, options, load or Open(), slo=slo)
    found = sized(cluster, setting).split
    assert found is not None
    return found


def test_seconds_of_a_request_in_each_phase() -> None:
    found = split_of()
    assert found.prefill_s == pytest.approx(PROMPT_S, rel=1e-12)
    assert found.decode_s == pytest.approx((OUTPUT - 1) * STEP_S / 8, rel=1e-12)
    assert (found.batch, found.batch_limit, found.rate_rps) == (8, "seats", 2.0)
    assert found.loads == pytest.approx((2 * PROMPT_S / found.prefill, 2 * found.decode_s / found.decode))


@pytest.mark.parametrize(
    ("given", "batch", "limit"),
    [
        ({"kv_tokens": int(5.5 * CONTEXT)}, 5, "memory"),
        ({"kv_tokens": int(1.5 * CONTEXT)}, 1, "memory"),
        ({"kv_tokens": int(0.9 * CONTEXT)}, 1, "memory"),
        ({"timing": replace(TIMING, per_sequence_s=2.0**-9), "slo": Slo(None, STEP_S + 3.5 * 2.0**-9)}, 3, "TPOT"),
        ({"timing": replace(TIMING, per_sequence_s=2.0**-9), "slo": Slo(None, STEP_S / 2)}, 1, "TPOT"),
        ({"load": Closed(9)}, 8, "seats"),
        ({"load": Closed(8)}, 8, "seats"),
        ({"load": Closed(7)}, 7, "clients"),
    ],
)
def test_what_limits_a_batch(given: dict[str, Any], batch: int, limit: str) -> None:
    found = split_of(disaggregated("auto", None, GPU, instances=2, link_bandwidth_bytes_s=1e12), **given)
    assert (found.batch, found.batch_limit) == (batch, limit)
    assert (found.loads is None) == ("load" in given)


def test_clients_are_shared_by_those_that_decode() -> None:
    slow = disaggregated("auto", None, GPU, instances=6, link_bandwidth_bytes_s=PROMPT * MODEL.kv_bytes_per_token / 2.0)
    found = split_of(slow, load=Closed(7))  # links ask for as many of each
    assert (found.decode, found.batch, found.batch_limit) == (3, 2, "clients")
    assert found.decode_s == pytest.approx((OUTPUT - 1) * STEP_S / 2)
    found = split_of(slow, load=Closed(2))  # one of the three has none at a time
    assert (found.decode, found.batch, found.batch_limit) == (3, 1, "clients")


@pytest.mark.parametrize(("prompt", "output", "prefill"), [(8000, 2, 4), (4000, 60, 3), (1000, 100, 2), (10, 1000, 1)])
def test_longer_prompts_ask_for_more_that_prefill(prompt: int, output: int, prefill: int) -> None:
    assert split_of(requests=workload(prompt, output)).prefill == prefill


def test_steps_that_cost_nothing_ask_for_nothing() -> None:
    found = split_of(timing=Affine(per_context_token_s=2.0**-20))
    assert (found.prefill, found.prefill_s) == (1, 0.0)


def test_the_rate_has_no_part_in_the_choice() -> None:
    slow = workload()
    fast = replace(slow, arrival_s=slow.arrival_s / 1000)
    assert replace(split_of(requests=fast), rate_rps=2.0) == split_of(requests=slow)
    assert split_of(requests=replace(slow, arrival_s=0 * slow.arrival_s)).rate_rps is None


def test_a_tight_ttft_asks_for_more_that_prefill() -> None:
    found = [split_of(slo=Slo(limit_s, None), max_batch=16).prefill for limit_s in (None, 10.0, 1.05 * PROMPT_S)]
    assert found[0] <= found[1] < found[2]


def test_where_no_prompt_keeps_its_ttft_the_split_is_that_of_the_tightest_that_some_keep() -> None:
    found = [split_of(slo=Slo(share * PROMPT_S, None), max_batch=16).prefill for share in (0.01, 0.9, 1.1)]
    assert found == 3 * [found[0]]
    assert found[0] < 4


def strain(
    prefill: int, decode: int, prompt_s: float, variation: float, decode_s: float, ttft_s: float, transfer_s: float
) -> float:
    """Seconds of the more loaded pool a request, over what it may be loaded, by trying loads one after another."""
    loads = np.linspace(0.0, 0.7, 4_001)[1:]
    waits_s = prompt_s * (1 + variation) / 2 * loads ** (np.sqrt(2.0 * prefill + 2.0) - 1) / (prefill * (1 - loads))
    kept = loads[np.log(10.0) * waits_s <= ttft_s - prompt_s]
    prefills = prompt_s / prefill / kept.max()
    decodes = decode_s / decode * (1 + 1.28 / np.sqrt(8.0 * decode))
    return float(max(prefills, decodes, transfer_s / 0.7 / min(prefill, decode)))


def test_the_split_is_the_best_of_all_by_a_second_computation() -> None:
    """Prompts of two lengths; links that are slow enough to count."""
    rng, found = np.random.default_rng(5), set()
    for _ in range(250):
        mean, output = int(rng.integers(300, 4096)), int(rng.integers(2, 400))
        spread, instances = int(rng.integers(0, mean)), int(rng.integers(2, 40))
        prompt_s = (STEP_S + BUDGET * 2.0**-14) * mean / BUDGET
        ttft_s, transfer_s = (prompt_s * float(rng.uniform(*among)) for among in ((1.1, 4.0), (0.1, 1.2)))
        link_bytes_s = mean * MODEL.kv_bytes_per_token / transfer_s
        cluster = disaggregated("auto", None, GPU, instances=instances, link_bandwidth_bytes_s=link_bytes_s)
        mixed = replace(workload(output=output), input_tokens=np.tile([mean - spread, mean + spread], 25))
        split = split_of(cluster, mixed, Slo(ttft_s, None))
        asked = (prompt_s, (spread / mean) ** 2, (output - 1) * STEP_S / 8, ttft_s, transfer_s)
        least = min(strain(count, instances - count, *asked) for count in range(1, instances))
        assert strain(split.prefill, split.decode, *asked) <= least * (1 + 1e-3)
        found.add(split.prefill)
    assert len(found) > 12


def test_what_a_step_holds_of_a_prompt_is_told_by_the_engine() -> None:
    """Attention of a prompt does not depend on chunks here; the start of a step is paid for each."""
    base_s = {most: (STEP_S + most * 2.0**-14) * PROMPT / most for most in (BUDGET, 512, 128)}
    assert split_of(token_budget=512).prefill_s == pytest.approx(base_s[512])
    assert split_of(longest_chunk=128).prefill_s == pytest.approx(base_s[128])
    squares = replace(TIMING, prefill_quadratic_s=2.0**-30)
    assert split_of(timing=squares).prefill_s == pytest.approx(base_s[BUDGET] + PROMPT**2 * 2.0**-30)


def test_steps_of_prompts_have_no_decodes() -> None:
    assert split_of(timing=replace(TIMING, per_sequence_s=1.0)).prefill_s == pytest.approx(PROMPT_S)


def test_chunks_of_a_prompt_begin_behind_what_is_cached() -> None:
    """From 3 to 20 in chunks of 8, 8 and 1 tokens, each of which costs the square of its own."""
    assert _chunks_s(stack([StepRow(masked_s=1.0)]), 3, 20, 8) == 64 + 64 + 1


def test_the_share_of_its_time_that_a_pool_is_asked_for() -> None:
    apart = Split(3, 5, 2.0, 0.75, 4.0, 8, "seats", 0.125)
    assert apart.loads == (2.0 * 0.75 / 3, 2.0 * 4.0 / 5)
    together = replace(apart, decode_prefills=True)
    assert together.loads == (2.0 * 4.75 / 8, 2.0 * 4.75 / 8)
    assert replace(apart, rate_rps=None).loads is None
    assert apart.figures() == {
        "prefill": 3,
        "decode": 5,
        "rate_rps": 2.0,
        "prefill_s": 0.75,
        "decode_s": 4.0,
        "batch": 8,
        "batch_limit": "seats",
        "transfer_s": 0.125,
        "decode_prefills": False,
        "prefill_load": 0.5,
        "decode_load": 1.6,
    }


def test_steps_are_as_large_as_the_policy_lays_them_out() -> None:
    words = ("policy=taichi", "trace=synthetic", "trace.limit=50")
    small, large = (compose(configured(*words, f"policy.prefill_chunk={size}")).cluster.split for size in (128, 4096))
    assert small is not None
    assert large is not None
    assert small.prefill_s > 1.5 * large.prefill_s
    assert small.decode_s == large.decode_s


def test_lengths_are_weighed_by_requests_and_contexts_by_steps() -> None:
    mixed = replace(workload(), input_tokens=np.tile([200, 1000], 25), output_tokens=np.tile([301, 11], 25))
    found = split_of(requests=mixed, timing=replace(TIMING, per_context_token_s=2.0**-20))
    assert found.prefill_s == pytest.approx(PROMPT_S * 600 / PROMPT)
    context = (301 * (200 + 150.5) + 11 * (1000 + 5.5)) / 312
    step_s = STEP_S + int(8 * context) * 2.0**-20
    assert found.decode_s == pytest.approx(155 * step_s / 8)


def test_outputs_end_where_the_context_of_the_model_does() -> None:
    long = workload(prompt=MODEL.max_context - 10, output=1000)
    assert split_of(requests=long, max_batch=1).decode_s == pytest.approx(9 * STEP_S)


def test_accepted_drafts_save_steps() -> None:
    found = split_of(speculation=Speculation(depth=2, acceptance=0.5))
    assert found.decode_s == pytest.approx((OUTPUT - 1) / 1.75 * STEP_S / 8)
    slow, limit_s = replace(TIMING, per_sequence_s=2.0**-9), (STEP_S + 3.5 * 2.0**-9) / 1.75  # of a token
    assert split_of(speculation=Speculation(depth=2, acceptance=0.5), timing=slow, slo=Slo(None, limit_s)).batch == 3


def test_pools_may_have_seats_of_their_own() -> None:
    cluster = disaggregated("auto", None, GPU, link_bandwidth_bytes_s=1e12)
    found = split_of(replace(cluster, pools=tuple(replace(pool, max_batch=2) for pool in cluster.pools)))
    assert (found.batch, found.batch_limit) == (2, "seats")


def test_the_tightest_limit_that_one_in_ten_has_counts() -> None:
    """Requests of a class of their own, as few as one in ten or fewer."""
    slow = replace(TIMING, per_sequence_s=2.0**-9)
    slo = Slo(None, 1.0, classes={"fast": {"tpot_s": STEP_S + 2.5 * 2.0**-9}})
    few, many = (tuple("fast" if k < count else "other" for k in range(50)) for count in (4, 6))
    assert split_of(requests=replace(workload(), slo_class=few), slo=slo, timing=slow).batch_limit == "seats"
    assert split_of(requests=replace(workload(), slo_class=many), slo=slo, timing=slow).batch == 2


def test_what_is_cached_is_not_prefilled() -> None:
    """Half of each prompt is the same; what is held in between decides whether it is still there."""
    prompts = workload(prompt=1024, hash_ids=list(range(512 // 16)))
    assert split_of(requests=prompts).prefill_s == pytest.approx(PROMPT_S)
    shared = split_of(requests=prompts, prefix_cache=True).prefill_s
    assert shared == pytest.approx(PROMPT_S * (1 - 0.49), rel=0.01)  # the first has nothing to share
    tight = split_of(requests=prompts, prefix_cache=True, kv_tokens=256).prefill_s
    assert tight == pytest.approx(PROMPT_S)
    below = PrefixStores({"dram": Tier(capacity_tokens=256), "ssd": Tier(capacity_tokens=16)})
    stored = split_of(requests=prompts, prefix_cache=True, kv_tokens=256, prefix_stores=below).prefill_s
    assert stored == pytest.approx(shared)


def test_a_slow_link_counts_for_both_its_ends() -> None:
    """A transfer of 2 s on each link is what an equal split serves best, whatever the steps take."""
    bytes_ = PROMPT * MODEL.kv_bytes_per_token
    slow = disaggregated("auto", None, GPU, instances=6, link_bandwidth_bytes_s=bytes_ / 2.0)
    found = split_of(slow)
    assert found.prefill == 3
    assert found.transfer_s == pytest.approx(2.0)


def test_ranks_that_step_together_are_divided_in_whole_groups() -> None:
    plain = split_of(disaggregated("auto", None, GPU, instances=6, link_bandwidth_bytes_s=1e12))
    ranked = disaggregated("auto", None, GPU, instances=6, dp=2, rank_choice="routed", link_bandwidth_bytes_s=1e12)
    found = split_of(ranked)
    assert found.decode_s == pytest.approx(plain.decode_s / 2)  # a step of both ranks takes what one of one takes
    assert found.prefill_s == pytest.approx((STEP_S + 2 * BUDGET * 2.0**-14) * PROMPT / BUDGET / 2)
    assert found.transfer_s == pytest.approx(plain.transfer_s)  # a group has the link of an instance
    assert found.prefill + found.decode == 6
    assert [pool.instances for pool in ranked.divided(found).pools] == [2 * found.prefill, 2 * found.decode]


def test_stages_have_a_micro_batch_each() -> None:
    """A full step has one for each of two stages, half as large."""
    staged = disaggregated("auto", None, GPU, instances=3, pp=2, link_bandwidth_bytes_s=1e12)
    assert split_of(staged).prefill_s == pytest.approx(PROMPT_S)


def test_one_is_enough_that_only_prefills_where_those_that_decode_can() -> None:
    """Unless a full step of prompts is longer than TPOT allows."""
    words = ("policy=dynamo", "trace=synthetic", "trace.limit=50", "trace.input.mean=4000", "trace.output.mean=4")
    bearable = compose(configured(*words, "slo.tpot_s=1")).cluster.split
    slow = compose(configured(*words, "slo.tpot_s=0.02")).cluster.split
    assert bearable is not None
    assert slow is not None
    assert (bearable.prefill, bearable.decode_prefills) == (1, True)
    assert bearable.loads is not None
    assert bearable.loads[0] == bearable.loads[1]
    assert json.loads(json.dumps(bearable.figures())) == bearable.figures()
    assert slow.prefill > 1
    assert not slow.decode_prefills
    every = compose(configured("policy=taichi", *words[1:], "slo.tpot_s=1")).cluster.split  # of which all do both
    assert every is not None
    assert every.prefill > 1
    assert not every.decode_prefills


@pytest.mark.parametrize("cached", [False, True])
def test_a_full_step_of_prompts_lasts_as_long_whatever_is_cached(cached: bool) -> None:
    full_s = STEP_S + BUDGET * 2.0**-14
    cluster = disaggregated("auto", None, GPU, link_bandwidth_bytes_s=1e12)
    both = replace(cluster, pools=(cluster.pools[0], replace(cluster.pools[1], role="mixed")))
    prompts = workload(hash_ids=list(range(512 // 16)))
    found = [
        split_of(both, prompts, Slo(None, limit_s), prefix_cache=cached).decode_prefills
        for limit_s in (0.9 * full_s, 1.1 * full_s)
    ]
    assert found == [False, True]


# --- by the user's door -----------------------------------------------------------------------------------------------

PROMPTS = ("trace=synthetic", "trace.requests=400", "trace.input.mean=6000", "trace.output.mean=20")
OUTPUTS = ("trace=synthetic", "trace.requests=400", "trace.input.mean=300", "trace.output.mean=900")


@pytest.mark.parametrize(
    ("load", "rate"),
    [
        pytest.param(PROMPTS, 9.0, marks=pytest.mark.slow),
        (PROMPTS, 14.0),
        pytest.param(OUTPUTS, 20.0, marks=pytest.mark.slow),
        (OUTPUTS, 40.0),
    ],
)
@pytest.mark.parametrize("policy", ["distserve", "taichi"])
def test_no_other_split_serves_a_load_much_better(policy: str, load: tuple[str, ...], rate: float) -> None:
    words = (f"policy={policy}", *load, f"trace.rate={rate}", "cluster.instances=4")

    def attainment(*further: str) -> float:
        summary = Goodput().measure(compose(configured(*words, *further))).evaluation.summary
        return float(summary["slo_attainment"])

    others = [attainment(f"cluster.prefill={count}") for count in (1, 2, 3)]
    assert attainment() >= max(others) - 0.05, others


def test_a_search_divides_for_each_rate() -> None:
    words = ("policy=distserve", *PROMPTS, "cluster.instances=3")
    search = Capacity(tolerance=0.2, most_requests=600)
    auto = compose(configured(*words))
    assert auto.cluster.split is not None
    tried = auto.at_rate(3.0).cluster.split
    assert tried is not None
    assert tried.rate_rps == pytest.approx(3.0)
    found = search.measure(auto)
    given = compose(configured(*words, f"cluster.prefill={auto.cluster.split.prefill}"))
    assert found.value == search.measure(given).value
    assert found.evaluation.summary["split"]["rate_rps"] == pytest.approx(found.value)


def test_the_split_is_the_same_each_time_and_goes_into_the_summary() -> None:
    config = configured("policy=distserve", *PROMPTS)
    one, other = compose(config), compose(config)
    assert one.cluster == other.cluster
    assert run_key(flattened(config), one) == run_key(flattened(config), other)
    summary = Goodput().measure(one).evaluation.summary
    split = one.cluster.split
    assert split is not None
    assert json.loads(json.dumps(summary["split"])) == split.figures()
    assert "split" not in Goodput().measure(compose(configured("policy=chunked", *PROMPTS))).evaluation.summary


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("policy=distserve", "cluster.instances=4"),
            r"split 3 prefill \+ 1 decode at [\d.]+ req/s: prefill [\d.]+ s a",
        ),
        (
            ("policy=distserve", "load=closed", "load.concurrency=3"),
            r"split \d prefill \+ \d decode: prefill [\d.]+ s a",
        ),
        (
            ("policy=dynamo", "slo.tpot_s=1"),
            r"split 1 prefill \+ 4 decode, which prefill too, at [\d.]+ req/s: prefill",
        ),
        (("policy=distserve", "cluster.prefill=3"), ""),
    ],
)
def test_the_table_of_a_run_has_it_in_a_line(words: tuple[str, ...], line: str) -> None:
    experiment = compose(configured(*words, *PROMPTS))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(run_table(Goodput().measure(experiment).evaluation, experiment.slo))
    shown = console.export_text()
    assert re.search(line, shown) if line else "split" not in shown


def test_remedies_of_a_run_that_was_divided_set_both_numbers() -> None:
    config = configured("policy=distserve", *PROMPTS, "cluster.instances=4")
    experiment = compose(config)
    assert [pool.instances for pool in experiment.cluster.pools] == [3, 1]
    words = [one.text for one in remedies(flattened(config), experiment, ["prefill", "decode"])]
    assert "cluster.instances=null cluster.prefill=4 cluster.decode=1" in words
    assert "cluster.instances=null cluster.prefill=3 cluster.decode=2" in words
    assert "cluster.instances=null cluster.prefill=2 cluster.decode=2" in words
    config = configured("policy=distserve", *PROMPTS, "cluster.prefill=2", "cluster.decode=2")
    words = [one.text for one in remedies(flattened(config), compose(config), ["prefill"])]
    assert "cluster.prefill=3" in words
    assert "cluster.prefill=3 cluster.decode=1" in words


def test_a_cluster_that_no_load_has_divided_does_not_run() -> None:
    with pytest.raises(InputError, match=r"^cluster\.prefill=auto: no load has set"):
        simulate(workload(), disaggregated("auto", None, GPU), MODEL, TIMING)
