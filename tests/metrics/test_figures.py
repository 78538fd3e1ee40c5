"""Every key of a summary is explained, and nothing else is; which way it is better is stated once, or is an error."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest
from omegaconf import OmegaConf

from experiments.league.offered import Offered
from experiments.tune.goals import read_goals
from framework.errors import InputError
from framework.metrics.figure import Better
from framework.metrics.figures import HEADLINE, HEADLINE_PER_GPU, METRICS, direction, metric
from framework.objective.capacity import Capacity
from framework.objective.goodput import Goodput, Objective
from framework.objective.tightness import Tightness
from framework.report.numbers import side_by_side
from framework.run.compose import compose
from tests.helpers.composing import configured
from traces.formats.own import write_parquet
from traces.frame import from_rows

TIER = re.compile(r"(cache_hit_rate|loaded_bytes)_(dram|ssd)")
SMALL = ("policy=chunked", "cluster.instances=1", "trace=synthetic", "trace.limit=60")
SCALED = ("policy._target_=tests.helpers.growing.Growing", "cluster.instances=2", "cluster.on_at_start=1")
RUNS: list[tuple[Objective, tuple[str, ...]]] = [
    (Goodput(), ()),
    (Goodput(), ("timing=roofline", "cluster.pp=2", "engine/speculation=draft")),
    (Goodput(), ("trace=mooncake", "engine.prefix_cache=true", "engine/prefix_stores=dram_ssd")),
    (Goodput(), ("trace.slo_classes={chat:0.5,batch:0.5}", "trace.tenants=2", "slo.reader_wait_s=1")),
    (Goodput(), ("policy=static", "gateway=flow_control")),
    (Goodput(), ("engine.kv_tokens=512",)),
    (Goodput(), ("policy._target_=tests.helpers.cancelling.Cancelling", "load.patience.wait_s=100")),
    (
        Goodput(),
        (
            "engine/faults=crash",
            "engine.faults.crashes=[{instance: 0, at_s: 5.0, down_s: 2.0}]",
            "engine.faults.slowdowns=[{instance: 0, at_s: 1.0, for_s: 2.0, factor: 2.0}]",
            "engine.faults.links=[{instance: 0, at_s: 1.0, for_s: 2.0, share: 0.5}]",
        ),
    ),
    (Goodput(), ("policy=distserve", "cluster=disaggregated", "cluster.instances=2")),
    (Goodput(), SCALED),
    (Goodput(), ("trace=mooncake", "trace.limit=600", "trace.rate=1", "load.warmup_s=100")),
    (Goodput(), ("load=closed", "load.concurrency=4", "load.duration_s=2")),
    (Tightness(), ()),
    (Offered([1.0]), ()),
    (Capacity(replicates=2, most_requests=300, tolerance=0.5), ()),
]
HIGHER = [
    "availability",
    *(
        "goodput_rps",
        "good_per_usd",
        "request_goodput",
        "slo_attainment",
        "goodput_per_gpu",
        "share_of_bound",
        "request_throughput",
    ),
    *("output_throughput", "total_token_throughput", "completed", "mfu", "mbu", "cache_hit_rate", "cache_hit_rate_gpu"),
    *(
        "accepted_per_step",
        "speculation_acceptance",
        "capacity",
        "capacity_per_gpu",
        "offered_capacity",
        "slo_tightness",
        "jain_index",
    ),
    *("capacity_share_of_bound", "programs_completed", "user_hit_rate", "tool_hit_rate"),
]
LOWER = [
    *("dropped", "lost_tokens", "dropped_failed", "slowed_share", "median_recovery_s", "p99_recovery_s"),
    *(
        "rejected",
        "failed",
        "cancelled",
        "gave_up",
        "sent_again",
        "shed",
        "expired",
        "preemptions",
        "out_of_memory_rate",
        "preempted_rate",
        "bubble_share",
        "idle_seat_share",
    ),
    *("service_difference", "worst_slowdown", "overdue_share"),
    *("mean_program_s", "median_program_s", "p99_program_s", "mean_program_slowdown", "p99_program_slowdown"),
    *("recomputed_tokens", "tail_s"),
    *("gpu_hours", "energy_j", "energy_per_token_j", "cost_usd", "usd_per_hour", "usd_per_million_good_tokens"),
]


def summary(objective: Objective, overrides: tuple[str, ...]) -> dict[str, Any]:
    return objective.measure(compose(configured(*SMALL, *overrides))).evaluation.summary


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    file = tmp_path_factory.mktemp("programs") / "calls.parquet"
    columns = {"arrival_s": [0.0], "input_tokens": [9], "output_tokens": [2], "trigger": ["user"]}
    write_parquet(from_rows(pl.DataFrame(columns), "calls", "synthetic"), file)
    programs = summary(Goodput(), ("trace=mooncake", f"trace.path={file}"))
    at_once = summary(Goodput(), ("trace=roll_out", "trace.prompts=2", "trace.samples=2"))
    return [*(summary(*run) for run in RUNS), programs, at_once]


@pytest.fixture(scope="module")
def keys(summaries: list[dict[str, Any]]) -> set[str]:
    return {TIER.sub(r"\1_TIER", key) for one in summaries for key in one}


def test_every_key_is_explained(keys: set[str]) -> None:
    assert not keys - METRICS.keys()


def test_nothing_else_is(keys: set[str]) -> None:
    assert not METRICS.keys() - keys


def test_every_key_has_a_row_of_its_own(keys: set[str]) -> None:
    assert all(metric(key).key == key and metric(key).meaning for key in keys)
    assert len({metric(key).in_table for key in keys}) == len(keys)


# --- which way is better ----------------------------------------------------------------------------------------------


def test_each_key_says_which_way_it_is_better() -> None:
    for key, known in METRICS.items():
        is_lower = key in LOWER or key.endswith("_ms")
        expected = Better.HIGHER if key in HIGHER else Better.LOWER if is_lower else Better.NEITHER
        assert known.better is expected, key


def test_what_is_no_number_has_no_better_side(summaries: list[dict[str, Any]]) -> None:
    for one in summaries:
        for key, value in one.items():
            if isinstance(value, (str, dict, list, bool)):
                assert metric(key).better is Better.NEITHER


@pytest.mark.parametrize("key", list(METRICS))
def test_a_search_looks_for_what_tables_star(key: str) -> None:
    better = METRICS[key].better
    if better is Better.NEITHER:
        with pytest.raises(InputError, match=rf"objectives={key}: neither more nor less of {key} is better; write \+"):
            read_goals(key, OmegaConf.create())
    else:
        (goal,) = read_goals(key, OmegaConf.create())
        assert goal.maximize == (better > 0)
    more, less = (read_goals(f"{sign}{key}", OmegaConf.create())[0].maximize for sign in "+-")
    assert (more, less) == (True, False)


def test_a_class_of_requests_has_the_better_side_of_all() -> None:
    assert metric("p99_ttft_ms@chat").better is Better.LOWER
    assert metric("slo_attainment@chat").better is Better.HIGHER
    assert metric("offered@chat").better is Better.NEITHER


def test_a_key_that_no_summary_has_is_an_error_where_a_side_is_needed() -> None:
    assert metric("own_score").better is Better.NEITHER
    with pytest.raises(InputError) as caught:
        direction("share_of_bond", "objectives=share_of_bond", "write a sign")
    line = str(caught.value)
    assert line.startswith("objectives=share_of_bond: nothing tells whether more or less of share_of_bond is better; ")
    assert "; write a sign, or choose a latency" in line
    assert line.endswith("; did you mean share_of_bound?")
    assert all(key in line for key in (*HIGHER, *LOWER))


def test_runs_are_ranked_by_what_should_be_high() -> None:
    assert direction(HEADLINE, "", "") is direction(HEADLINE_PER_GPU, "", "") is Better.HIGHER


# --- names and units --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "table", "page", "axis", "heading"),
    [
        ("goodput_rps", "goodput, req/s", "goodput (requests/s)", "goodput (requests/s)", "goodput\nreq/s"),
        ("p99_ttft_ms", "P99 TTFT, s", "TTFT P99 (s)", "P99 time to first token (s)", "TTFT s\nP99"),
        ("median_tpot_ms", *("median TPOT, ms", "TPOT P50 (ms)", "median time per output token (ms)", "TPOT ms\nP50")),
        ("std_itl_ms", "std TBT, ms", "TBT std (ms)", "std time between tokens (ms)", "TBT ms\nstd"),
        ("mfu", "MFU, %", "peak FLOP/s used (%)", "peak FLOP/s used (%)", "MFU\n%"),
        ("slo_attainment", *("SLO attainment, %", "SLO kept (%)", "requests within the SLO (%)", "SLO\nmet %")),
        (
            *("output_throughput", "output throughput, tok/s", "output (tokens/s)", "output throughput (tokens/s)"),
            "out\ntok/s",
        ),
        (
            *("p99_ttft_ms@chat", "P99 TTFT of chat, s", "TTFT P99 of chat (s)"),
            *("P99 time to first token of chat (s)", "TTFT s\nP99"),
        ),
        (
            *("loaded_bytes_ssd", "KV read from ssd, bytes", "KV read from ssd (bytes)", "KV read from ssd (bytes)"),
            "KV\nread\nfrom\nssd\nbytes",
        ),
        ("cache_hit_rate_ssd", "cache hits in ssd, %", *("cache hits in ssd (%)",) * 2, "cache\nhits\nin\nssd\n%"),
        ("completed", *("completed",) * 4),
        ("own_score", *("own_score",) * 3, "own\nscore"),
    ],
)  # fmt: skip
def test_a_key_is_called(key: str, table: str, page: str, axis: str, heading: str) -> None:
    known = metric(key)
    assert (known.in_table, known.on_page, known.on_axis) == (table, page, axis)
    assert known.heading == heading


def test_a_value_is_in_the_unit_that_is_named() -> None:
    own = {"slo_attainment": 0.5, "p99_ttft_ms": 1500.0, "p99_tpot_ms": 20.0, "gpus": 4, "mfu": None}
    shown = {key: metric(key).of(own) for key in (*own, "mbu")}
    assert shown == {
        "slo_attainment": 50.0, "p99_ttft_ms": 1.5, "p99_tpot_ms": 20.0, "gpus": 4.0, "mfu": None, "mbu": None
    }  # fmt: skip


@pytest.mark.parametrize("key", list(METRICS))
def test_units_and_scales_agree(key: str) -> None:
    known = METRICS[key]
    scale = {"%": 100.0, "s": 1e-3 if known.is_latency else 1.0}.get(known.unit, 1.0)
    assert known.scale == scale
    assert known.is_latency == key.endswith("_ms")


def test_a_latency_is_in_the_unit_in_which_it_reads_well() -> None:
    for key in ("p99_ttft_ms", "p99_tpot_ms", "mean_queue_ms"):
        assert metric(key).readable(999.9).in_table.endswith(", ms")
        assert metric(key).readable(999.9).scale == 1.0
        assert metric(key).readable(1000.0).in_table.endswith(", s")
        assert metric(key).readable(1000.0).scale == 1e-3
    assert metric("request_goodput").readable(5000.0) == metric("request_goodput")


def test_headings_beside_each_other_say_once_what_they_share() -> None:
    keys = ("slo_attainment", "median_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms")
    headings = side_by_side([metric(key).heading for key in keys])
    assert headings == ["SLO\nmet %", "TTFT s\nP50", "\nP99", "TPOT ms\nP99", "TBT ms\nP99"]
