"""What the terminal tables say, and that they fit."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import RenderableType

from framework.cli.console import SafeConsole
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate, summarize
from framework.report.comparison_table import comparison_table
from framework.report.run_table import run_table
from framework.result import Result
from tests.helpers.results import small_result

SLO = Slo(ttft_s=1.0, tpot_s=0.25)
LONG = summarize(small_result(), SLO) | {"window_is_short": False}


def printed(table: RenderableType, width: int = 100, **options: Any) -> str:
    file = io.StringIO()
    SafeConsole(file=file, width=width, **options).print(table)
    return file.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def test_run_table_tells_the_whole_run() -> None:
    text = words(printed(run_table(evaluate(small_result(), SLO), SLO)))
    for part in (
        "distserve on mooncake fitted trace, not a recording 5 requests, 2.50 s, 3 GPUs",
        "timing affine, seed 0",
        "queue ms 500 500 500",
        "TTFT s 1.00 1.00 1.00 1.00 80.0 %",
        "TPOT ms 375 475 498 250 40.0 %",
        "TBT ms 500 500 500",
        "E2E s 1.50 2.30 2.48",
        "goodput 1.05 req/s (0.35 per GPU)",
        "attainment 40.0 % 2 of 5",
        "completed 3",
        "rejected 1 (kv 1)",
        "failed 1 (kv 1)",
        "preempted 2, migrated 1",
        "cache hits 16.0 %",
        "prefill prefill 1 1 60.0 % 20.0 % –",
        "decode decode 1 2 50.0 % 40.0 % 1.20",
    ):
        assert part in text, part


def of_classes(*names: str) -> Result:
    result = small_result()
    return replace(result, workload=replace(result.workload, slo_class=names))


def test_classes_have_rows_of_their_own() -> None:
    text = words(printed(run_table(evaluate(of_classes("chat", "batch", "batch", "chat", "chat"), SLO), SLO)))
    assert "batch 2 50.0 % 0.53 1.00 1.00 – – 1.00" in text
    assert "chat 3 33.3 % 0.53 1.00 1.00 375 498 2.49" in text
    assert "classes" not in text


def test_many_classes_take_few_lines() -> None:
    evaluation = evaluate(small_result(), SLO)
    (only,) = evaluate(of_classes(*["a"] * 5), SLO).summary["classes"].values()
    many = replace(evaluation, summary=evaluation.summary | {"classes": {f"user{k}": only for k in range(100)}})
    text = printed(run_table(many, SLO))
    assert text.count("user") == 12
    assert "and 88 more classes, in summary.json" in text


@pytest.mark.parametrize("width", [80, 100, 160])
def test_tables_fit_and_nothing_is_cut(width: int) -> None:
    evaluation = evaluate(small_result(), SLO)
    rivals = [evaluation.summary | {"policy": policy} for policy in ("distserve", "chunked", "continuous")]
    classes = evaluate(of_classes("interactive", "batch", "a", "b", "interactive"), SLO)
    for table in (run_table(evaluation, SLO), run_table(classes, SLO), comparison_table(rivals)):
        text = printed(table, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert "…" not in text


def test_only_a_twin_is_marked() -> None:
    for source, mark in (("real", "(real)"), ("synthetic", "(synthetic)"), ("twin", "fitted trace")):
        result = small_result()
        object.__setattr__(result.workload, "source", source)
        assert mark in printed(run_table(evaluate(result, SLO), SLO))
        assert mark in printed(comparison_table([summarize(result, SLO)]))


def test_time_that_was_not_measured_is_marked() -> None:
    result = small_result()
    assert "extrapolated" not in printed(run_table(evaluate(result, SLO), SLO))
    result.instances["extrapolated_s"] = result.instances["busy_s"] / 4
    result.instances["extrapolation"] = 3.0
    evaluation = evaluate(result, SLO)
    line = "25.0 % of busy time extrapolated, to 3 times the measured size"
    assert line in printed(run_table(evaluation, SLO), width=80)
    result.instances["extrapolation"] = 1.003
    hardly = "25.0 % of busy time extrapolated, hardly beyond the measured size"
    assert hardly in printed(run_table(evaluate(result, SLO), SLO), width=80)
    within = evaluation.summary | {"extrapolated": 0.0, "extrapolation": 1.0}
    assert f"up to {line}" in printed(comparison_table([within, evaluation.summary]), width=80)
    assert "extrapolated" not in printed(comparison_table([within, within]))


def test_times_of_a_datasheet_are_marked_with_how_far_off_they_may_be() -> None:
    result = small_result()
    object.__setattr__(result, "timing_source", "measured (box by roofline, as it lacks kernels, to a factor of 1.3)")
    evaluation, plain = evaluate(result, SLO), evaluate(small_result(), SLO)
    line = "from a datasheet, not from measured kernels; steps may be 1.3 times longer or shorter"
    assert line in printed(run_table(evaluation, SLO))
    assert line in printed(comparison_table([plain.summary, evaluation.summary]))
    assert "datasheet" not in printed(comparison_table([plain.summary, plain.summary]))
    object.__setattr__(result, "timing_source", "roofline")
    assert "from a datasheet, not from measured kernels \n" in printed(run_table(evaluate(result, SLO), SLO))


FIT = "calibrated to prompts of 600 to 8,000 tokens, none cached, 4 to 128 in flight"
RUN = "this run: prompts of {} tokens on average, none cached, 9 in flight an instance: all within"


def fitted(tokens: int) -> str:
    return f"measured (h100, vllm 0.24.0, {FIT}, {RUN.format(tokens)}; server vllm_v1)"


def test_a_run_says_to_which_loads_its_times_were_fitted_and_where_it_lies() -> None:
    result = small_result()
    object.__setattr__(result, "timing_source", fitted(700))
    lines = [line.strip() for line in printed(run_table(evaluate(result, SLO), SLO)).splitlines()]
    at = lines.index("timing measured (h100, vllm 0.24.0, calibrated; server vllm_v1), seed 0")
    assert " ".join(lines[at + 1 : at + 4]).startswith(f"{FIT} {RUN.format(700)}")
    left_out = "calibration left out: 97 % of prompt tokens may be cached, but it was fitted to none"
    object.__setattr__(result, "timing_source", f"measured (h100, vllm 0.24.0, {left_out})")
    shown = printed(run_table(evaluate(result, SLO), SLO))
    assert "timing measured (h100, vllm 0.24.0, calibration left out), seed 0" in shown
    assert left_out in shown


def test_runs_of_one_fit_are_not_told_apart_by_where_they_lie() -> None:
    summary = LONG
    runs = [summary | {"timing_source": fitted(tokens)} for tokens in (700, 900)]
    shown = words(printed(comparison_table(runs)))
    assert f"timing measured (h100, vllm 0.24.0, calibrated; server vllm_v1) {FIT}" in shown
    assert "this run" not in shown


def test_undefined_values_are_dashes() -> None:
    summary = summarize(small_result(), SLO)
    undefined = {key: None for key in summary if key.endswith("_ms")}
    line = next(line for line in printed(comparison_table([summary | undefined])).splitlines() if "distserve" in line)
    assert line.count("–") == 6


def test_best_goodput_is_bold_and_marked() -> None:
    summary = LONG
    runs = [summary | {"policy": name, "goodput_rps": value} for name, value in (("a", 1.0), ("b", 3.0), ("c", 2.0))]
    lines = printed(comparison_table(runs)).splitlines()
    assert [line for line in lines if "▸" in line] == [line for line in lines if words(line).startswith("▸ b 3.00")]
    coloured = printed(comparison_table(runs), force_terminal=True).splitlines()
    best = next(line for line in coloured if "3.00" in line)
    assert "\x1b[1m" in best
    assert not any("\x1b[1m" in line for line in coloured if "2.00" in line)


def test_the_best_is_marked_within_its_group_only() -> None:
    summary = LONG
    goodputs = (("a", 1.0), ("b", 3.0), ("a", 7.0), ("b", 2.0), ("a", 9.0))
    runs = [summary | {"policy": name, "goodput_rps": value} for name, value in goodputs]
    labels = [name for name, _ in goodputs]
    lines = printed(comparison_table(runs, labels, ["slow", "slow", "fast", "fast", "alone"])).splitlines()
    assert [words(line)[:8] for line in lines if "▸" in line] == ["▸ b 3.00", "▸ a 7.00"]


def test_runs_on_unlike_clusters_are_compared_per_gpu() -> None:
    summary = summarize(small_result(), SLO)
    small = summary | {"gpus": 2, "goodput_rps": 2.0, "goodput_per_gpu": 1.0}
    large = summary | {"gpus": 8, "goodput_rps": 4.0, "goodput_per_gpu": 0.5}
    text = words(printed(comparison_table([large, small])))
    assert "▸ distserve 2 GPUs § 1.00" in text
    assert "distserve 8 GPUs § 0.50" in text


def test_runs_at_capacity_are_compared_by_it() -> None:
    summary = summarize(small_result(), SLO) | {"goodput_rps": 1.0, "capacity_per_gpu": 1.0}
    many, few = summary | {"policy": "chunked", "capacity": 3.0}, summary | {"capacity": 2.0}
    text = words(printed(comparison_table([few, many])))
    assert "capacity" in text
    assert "goodput" not in text
    assert "▸ chunked § 3.00" in text
    assert "distserve § 2.00" in text


def test_runs_are_called_by_what_tells_them_apart() -> None:
    summary = LONG
    runs = [
        summary | {"trace_source": "real", "predictor": "oracle"},
        summary | {"trace_source": "twin", "predictor": "none", "seed": 1},
    ]
    text = printed(comparison_table(runs), 140)
    assert "distserve oracle mooncake real seed 0" in text
    assert "distserve mooncake twin seed 1" in text


def test_a_beginning_that_is_unlike_the_rest_is_reported() -> None:
    result = small_result()
    doubtful = replace(result, workload=replace(result.workload, caveat="unlike [all]"))
    evaluation = evaluate(doubtful, SLO)
    assert "unlike [all]" in printed(run_table(evaluation, SLO))
    assert "unlike [all]" in printed(comparison_table([evaluation.summary, summarize(result, SLO)]))
    assert "trace_caveat" not in summarize(result, SLO)


def test_labels_are_shown_as_they_are() -> None:
    summary = summarize(small_result(), SLO)
    assert "policy=[a,b]" in printed(comparison_table([summary], ["policy=[a,b]"]))


def test_run_without_any_completion_can_be_shown() -> None:
    result = small_result()
    result.requests["state"] = 2
    result.requests["first_token_s"] = np.nan
    text = words(printed(run_table(evaluate(result, SLO), SLO)))
    assert "goodput 0 req/s" in text
    assert "rejected 5 (kv 2)" in text


OVER = {"load_state": "overloaded", "latency_growth": 0.1125, "window_is_short": False}


def test_an_overloaded_run_says_so_in_its_header_and_below_its_latencies() -> None:
    evaluation = evaluate(small_result(), SLO)
    text = printed(run_table(replace(evaluation, summary=evaluation.summary | OVER), SLO))
    assert "5 requests, 2.50 s, 3 GPUs, overloaded\n" in text
    assert "overloaded: latencies are a function of the run's length, +0.11 s each second" in below_latencies(text)
    assert "window of" not in text


def below_latencies(text: str) -> str:
    """What stands on the left below the row of E2E and above the pools, without breaks."""
    lines = text[text.index("\nE2E") : text.index("\npool")].splitlines()[2:]
    return words(" ".join(line.split("   ")[0] for line in lines))


@pytest.mark.parametrize("state", ["stable", "backlogged", None])
def test_other_runs_have_their_state_in_the_header_alone(state: str | None) -> None:
    evaluation = evaluate(small_result(), SLO)
    text = printed(run_table(replace(evaluation, summary=evaluation.summary | OVER | {"load_state": state}), SLO))
    assert ("2.50 s, 3 GPUs\n" if state is None else f"2.50 s, 3 GPUs, {state}\n") in text
    assert "latencies are" not in text


def test_a_window_that_is_too_short_has_a_line_of_its_own() -> None:
    evaluation = evaluate(small_result(), SLO)
    short = {"window_is_short": True, "window_s": 20.0}
    text = words(printed(run_table(replace(evaluation, summary=evaluation.summary | short, allowed_s=41.0), SLO)))
    why = "under 5 times the 41.0 s that the SLO allows a request"  # 5 requests in 20 s: 52 in 205 s
    assert f"window of 20.0 s: too short, {why}, so starting empty flatters all figures; 52 requests" in text
    assert evaluation.allowed_s == pytest.approx(evaluation.summary["window_s"])


def test_a_comparison_marks_runs_by_their_load() -> None:
    summary = LONG
    states = {"a": "stable", "b": "backlogged", "c": "overloaded", "d": None}
    lines = printed(comparison_table([summary | {"load_state": state} for state in states.values()], [*states]))
    cells = [words(line.replace("▸", "")).split()[:2] for line in lines.splitlines()]
    assert ["b", "†"] in cells
    assert ["c", "‡"] in cells
    assert [signs for name, signs in (one for one in cells if len(one) == 2) if name in "ad"] == ["1.05", "1.05"]
    assert "‡: overloaded, latencies are a function of the run's length\n†: backlogged" in lines
    assert "‡" not in printed(comparison_table([summary | {"load_state": "stable"}] * 2))


def test_runs_that_serve_all_that_is_offered_say_what_would_distinguish_them() -> None:
    whole = LONG | {"slo_attainment": 1.0, "load": "open"}
    said = "a higher trace.rate distinguishes them"
    assert said in printed(comparison_table([whole, whole, whole], ["a", "b", "c"]))
    assert said not in printed(comparison_table([whole, whole | {"goodput_rps": 0.5}], ["a", "b"]))
    assert said not in printed(comparison_table([LONG | {"load": "open"}] * 2, ["a", "b"]))
    assert said not in printed(comparison_table([whole | {"load": "closed"}] * 2, ["a", "b"]))


def test_a_comparison_marks_windows_that_are_too_short() -> None:
    summary = summarize(small_result(), SLO) | {"load_state": "overloaded", "window_is_short": True}
    other = summary | {"load_state": "stable", "window_is_short": False}
    lines = printed(comparison_table([summary, other], ["a", "b"]))
    assert re.search(r"a +‡§ ", lines)
    assert not re.search(r"b +[‡§]", lines)
    assert "§: window under 5 times what the SLO allows a request: starting empty flatters all figures" in lines
