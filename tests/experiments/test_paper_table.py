"""Tables from a store: which runs share a cell, what is said of them, how they are written, and how mistakes end."""

from __future__ import annotations

import csv
import io
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from experiments.table.cells import Figures
from experiments.table.command import main, read_request, tabulate
from experiments.table.csv_file import as_csv
from experiments.table.formats import _as_rich, as_latex, as_markdown, as_text
from experiments.table.select import nearest
from experiments.table.sheet import Sheet, lay_out, with_interval
from framework.errors import InputError
from framework.metrics.statistics import compare, estimate
from framework.run.store import Record, Store
from framework.run.sweep import Sweep
from tests.helpers.launcher import typed

SEEDS = range(5)
ROUTING = {"chunked": "least_queued", "distserve": "least_queued", "ares": "round_robin"}
CLUSTERS = {"chunked": "mixed", "distserve": "disaggregated", "ares": "disaggregated"}


def record(
    policy: str = "chunked",
    trace: str = "synthetic",
    seed: int = 0,
    source: str | None = None,
    config: Mapping[str, Any] | None = None,
    **summary: Any,
) -> Record:
    """A run; `config` changes settings, `summary` figures."""
    settings: dict[str, Any] = {
        "seed": seed,
        "trace.seed": seed,
        "trace.name": trace,
        "trace.rate_scale": 1.0,
        "trace.resample_s": None,
        "trace.path": None,
        "trace.format": None,
        "slo.ttft_s": 2.0,
        "slo.tpot_s": 0.05,
        "slo.classes": {},
        "policy.routing": ROUTING[policy],
        "engine.token_budget": 2048,
        **({"cluster.prefill": 3} if CLUSTERS[policy] == "disaggregated" else {"cluster.instances": 5}),
        **(config or {}),
    }
    figures: dict[str, Any] = {
        "goodput_rps": 8.0 + seed,
        "p99_ttft_ms": 100.0 + seed,
        "preemptions": 0,
        "offered": 100,
        "completed": 100,
        "rejected": 0,
        "failed": 0,
        "gpus": 5,
        "load": "open",
        "policy": policy,
        "trace": trace,
        "trace_source": source or ("synthetic" if trace == "synthetic" else "twin"),
        "seed": seed,
        "timing_source": "measured (h100)",
        "git_revision": "abc",
        "extrapolated": 0.0,
        "extrapolation": 0.5,
        **summary,
    }
    choices = {"policy": policy, "cluster": CLUSTERS[policy], "trace": trace, "model": "llama3_8b", "gpu": "h100"}
    key = repr((sorted(settings.items(), key=str), figures["git_revision"]))
    return Record(key, settings, choices, figures, figures["goodput_rps"])


def series(policy: str, goodputs: Sequence[float], **changes: Any) -> list[Record]:
    """A run a seed."""
    return [record(policy, seed=seed, goodput_rps=value, **changes) for seed, value in enumerate(goodputs)]


CHUNKED = (8.0, 9.0, 10.0, 11.0, 12.0)
ARES = (8.5, 9.61, 10.42, 11.48, 12.52)
DISTSERVE = (7.0, 8.11, 9.02, 9.89, 11.01)
THREE = [*series("chunked", CHUNKED), *series("ares", ARES), *series("distserve", DISTSERVE)]


def table(records: Sequence[Record], *arguments: str) -> Figures:
    return tabulate(read_request(main.read(arguments)), records)


def sheet(records: Sequence[Record], *arguments: str) -> Sheet:
    request = read_request(main.read(arguments))
    return lay_out(tabulate(request, records), request.filters)


def text(records: Sequence[Record], *arguments: str) -> str:
    return as_text(sheet(records, *arguments), 100)


def rows(found: Figures) -> list[dict[str, str]]:
    return list(csv.DictReader(as_csv(found).splitlines()))


def refusal(records: Sequence[Record], *arguments: str) -> str:
    with pytest.raises(InputError) as caught:
        table(records, *arguments)
    line = str(caught.value)
    assert "\n" not in line
    return line


# --- figures ----------------------------------------------------------------------------------------------------------


def test_cells_are_means_with_intervals_over_seeds() -> None:
    cells = table(THREE).cells["goodput_rps"]
    assert list(cells) == [
        (("ares",), ("synthetic",)),
        (("chunked",), ("synthetic",)),
        (("distserve",), ("synthetic",)),
    ]
    chunked = cells[("chunked",), ("synthetic",)].level
    assert chunked.mean == 10.0
    assert chunked.half_width == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)  # t(0.975, 4) of any table


