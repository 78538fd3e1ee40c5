"""The study against measured deployments: reading, folds, scores, the vendor's predictor, the report."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from experiments.validation.fidelity import csv_file as fidelity_csv
from experiments.validation.fidelity import report as fidelity_report
from experiments.validation.fidelity import rows as fidelity_rows
from experiments.validation.fidelity import score as fidelity_score
from experiments.validation.fidelity import vendor as fidelity_vendor
from experiments.validation.fidelity.csv_file import Reading
from experiments.validation.fidelity.rows import Pool, Row, doubted
from experiments.validation.fidelity.score import Means, Scaling
from framework.errors import InputError
from framework.system.parallelism import Parallelism

KEYS = Path(fidelity_rows.__file__).with_name("rows.txt")
INFERENCEX = "source_file=2026-04-06.csv; silicon_concurrency={}; measured=2026-03-25T00:00:00Z"
PLAIN = "source_file=2026-03-25.csv; silicon_concurrency={}; measured=2026-03-25T00:00:00Z"
GAP = "source_file=/x/aic-auto-gap-analysis/data/h100_sxm.csv; silicon_concurrency={}"

package = pytest.mark.skipif(
    importlib.util.find_spec(fidelity_csv.PACKAGE) is None, reason="aiconfigurator-core is not installed"
)


def line(source: str = INFERENCEX, concurrency: int = 16, **changes: object) -> dict[str, object]:
    """One line of the csv: an aggregated Llama-3.1-70B on two H100."""
    plain: dict[str, object] = dict.fromkeys(fidelity_csv._COLUMNS)
    plain |= {
        "id": "any",
        "silicon_data_source": source.format(concurrency),
        "backend": "vllm",
        "backend_version": "0.19.0",
        "model_path": "meta-llama/Llama-3.1-70B",
        "system": "h100_sxm",
        "precision": "fp8",
        "mode": "agg",
        "isl": 1024,
        "osl": 1024,
        "gemm_quant_mode": "fp8",
        "batch_size": concurrency,
        "tp_size": 2,
        "attention_dp_size": 1,
        "moe_tp_size": 2,
        "moe_ep_size": 1,
        "silicon_ttft_ms": 250.0,
        "silicon_tpot_ms": 20.0,
    }
    return plain | changes


def deepseek(layout: tuple[int, int, int, int], **changes: object) -> dict[str, object]:
    tp, dp, expert_tp, ep = layout
    sizes = {"tp_size": tp, "attention_dp_size": dp, "moe_tp_size": expert_tp, "moe_ep_size": ep}
    whole: dict[str, object] = {"model_path": "deepseek-ai/DeepSeek-R1", "backend": "sglang", "batch_size": 16 // dp}
    return line(**(whole | sizes | changes))  # type: ignore[arg-type]


def read(tmp_path: Path, *lines: dict[str, object]) -> Reading:
    path = tmp_path / "sample.csv"
    pl.DataFrame(lines, infer_schema_length=None).write_csv(path)
    return fidelity_csv.read_rows(path)


def row(number: int = 0, **changes: object) -> Row:
    pool = Pool(1, Parallelism(tp=2))
    plain = Row(
        key=f"key{number}",
        model="llama3_70b",
        gpu="h100",
        backend="vllm",
        version="0.19.0",
        dtype="fp8",
        expert_dtype="fp8",
        mode="agg",
        prefill=pool,
        decode=pool,
        isl=1024,
        osl=1000,
        concurrency=16,
        prompts=160,
        shortest=1.0,
        ttft_s=0.25,
        tpot_s=0.02,
        family="InferenceX",
        date="",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def many() -> list[Row]:
    """Forty deployments of four systems, five loads each."""
    return [
        row(
            5 * number + load,
            gpu=("h100", "h200", "b200", "b300")[number % 4],
            decode=Pool(1, Parallelism(tp=number + 1)),
            concurrency=4 * 2**load,
            ttft_s=0.1 * 2**load,
            tpot_s=0.01 + 0.002 * load,
        )
        for number in range(40)
        for load in range(5)
    ]


def test_line_is_read(tmp_path: Path) -> None:
    (found,) = read(tmp_path, line()).rows
    assert (found.model, found.gpu, found.backend, found.version) == ("llama3_70b", "h100", "vllm", "0.19.0")
    assert (found.dtype, found.kind, found.parallelism, found.gpus) == ("fp8", "dense", Parallelism(tp=2), 2)
    assert (found.prompts, found.shortest, found.date) == (160, 0.8, "2026-03-25")
    assert (found.ttft_s, found.tpot_s) == (0.25, 0.02)


def test_gap_analysis_has_exact_lengths(tmp_path: Path) -> None:
    assert read(tmp_path, line(GAP)).rows[0].shortest == 1.0


def test_key_is_of_the_content_without_id(tmp_path: Path) -> None:
    first, same = (read(tmp_path, line(id=name)).rows[0].key for name in ("a", "b"))
    other = read(tmp_path, line(silicon_ttft_ms=251.0)).rows[0].key
    assert first == same != other


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ((64, 1, 8, 8), Parallelism(tp=8, ep=8)),
        ((16, 1, 4, 4), Parallelism(tp=4, ep=4)),
        ((1, 64, 8, 8), Parallelism(dp=8, ep=8)),
        ((4, 4, 1, 16), Parallelism(tp=4, ep=4)),
        ((8, 1, 8, 1), Parallelism(tp=8)),
        ((1, 4, 4, 1), Parallelism(dp=4)),
    ],
)
def test_products_are_undone(tmp_path: Path, written: tuple[int, int, int, int], meant: Parallelism) -> None:
    batch, dp = 64, written[1]
    found = read(tmp_path, deepseek(written, silicon_data_source=INFERENCEX.format(batch * dp), batch_size=batch))
    assert found.rows[0].parallelism == meant


def test_plain_parallelism_stays(tmp_path: Path) -> None:
    (found,) = read(tmp_path, deepseek((8, 1, 1, 8), silicon_data_source=PLAIN.format(16))).rows
    assert found.parallelism == Parallelism(tp=8, ep=8)


def test_same_measurement_counts_once(tmp_path: Path) -> None:
    listed = [
        deepseek((8, 1, 1, 8), silicon_data_source=PLAIN.format(16), silicon_ttft_ms=99.1234),
        deepseek((64, 1, 8, 8), silicon_ttft_ms=99.1234),
        deepseek((64, 1, 8, 8), silicon_ttft_ms=99.12, model_path="deepseek-ai/DeepSeek-V3"),
        deepseek((64, 1, 8, 8), silicon_ttft_ms=99.1234, id="again"),
    ]
    found = read(tmp_path, *listed)
    assert len(found.rows) == 1
    assert found.excluded == {"exact duplicates": 1, "the same measurement listed again by another file": 2}


def test_listing_with_worker_counts_is_kept(tmp_path: Path) -> None:
    roles = {
        f"{role}_{size}": value
        for role in ("prefill", "decode")
        for size, value in {"tp_size": 4, "attention_dp_size": 1, "moe_tp_size": 4, "moe_ep_size": 1}.items()
    }
    bare = deepseek((1, 1, 1, 1), mode="disagg", **roles)
    full = bare | {"prefill_num_workers": 2, "decode_num_workers": 3, "backend_version": None}
    found = read(tmp_path, bare, full)
    assert [one.layout for one in found.rows] == ["2xtp4 + 3xtp4"]
    assert found.rows[0].gpus == 20
    assert dict(read(tmp_path, bare).excluded) == {"disaggregated without worker counts": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_path": "zhipuai/GLM-5"}, "of models that this study leaves out"),
        ({"silicon_data_source": "source_file=x"}, "without a concurrency"),
        ({"batch_size": 4}, "unknown number of instances"),
        ({"tp_size": 12}, "several instances"),
        ({"gemm_quant_mode": "fp3"}, "precision"),
    ],
)
def test_excluded_by_reason(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    found = read(tmp_path, line(), line(silicon_ttft_ms=1.0, **changes))  # type: ignore[arg-type]
    assert len(found.rows) == 1
    assert [count for text, count in found.excluded.items() if reason in text] == [1]


def test_inconsistent_parallelism_is_excluded(tmp_path: Path) -> None:
    found = read(tmp_path, deepseek((2, 1, 4, 1), silicon_data_source=PLAIN.format(16)))
    assert [text for text in found.excluded if "inconsistent" in text]


def test_checkpoints_decide_precision(tmp_path: Path) -> None:
    def types(**changes: object) -> tuple[str, str]:
        (found,) = read(tmp_path, line(**changes)).rows  # type: ignore[arg-type]
        return found.dtype, found.expert_dtype

    assert types(precision=None, gemm_quant_mode=None) == ("bf16", "bf16")
    assert types(model_path="openai/gpt-oss-120b", gemm_quant_mode="nvfp4") == ("bf16", "mxfp4")
    assert types(model_path="deepseek-ai/DeepSeek-R1") == ("fp8_block", "fp8_block")
    assert types(model_path="moonshotai/Kimi-K2.5", gemm_quant_mode="int4_wo") == ("bf16", "int4")


def test_faster_repeat_is_doubted(tmp_path: Path) -> None:
    plain, fast, close = (
        deepseek((8, 1, 8, 1), silicon_tpot_ms=tpot, silicon_ttft_ms=tpot) for tpot in (20.0, 15.0, 19.0)
    )
    assert [bool(one.doubts) for one in read(tmp_path, plain, fast, close).rows] == [False, True, False]


def test_what_an_older_gpu_does_in_half_the_time_is_doubted() -> None:
    older = replace(row(), gpu="b200", ttft_s=1.0)
    slow, close, other = (
        replace(older, gpu="b300", key=key, ttft_s=ttft_s, isl=isl)
        for key, ttft_s, isl in (("a", 2.1, older.isl), ("b", 1.9, older.isl), ("c", 9.0, older.isl + 1))
    )
    assert [bool(one.doubts) for one in doubted([older, slow, close, other])] == [False, True, False, False]
    assert not doubted([replace(slow, gpu="b200"), replace(older, gpu="b300")])[0].doubts


def test_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    pl.DataFrame([line()]).drop("isl").write_csv(path)
    with pytest.raises(InputError, match="column isl is missing"):
        fidelity_csv.read_rows(path)


def test_keys_round_trip_and_difference(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    rows = [row(number) for number in range(3)]
    fidelity_csv.write_keys(Reading(tuple(rows), {"odd": 2}, 5), path)
    assert path.read_text().startswith("# 3 of 5 rows")
    assert fidelity_csv.key_difference(rows, path) == ""
    assert "1 new, 2 gone" in fidelity_csv.key_difference([rows[0], row(9)], path)


def test_throughput_is_littles_law() -> None:
    one = row(concurrency=10, osl=101, ttft_s=1.0, tpot_s=0.01)  # 10 in flight, each for 2 s: 5 a second on 2 GPUs
    assert one.tokens_s_gpu == pytest.approx(5 * 101 / 2)


def test_folds_never_divide_a_deployment() -> None:
    rows = many()
    fold_of = fidelity_score.folds(rows)
    for name in {one.deployment for one in rows}:
        assert len({fold_of[one.key] for one in rows if one.deployment == name}) == 1
    assert fold_of == fidelity_score.folds(rows[::-1])
    assert fold_of != fidelity_score.folds(rows, seed=1)
    for gpu in ("h100", "h200", "b200", "b300"):
        assert sorted(fold_of[one.key] for one in rows if one.gpu == gpu) == sorted(5 * [0, 1, 2, 3, 4] * 2)


def test_splits_are_disjoint_and_whole() -> None:
    rows = many()
    tested = []
    for training, test in fidelity_score.splits(rows):
        assert not {one.deployment for one in training} & {one.deployment for one in test}
        tested += [one.key for one in test]
    assert sorted(tested) == sorted(one.key for one in rows)


def test_one_fold_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        fidelity_score.folds(many(), count=1)


def test_scaling_is_found_despite_outliers() -> None:
    predicted = np.linspace(1, 10, 40)
    measured = 2 * predicted + 3
    measured[:8] *= 10
    found = fidelity_score.least_relative(predicted, measured)
    assert found.scale == pytest.approx(2)
    assert found.offset_s == pytest.approx(3)


def test_calibration_learns_a_linear_error_from_other_deployments() -> None:
    rows = many()
    wrong = {one.key: Means((one.ttft_s - 0.02) / 1.5, one.tpot_s / 0.8) for one in rows}
    right = fidelity_score.scaled(rows, wrong)
    assert all(right[one.key].ttft_s == pytest.approx(one.ttft_s) for one in rows)
    assert all(right[one.key].tpot_s == pytest.approx(one.tpot_s) for one in rows)


def test_calibration_does_not_see_the_deployment_it_is_tested_on() -> None:
    rows = many()
    honest = {one.key: Means(one.ttft_s, one.tpot_s) for one in rows}
    target = rows[0].deployment
    moved = [replace(one, ttft_s=50.0) if one.deployment == target else one for one in rows]
    for before in rows:
        if before.deployment == target:
            assert fidelity_score.scaled(moved, honest)[before.key].ttft_s == pytest.approx(before.ttft_s)


def test_few_rows_are_not_fitted_to() -> None:
    rows = many()[:5]
    wrong = {one.key: Means(2 * one.ttft_s, one.tpot_s) for one in rows}
    assert fidelity_score.scaled(rows, wrong)[rows[0].key].ttft_s == 2 * rows[0].ttft_s


def test_scores() -> None:
    rows = [row(number) for number in range(3)]
    predictions = {one.key: Means(0.25 * factor, 0.02) for one, factor in zip(rows, (1.3, 0.9, 0.8), strict=True)}
    score = fidelity_score.scores(fidelity_score.compare(rows, predictions, "ours")).row(0, named=True)
    assert score["n"] == 3
    assert score["ttft_s_mape"] == pytest.approx(20.0)
    assert score["ttft_s_median"] == pytest.approx(-10.0)
    assert score["tpot_s_mape"] == pytest.approx(0.0)


def test_load_and_queueing() -> None:
    rows = [row(number, concurrency=number + 1) for number in range(20)] + [row(20, concurrency=20, ttft_s=10.0)]
    table = fidelity_score.compare(rows, {one.key: Means(1.0, 1.0) for one in rows}, "ours")
    assert table["decile"].to_list() == sorted(table["decile"].to_list())
    assert (table["decile"][0], table["decile"][-1], table["decile"][-2]) == (1, 10, 10)
    assert table["queueing"].to_list() == [False] * 20 + [True]


def test_common_rows() -> None:
    rows = [row(number) for number in range(3)]
    means = Means(1.0, 1.0)
    some = fidelity_score.compare(rows, {"key0": means, "key1": means}, "ours")
    other = fidelity_score.compare(rows, {"key1": means, "key2": means}, "theirs")
    assert fidelity_score.common([some, other])["key"].to_list() == ["key1", "key1"]


def test_nothing_predicted_is_said() -> None:
    with pytest.raises(InputError, match="predicts none"):
        fidelity_score.compare([row()], {}, "ours")


def test_request_to_the_vendor() -> None:
    asked = fidelity_vendor.request(row(decode=Pool(1, Parallelism(dp=4, ep=4)), concurrency=18))
    assert (asked["system_name"], asked["backend_name"], asked["gemm_quant_mode"]) == ("h100_sxm", "vllm", "fp8")
    assert (asked["attention_dp_size"], asked["moe_ep_size"], asked["moe_tp_size"]) == (4, 4, 1)
    assert asked["batch_size"] == 5
    split = row(mode="disagg", prefill=Pool(2, Parallelism(tp=4)), decode=Pool(3, Parallelism(tp=8)), concurrency=48)
    asked = fidelity_vendor.request(split)
    assert (asked["prefill_tp_size"], asked["decode_tp_size"], asked["decode_batch_size"]) == (4, 8, 16)
    assert (asked["prefill_num_workers"], asked["decode_num_workers"]) == (2, 3)


def test_predictions_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "vendor.csv"
    made = [
        fidelity_vendor.Prediction("00001234", 0.12345, 0.0123456),
        fidelity_vendor.Prediction("b", float("nan"), float("nan"), "does not fit in memory"),
    ]
    fidelity_vendor.write_predictions(made, "1.0", path)
    found = fidelity_vendor.stored_predictions(path)
    assert found["00001234"].ttft_s == pytest.approx(0.1234, rel=1e-3)
    assert found["00001234"].tpot_s == pytest.approx(0.01235, rel=1e-3)
    assert found["b"].failure == "does not fit in memory"
    with pytest.raises(InputError, match="no predictions there"):
        fidelity_vendor.stored_predictions(tmp_path / "none.csv")


def comparison() -> pl.DataFrame:
    rows = many()
    ours = {one.key: Means(1.1 * one.ttft_s, 0.9 * one.tpot_s) for one in rows}
    theirs = {one.key: Means(2.0 * one.ttft_s, one.tpot_s) for one in rows}
    return fidelity_score.common(
        [fidelity_score.compare(rows, ours, "ours", fitted=True), fidelity_score.compare(rows, theirs, "theirs")]
    )


def test_tables_name_predictors_and_groups() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for section in fidelity_report.sections(comparison()):
        console.print(fidelity_report.as_table(section))
    text = console.export_text()
    assert "ours, calibrated" in text
    assert "h200" in text
    assert "100.0" in text  # theirs: TTFT twice as long


def test_csv_files(tmp_path: Path) -> None:
    table = pl.read_csv(fidelity_report.write_errors(comparison(), tmp_path))
    assert len(table) == 400
    assert table.filter(predictor="theirs")["error_ttft_s"].to_list() == pytest.approx([100.0] * 200, abs=1e-3)
    assert {"table", "group", "predictor", "n"} <= set(
        pl.read_csv(fidelity_report.write_scores(fidelity_report.sections(comparison()), tmp_path)).columns
    )


@pytest.mark.slow  # tests/experiments/test_plot.py draws pictures in this style
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_picture(tmp_path: Path) -> None:
    vector, image = fidelity_report.draw(comparison(), tmp_path)
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "measured TTFT (s)" in vector.read_text()


@package
def test_installed_rows_are_those_of_the_study() -> None:
    reading = fidelity_csv.read_rows()
    assert fidelity_csv.key_difference(reading.rows, KEYS) == ""
    assert len(reading.rows) + sum(reading.excluded.values()) == reading.listed
    assert len({one.key for one in reading.rows}) == len(reading.rows)
    assert all(one.gpus >= 1 and one.ttft_s > 0 and one.tpot_s > 0 for one in reading.rows)


@package
def test_stored_predictions_score_as_published() -> None:
    rows = fidelity_csv.read_rows().rows
    stored = fidelity_vendor.stored_predictions()
    assert set(stored) == {one.key for one in rows}
    made = {key: one for key, one in stored.items() if not one.failure}
    score = fidelity_score.scores(fidelity_score.compare(rows, made, "vendor"), ["mode", "kind"])
    dense = score.filter(mode="agg", kind="dense").row(0, named=True)
    assert dense["n"] == pytest.approx(1012, rel=0.05)
    assert dense["ttft_s_mape"] == pytest.approx(47.5, abs=2.0)
    assert dense["tpot_s_mape"] == pytest.approx(20.0, abs=2.0)


def test_scaling_leaves_alone_by_default() -> None:
    assert Scaling()(0.125) == 0.125