def of_classes(seed: int, **classes: dict[str, Any]) -> Record:
    return record(seed=seed, classes=classes)


def test_a_class_of_requests_has_figures_of_its_own() -> None:
    batch, chat = {"p99_ttft_ms": 900.0, "slo_attainment": 0.5}, {"p99_ttft_ms": 50.0, "slo_attainment": None}
    records = [of_classes(0, batch=batch, chat=chat), of_classes(1, batch={"p99_ttft_ms": 1100.0})]
    found = table(records, "metric=p99_ttft_ms@batch,p99_ttft_ms,slo_attainment@chat")
    means = {key: cells[("chunked",), ("synthetic",)].level.mean for key, cells in found.cells.items()}
    assert means["p99_ttft_ms@batch"] == 1000.0
    assert means["p99_ttft_ms"] == 100.5
    assert math.isnan(means["slo_attainment@chat"])  # which the second run does not have
    shown = " ".join(text(records, "columns=metric", "metric=p99_ttft_ms@batch,goodput_rps").split())
    assert "P99 TTFT of batch, s" in shown
    assert "chunked 1.0 ± 1.3" in shown


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("p99_ttft_ms@bulk", "metric=p99_ttft_ms@bulk: no run has this class of requests; there are batch, chat"),
        ("p99_ttft_ms@", "metric=p99_ttft_ms@: no run has this class of requests; there are batch, chat"),
        ("ttft@batch", "metric=ttft@batch: did you mean p99_ttft_ms? there are p99_ttft_ms"),
    ],
)
def test_a_class_that_no_run_has_is_one_line(key: str, message: str) -> None:
    own = {"p99_ttft_ms": 900.0}
    assert refusal([of_classes(0, batch=own, chat=own)], f"metric={key}") == message


def test_runs_without_classes_say_so() -> None:
    assert "have no classes" in refusal(THREE, "metric=p99_ttft_ms@batch")
    assert "have no classes" in refusal([record(classes=3)], "metric=p99_ttft_ms@batch")


def test_differences_are_paired_by_seed_whatever_the_order() -> None:
    cells = table(list(reversed(THREE)), "baseline=chunked").cells["goodput_rps"]
    found = cells[("ares",), ("synthetic",)].difference
    assert found is not None
    paired = np.asarray([0.5, 0.61, 0.42, 0.48, 0.52])
    assert found.comparison.mean == pytest.approx(0.506)
    assert found.comparison.p == pytest.approx(compare(paired).p)
    assert found.comparison.half_width < 0.3 < estimate(np.asarray(CHUNKED)).half_width
    assert found.change == pytest.approx(100 * np.mean(paired / CHUNKED))
    assert found.is_significant
    assert cells[("chunked",), ("synthetic",)].difference is None


def test_p_values_are_adjusted_for_the_comparisons_of_a_metric() -> None:
    lines = {row["policy"]: row for row in rows(table(THREE, "baseline=chunked"))}
    small, large = sorted(("ares", "distserve"), key=lambda policy: float(lines[policy]["p"]))
    assert float(lines[small]["p_holm"]) == pytest.approx(2 * float(lines[small]["p"]))
    assert float(lines[large]["p_holm"]) == max(float(lines[small]["p_holm"]), float(lines[large]["p"]))
    assert "5 % over the 2 comparisons" in " ".join(text(THREE, "baseline=chunked").split())


def test_seeds_that_only_one_side_has_are_left_out_of_its_difference() -> None:
    some = [one for one in THREE if (one.choices["policy"], one.summary["seed"]) != ("ares", 4)]
    found = table(some, "baseline=chunked").cells["goodput_rps"][("ares",), ("synthetic",)]
    assert len(found.values) == 4
    assert found.difference is not None
    assert found.difference.comparison.pairs == 4
    assert found.difference.comparison.mean == pytest.approx(2.01 / 4)
    assert "4 to 5 replicates" in text(some)
    assert "Fewer than 5 replicates: ares / synthetic." in text(some)


def test_too_few_replicates_conclude_nothing() -> None:
    three = [one for one in THREE if one.summary["seed"] < 3]
    found = table(three, "baseline=chunked")
    cells = found.cells["goodput_rps"].values()
    assert not any(cell.difference.is_significant for cell in cells if cell.difference)
    assert not any(cell.is_near_best for cell in cells)
    assert "3 pairs are too few to conclude from 2 comparisons" in " ".join(text(three, "baseline=chunked").split())
    assert "at least 4 replicates" in " ".join(text(three, "baseline=chunked").split())
    assert "too few" not in text(THREE, "baseline=chunked")
    assert re.search(r"ares +\+0\.51 ± 0\.24 \(\+5\.7 %\)\?", text(three, "baseline=chunked"))
    assert "Do not trust it" in " ".join(text(three, "baseline=chunked").split())
    assert "Do not trust it" not in " ".join(text(THREE, "baseline=chunked").split())


def test_one_run_has_no_interval_and_no_test() -> None:
    one = [record("chunked"), record("ares", goodput_rps=9.0)]
    shown = text(one, "baseline=chunked")
    assert "±" not in shown
    assert "*" not in shown.split("- ")[0]
    assert "One run a cell" in shown
    assert "+1.00 (+12 %)" in shown


def test_the_table_is_the_same_whatever_the_order_of_the_runs() -> None:
    records = [*THREE, *series("ares", ARES, trace="reasoning"), *series("chunked", CHUNKED, trace="reasoning")]
    arguments = ("baseline=chunked", "metric=goodput_rps,p99_ttft_ms")
    expected = (text(records, *arguments), as_csv(table(records, *arguments)))
    for seed in range(5):
        mixed = random.Random(seed).sample(records, len(records))
        assert (text(mixed, *arguments), as_csv(table(mixed, *arguments))) == expected


# --- the best ---------------------------------------------------------------------------------------------------------


def best(found: Figures, metric: str = "goodput_rps") -> set[Any]:
    return {place for place, cell in found.cells[metric].items() if cell.is_best}


def test_the_best_is_the_highest_goodput_and_the_lowest_latency() -> None:
    slow = [record("chunked", seed=seed, p99_ttft_ms=200.0 + seed) for seed in SEEDS]
    fast = [record("ares", seed=seed, p99_ttft_ms=150.0 + seed, goodput_rps=7.0 + seed) for seed in SEEDS]
    found = table([*slow, *fast], "metric=goodput_rps,p99_ttft_ms,offered")
    assert best(found) == {(("chunked",), ("synthetic",))}
    assert best(found, "p99_ttft_ms") == {(("ares",), ("synthetic",))}
    assert best(found, "offered") == set()


def test_what_cannot_be_told_from_the_best_is_marked() -> None:
    near = (8.6, 9.3, 10.7, 11.3, 12.4)
    records = [*series("chunked", near), *series("ares", ARES), *series("distserve", DISTSERVE)]
    cells = {row[0]: cell for (row, _), cell in table(records).cells["goodput_rps"].items()}
    assert cells["ares"].is_best
    assert cells["chunked"].is_near_best
    assert not cells["distserve"].is_near_best
    shown = text(records)
    assert re.search(r"ares +▸ 10\.5 ± 1\.9\n", shown)
    assert re.search(r"chunked +10\.5 ± 1\.9†", shown)
    assert re.search(r"distserve +9\.0 ± 1\.9\n", shown)


def test_equal_means_are_all_best_unless_there_is_nothing_else() -> None:
    records = [*series("chunked", CHUNKED), *series("ares", CHUNKED), *series("distserve", DISTSERVE)]
    assert len(best(table(records, "metric=goodput_rps,preemptions"))) == 2
    assert best(table(records, "metric=preemptions"), "preemptions") == set()


def test_only_runs_on_the_same_requests_compete() -> None:
    rates = [
        record(policy, seed=seed, config={"trace.rate_scale": rate}, goodput_rps=level * rate + seed)
        for policy, level in (("chunked", 10.0), ("ares", 11.0))
        for rate in (1.0, 2.0)
        for seed in SEEDS
    ]
    both = table(rates, "rows=policy,trace.rate_scale", "columns=metric")
    assert best(both) == {(("ares", 1.0), ()), (("ares", 2.0), ())}
    across = table(rates, "rows=trace.rate_scale", "columns=policy")
    assert across.in_columns
    assert best(across) == {((1.0,), ("ares",)), ((2.0,), ("ares",))}
    assert "the best of each row" in text(rates, "rows=trace.rate_scale", "columns=policy")


# --- baselines --------------------------------------------------------------------------------------------------------


def test_a_column_can_be_the_baseline() -> None:
    found = table(THREE, "rows=trace", "columns=policy", "baseline=chunked").cells["goodput_rps"]
    difference = found[("synthetic",), ("ares",)].difference
    assert difference is not None
    assert difference.comparison.mean == pytest.approx(0.506)


def test_a_baseline_of_one_key_is_held_against_rows_that_share_the_others() -> None:
    budgets = [
        record(policy, seed=seed, config={"engine.token_budget": budget}, goodput_rps=level + seed * seed / 10)
        for policy, budget, level in (
            ("chunked", 512, 1.0),
            ("chunked", 2048, 2.0),
            ("ares", 512, 4.0),
            ("ares", 2048, 8.0),
        )
        for seed in SEEDS
    ]
    arguments = ("rows=policy,engine.token_budget", "columns=metric")
    cells = table(budgets, *arguments, "baseline=chunked").cells["goodput_rps"]
    changes = {row: cell.difference.comparison.mean for (row, _), cell in cells.items() if cell.difference}
    assert changes == pytest.approx({("ares", 512): 3.0, ("ares", 2048): 6.0})
    cells = table(budgets, *arguments, "baseline=chunked,512").cells["goodput_rps"]
    changes = {row: cell.difference.comparison.mean for (row, _), cell in cells.items() if cell.difference}
    assert changes == pytest.approx({("chunked", 2048): 1.0, ("ares", 512): 3.0, ("ares", 2048): 7.0})


def test_a_baseline_that_is_none_is_refused() -> None:
    line = refusal(THREE, "baseline=chunk")
    assert "did you mean chunked?" in line
    assert "ares, chunked, distserve, synthetic" in line


def test_runs_on_other_requests_are_not_paired() -> None:
    records = [*series("chunked", CHUNKED), *series("chunked", CHUNKED, trace="reasoning")]
    line = refusal(records, "rows=trace", "columns=policy", "baseline=synthetic")
    assert "reasoning, chunked and its baseline differ in trace.name (reasoning, synthetic)" in line
    unlike = [record(), record("ares", config={"trace.rate_scale": 2.0})]
    assert "differ in trace.rate_scale (2, 1)" in refusal(unlike, "baseline=chunked")
    assert best(table(unlike)) == set()
    scaled = [record(), record(config={"trace.rate_scale": 2.0}, goodput_rps=12.0)]
    found = table(scaled, "rows=trace.rate_scale", "baseline=1").cells["goodput_rps"]
    assert found[(2.0,), ("synthetic",)].difference is not None


# --- replicates -------------------------------------------------------------------------------------------------------


def test_the_table_says_what_replicates_are() -> None:
    blocks = {"trace.resample_s": 60}
    records = [
        *series("chunked", CHUNKED),
        *series("chunked", CHUNKED[:2], trace="azure_code", config=blocks),
        *series("chunked", CHUNKED, trace="reasoning"),
        *series("chunked", CHUNKED, trace="mooncake", source="real", config=blocks),
    ]
    shown = " ".join(text(records).split())
    assert (
        "2 to 5 replicates (seed); azure_code: fresh samples of the fitted trace, resampled in blocks of 60 s; "
        "mooncake: resampled in blocks of 60 s; reasoning: fresh samples of the fitted trace; "
        "synthetic: fresh samples of the synthetic load." in shown
    )
    assert "mooncake (real, resample_s 60)" in shown


@pytest.mark.parametrize(
    ("trace", "source", "config"),
    [
        ("mooncake", "real", {}),
        ("reasoning", "twin", {"trace.path": "sampled.parquet"}),
        ("synthetic", "synthetic", {"trace.seed": 7}),
    ],
    ids=["recording", "file of samples", "fixed seed"],
)
def test_replicates_with_the_same_requests_are_not_tested(trace: str, source: str, config: dict[str, Any]) -> None:
    changes = {"trace": trace, "source": source, "config": config}
    records = [*series("chunked", CHUNKED, **changes), *series("ares", ARES, **changes)]
    (line,) = (row for row in rows(table(records, "baseline=chunked")) if row["policy"] == "ares")
    assert float(line["difference"]) == pytest.approx(0.506)
    assert line["p"] == ""
    shown = " ".join(text(records, "baseline=chunked").split())
    assert f"Replicates on {trace} have the same requests each time" in shown
    assert "and not tested" in shown
    assert "†" not in shown


def test_replicates_of_one_value_have_no_interval() -> None:
    records = [*series("chunked", [8.0] * 5, trace="mooncake", source="real")]
    assert rows(table(records))[0]["half_width"] == ""
    shown = " ".join(text(records).split())
    assert "No interval where all replicates have the same value" in shown
    assert re.search(r"chunked 8\.000 ", shown)


# --- which runs share a cell ------------------------------------------------------------------------------------------


def test_settings_that_vary_within_a_cell_are_named() -> None:
    budgets = [record(seed=seed, config={"engine.token_budget": budget}) for budget in (512, 2048) for seed in SEEDS]
    line = refusal(budgets)
    assert "policy=chunked, trace=synthetic: 10 runs differ in engine.token_budget (512, 2048)" in line
    assert "engine.token_budget=512" in line
    assert "rows=...,engine.token_budget" in line
    assert len(table(budgets, "engine.token_budget=512").cells["goodput_rps"]) == 1
    assert len(table(budgets, "rows=engine.token_budget").cells["goodput_rps"]) == 2


def test_a_group_that_varies_stands_for_its_settings() -> None:
    one, other = record(), record(config={"gpu.name": "a100_sxm", "cluster.gpu.name": "a100_sxm"})
    one.config.update({"gpu.name": "h100_sxm", "cluster.gpu.name": "h100_sxm"})
    other.choices["gpu"] = "a100"
    one.config["gpu"] = other.config["gpu"] = None  # as of a group one of whose options has no settings
    line = refusal([one, other])
    assert line.count("gpu (a100, h100)") == 1
    assert "name" not in line


def test_a_setting_that_replicates_do_not_share_is_no_replicate() -> None:
    records = [record(seed=seed, config={"engine.token_budget": 512 + seed // 3}) for seed in SEEDS]
    assert "engine.token_budget" in refusal(records)


def test_twins_and_recordings_have_no_common_mean() -> None:
    assert "trace_source" in refusal([record(trace="mooncake", source="real"), record(trace="mooncake", seed=1)])


@pytest.mark.parametrize(
    ("fits", "shared"),
    [
        (
            (
                ", calibrated to prompts of 100, this run: {} above",
                ", calibrated to prompts of 100, this run: {} below",
            ),
            True,
        ),
        (
            (", calibration left out: {} times longer, x counts it", ", calibration left out: {} times, x counts it"),
            True,
        ),
        ((", calibrated to prompts of 100, this run: {} above", ", calibration left out: {} times longer"), False),
    ],
)
def test_samples_share_their_step_times_wherever_their_loads_lie(fits: tuple[str, str], shared: bool) -> None:
    records = [
        record(seed=seed, timing_source=f"measured (h100{fit.format(seed)}); b (a100)") for seed, fit in enumerate(fits)
    ]
    assert rows(table(records))[0]["mean"] == "8.5" if shared else "timing_source" in refusal(records)


def test_runs_of_other_versions_are_told_apart_or_refused() -> None:
    """A record of 0.1 names no version, and its classes otherwise."""
    records = [record(), record(goodput_rps=9.0, git_revision="def", versions={"servelab": "0.2.0"})]
    records[0].config["policy._target_"], records[1].config["policy._target_"] = "old.Name", "new.Name"
    line = refusal(records)
    assert "2 runs differ in version (0.1, 0.2.0); choose with version=0.1" in line
    assert "_target_" not in line
    assert rows(table(records, "version=0.2.0"))[0]["mean"] == "9.0"
    assert len(rows(table(records, "rows=version"))) == 2
    assert "versions 0.1 and 0.2.0" in text(records, "rows=version")


def test_runs_of_other_code_are_told_apart_or_refused() -> None:
    records = [record(), record(git_revision="def", goodput_rps=9.0)]
    line = refusal(records)
    assert "2 runs with the same settings" in line
    assert "git_revision=abc" in line
    assert rows(table(records, "git_revision=def"))[0]["mean"] == "9.0"
    assert len(rows(table(records, "rows=git_revision"))) == 2


def test_a_cell_without_a_run_is_missing_and_never_zero() -> None:
    records = [*THREE, *series("ares", ARES, trace="reasoning")]
    shown = text(records, "baseline=chunked")
    assert re.search(r"chunked +– ", shown)
    assert "–: no run in the store" in shown
    assert "chunked / reasoning; distserve / reasoning" in " ".join(shown.split())
    (line,) = (one for one in rows(table(records)) if (one["policy"], one["trace"]) == ("chunked", "reasoning"))
    assert (line["n"], line["mean"]) == ("0", "")
    assert "no run" not in text(THREE)


def test_an_undefined_figure_is_no_number() -> None:
    records = [record("chunked", seed=seed, p99_ttft_ms=None if seed == 2 else 100.0 + seed) for seed in SEEDS]
    records += [record("ares", seed=seed) for seed in SEEDS]
    shown = text(records, "metric=p99_ttft_ms", "baseline=ares")
    assert re.search(r"chunked +n/a", shown)
    assert "chunked / synthetic P99 TTFT in 1 of 5 runs" in " ".join(shown.split())
    (line,) = (one for one in rows(table(records, "metric=p99_ttft_ms")) if one["policy"] == "chunked")
    assert (line["n"], line["mean"]) == ("5", "")


def test_latencies_of_less_than_all_requests_are_reported() -> None:
    records = [record(completed=80, rejected=20), record("ares")]
    assert "up to 20 % in chunked / synthetic" in " ".join(text(records, "metric=p99_ttft_ms").split())
    assert "rejected" not in text(records)


# --- filters and order ------------------------------------------------------------------------------------------------


def test_filters_choose_and_order() -> None:
    shown = [row["policy"] for row in rows(table(THREE, "policy=distserve,ares"))]
    assert shown == ["distserve", "ares"]
    scales = [record(config={"trace.rate_scale": scale}) for scale in (10.0, 2.0, 1.0)]
    assert [row["trace.rate_scale"] for row in rows(table(scales, "rows=trace.rate_scale"))] == ["1", "2", "10"]
    assert [
        row["trace.rate_scale"] for row in rows(table(scales, "rows=trace.rate_scale", "trace.rate_scale=2,1e0"))
    ] == [
        "2",
        "1",
    ]
    assert rows(table(THREE, "seed=3"))[0]["n"] == "1"


def test_values_of_lists_and_nothing_can_be_chosen() -> None:
    windows: list[Any] = [None, [0, 600], [600, 1200]]
    records = [record(config={"trace.window_s": window}) for window in windows]
    assert [
        row["trace.window_s"] for row in rows(table(records, "rows=trace.window_s", "trace.window_s=[0,600],null"))
    ] == [
        "[0,600]",
        "null",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy=nonesuch"], ["policy=nonesuch", "ares, chunked, distserve"]),
        (["policy=ares", "engine.token_budget=7"], ["engine.token_budget=7", "2048"]),
        (["policy=,"], ["policy=,", "ares, chunked, distserve"]),
        (["polcy=ares"], ["polcy", "did you mean policy"]),
        (["rows=token_budget"], ["rows=token_budget", "engine.token_budget"]),
        (["columns=nonesuch"], ["columns=nonesuch", "run.py --cfg job"]),
        (["replicate=sed"], ["replicate=sed", "seed"]),
        (["metric=goodput"], ["metric=goodput", "did you mean goodput_rps", "p99_ttft_ms"]),
        (["metric=offered,offered"], ["offered", "twice"]),
        (["rows=policy", "columns=policy"], ["policy", "twice"]),
        (["rows=seed"], ["replicate=seed"]),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_words_that_the_store_does_not_know_are_refused(arguments: list[str], message: list[str]) -> None:
    line = refusal(THREE, *arguments)
    assert all(word in line for word in message), line


@pytest.mark.parametrize("arguments", [["policy"], ["policy="], ["=ares"], ["policy=ares", "policy=chunked"]])
def test_words_that_cannot_be_read_are_refused(arguments: list[str]) -> None:
    with pytest.raises(InputError, match=re.escape(arguments[-1])):
        read_request(main.read(arguments))


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "half_width", "shown"),
    [
        (7.531, 0.304, "7.53 ± 0.30"),
        (5875.2, 1335.4, "5,875 ± 1,335"),
        (-0.0363, math.inf, "−0.03630"),
        (173.93, math.nan, "173.9"),
        (0.0, math.nan, "0"),
        (0.0, 0.5, "0 ± 0.50"),
        (1e-9, 3e-8, "0.000000 ± 0.000000"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_deserves(mean: float, half_width: float, shown: str) -> None:
    assert with_interval(mean, half_width) == shown


def test_latencies_of_seconds_are_in_seconds() -> None:
    assert "P99 TTFT, ms" in text(THREE, "metric=p99_ttft_ms")
    slow = [record(p99_ttft_ms=1234.0), record("ares", p99_ttft_ms=5000.0)]
    assert re.search(r"chunked +▸ 1\.234", text(slow, "metric=p99_ttft_ms"))
    assert "P99 TTFT, s\n" in text(slow, "metric=p99_ttft_ms")
    assert rows(table(slow, "metric=p99_ttft_ms"))[0]["mean"] == "5000.0"


def test_the_best_is_bold_in_a_terminal() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    with terminal.capture() as shown:
        terminal.print(_as_rich(sheet(THREE), 100))
    bold = [found.strip() for found in re.findall(r"\x1b\[1m(.*?)\x1b", shown.get())]
    assert [found for found in bold if "±" in found] == ["▸ 10.5 ± 1.9"]


def test_changes_that_round_to_nothing_have_no_sign() -> None:
    records = [record(goodput_rps=1000.0), record("ares", goodput_rps=999.9)]
    assert "−0.100 (0.0 %)" in text(records, "baseline=chunked")


def test_shares_are_in_per_cent() -> None:
    shown = text([record(share_of_bound=0.625)], "metric=share_of_bound")
    assert "goodput / bound, %" in shown
    assert "62.50" in shown


def test_the_table_says_in_what_else_than_the_policy_runs_differ() -> None:
    other = {"server.name": "none", "policy.routing": "round_robin"}
    runs = [record("chunked", config={"server.name": "vllm_v1"}), record("ares", config=other)]
    message = "server (none; vllm_v1: chunked), router (round_robin; least_queued: chunked)"
    assert f"Besides the policy, runs differ in {message}." in sheet(runs).notes
    assert not any("Besides the policy" in note for note in sheet(runs, "rows=server.name", "columns=metric").notes)


def test_twins_are_named_where_they_are() -> None:
    fitted_traces = [record(trace="reasoning"), record("ares", trace="reasoning")]
    mixed = [*fitted_traces, record(), record("ares")]
    assert "fitted trace, not a recording" in text(fitted_traces)
    assert "(fitted trace, not a recording)" in as_markdown(sheet(fitted_traces))
    assert "(fitted trace, not a recording)" in as_latex(sheet(fitted_traces))
    assert sheet(mixed).columns == ("reasoning (fitted)", "synthetic")
    assert "fitted trace" not in text(mixed)
    assert sheet(mixed, "rows=trace", "columns=policy").columns == ("ares", "chunked")
    assert "reasoning (fitted) " in text(mixed, "rows=trace", "columns=policy")
    some = [record(trace="mooncake", source="real"), record("ares", trace="mooncake", source="twin"), *mixed[2:]]
    assert re.search(r"ares +8\.000 \(fitted\) ", text(some))


def test_wide_tables_stand_in_parts_within_a_hundred_columns() -> None:
    traces = ("reasoning", "mooncake", "azure_conv", "azure_code", "synthetic")
    records = [
        one
        for trace in traces
        for name, row in (("chunked", CHUNKED), ("ares", ARES))
        for one in series(name, row, trace=trace)
    ]
    shown = text(records, "baseline=chunked")
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "…" not in shown
    assert all(len(re.findall(rf"{trace}.*\n─", shown)) == 1 for trace in traces)
    assert shown.count("minus chunked") > 1
    assert shown.count("+0.506 ± ") == len(traces)


def test_markdown_is_a_table() -> None:
    found = as_markdown(sheet(THREE, "baseline=chunked", "metric=goodput_rps,preemptions"))
    lines = [line for line in found.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert "| **10.5 ± 1.9**\\* |" in found
    assert "| *minus chunked* |" in found


def test_latex_is_balanced_and_escaped() -> None:
    odd = [*THREE, *series("ares", ARES, trace="a_b&c%{d}~#$^\\", source="real")]
    found = as_latex(sheet(odd, "baseline=chunked", "metric=goodput_rps,preemptions"))
    for name in ("table", "tabular", "minipage"):
        assert found.count(rf"\begin{{{name}}}") == found.count(rf"\end{{{name}}}") == 1
    bare = re.sub(r"\\[&%$#_{}]", "", found)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert found.isascii()
    body = bare.split(r"\toprule")[1].split(r"\bottomrule")[0].splitlines()
    plain = [line for line in body if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count("&") for line in plain} == {2}
    assert r"a\_b\&c\%\{d\}\textasciitilde{}\#\$\textasciicircum{}\textbackslash{}" in found
    assert r"\textbf{10.5 $\pm$ 1.9}$^{*}$" in found
    assert not re.search(r"(?<!\\)%", found.split("\n", 1)[1])


def test_a_policy_of_a_file_has_the_name_of_its_class_unless_another_has_it() -> None:
    def of_file(name: str) -> Record:
        return replace(record(), choices={**record().choices, "policy": name})

    one, other, third = of_file("my_own.py:Mine"), of_file("old.py:Mine"), of_file("my_own.py:New_1")
    assert [labels for labels, _ in sheet([record(), one]).sections[0].rows] == [("chunked",), ("Mine",)]
    assert r"    New\_1 & " in as_latex(sheet([record(), third]))
    several = [labels[0] for labels, _ in sheet([one, other, third]).sections[0].rows]
    assert several == ["my_own.py:Mine", "New_1", "old.py:Mine"]
    assert sheet([record(), one], "rows=trace", "columns=policy").columns == ("chunked", "Mine")


def test_csv_has_every_figure_of_every_cell() -> None:
    lines = rows(table(THREE, "metric=goodput_rps,preemptions", "baseline=chunked"))
    assert [(one["policy"], one["metric"]) for one in lines] == [
        (policy, metric) for metric in ("goodput_rps", "preemptions") for policy in ("ares", "chunked", "distserve")
    ]
    first = lines[0]
    assert float(first["mean"]) == pytest.approx(10.506)
    assert float(first["difference"]) == pytest.approx(0.506)
    assert (first["n"], first["pairs"], first["baseline"]) == ("5", "5", "chunked/synthetic")
    assert (first["best"], first["trace_source"]) == ("true", "synthetic")
    headings = as_csv(table(THREE, "rows=policy", "columns=trace,trace_source")).splitlines()[0].split(",")
    assert len(headings) == len(set(headings))


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    directory = tmp_path / "results"
    for number, one in enumerate(THREE):
        Store(directory).put(Record(f"{number:032x}", one.config, one.choices, one.summary, one.value))
    return directory


def test_a_table_goes_to_stdout_or_whole_into_a_file(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main([f"store={store}", "baseline=chunked", "format=csv"])
    printed = capsys.readouterr().out
    assert printed.startswith("policy,trace,metric,n,mean")
    makers = {
        "t.csv": "policy,trace",
        "t.md": "**synthetic by policy**\n",
        "t.tex": "% \\usepackage",
        "t.txt": "synthetic by policy\n",
    }
    for name, start in makers.items():
        main([f"store={store}", "baseline=chunked", f"out={tmp_path / 'new' / name}"])
        assert (tmp_path / "new" / name).read_text().startswith(start)
    assert (tmp_path / "new" / "t.csv").read_text() == printed
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(makers)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("COLUMNS", "60")  # of the terminal, not of a file
    main([f"store={store}"])
    shown = capsys.readouterr().out
    assert "▸" in shown
    assert max(map(len, shown.splitlines())) <= 60
    assert shown.count("distserve") == 1  # it is printed once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["store=nonesuch"], ["nonesuch", "is no directory", "run.py -m"]),
        (["store=."], ["holds no runs"]),
        (["format=html"], ["format=html", "markdown"]),
        (["out=table"], ["out=table", "format="]),
        (["metric=p99_typo_ms"], ["p99_typo_ms", "p99_ttft_ms"]),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: list[str],
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(store.parent)
    assert typed("table")(arguments) == 2
    shown = capsys.readouterr()
    assert not shown.out
    (line,) = shown.err.splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in message), line


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    assert all(
        f"{key}=" in shown for key in ("store", "rows", "columns", "metric", "baseline", "replicate", "format", "out")
    )


def test_runs_of_a_sweep_make_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = [
        [f"policy={policy}", f"seed={seed}", f"engine.token_budget={budget}"]
        for policy in ("chunked", "distserve")
        for budget in (512, 2048)
        for seed in (0, 1)
    ]
    Sweep(["trace=synthetic", "trace.limit=40"], tmp_path / "study").run(jobs)
    records = Store(tmp_path / "results").read()
    line = refusal(records)
    assert "4 runs differ in engine.token_budget (512, 2048);" in line
    found = table(records, "rows=policy,engine.token_budget", "metric=goodput_rps,p99_tpot_ms")
    means = {row: cell.level.mean for (row, _), cell in found.cells["goodput_rps"].items()}
    assert list(means) == [("chunked", 512), ("chunked", 2048), ("distserve", 512), ("distserve", 2048)]
    expected = [
        one.summary["goodput_rps"]
        for one in records
        if one.choices["policy"] == "chunked" and one.config["engine.token_budget"] == 512
    ]
    assert means["chunked", 512] == pytest.approx(np.mean(expected))
    assert len(set(expected)) == 2


def test_a_word_without_its_group_is_found() -> None:
    assert nearest("tp", {"cluster.tp", "engine.token_budget"}) == "did you mean cluster.tp? "
    assert nearest("zzz", {"cluster.tp"}) == ""
