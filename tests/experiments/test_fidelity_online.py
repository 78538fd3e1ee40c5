"""Stages in open loop: their requests, and fits between them and closed loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.validation.fidelity.campaigns import METRICS, StageSurfaces
from experiments.validation.fidelity.fit import CENTRE, TERMS, WIDTH, calibration, design, surface, vector
from experiments.validation.fidelity.online import Figures, Stage, read_stages, replayed, workload
from experiments.validation.fidelity.stage_report import means, with_errors
from framework.errors import InputError
from framework.timing.calibration_terms import Calibration

FIRST = read_stages()[0]


def test_six_stages_of_three_models_are_there() -> None:
    stages = read_stages()
    assert [(one.model, one.tp, one.rate_rps) for one in stages] == [
        *(("llama2_7b", 1, 5), ("llama2_7b", 1, 10), ("llama2_70b", 4, 5)),
        *(("llama2_70b", 4, 10), ("mixtral_8x7b", 2, 5), ("mixtral_8x7b", 2, 10)),
    ]
    assert {one.kind for one in stages if one.model == "mixtral_8x7b"} == {"moe"}
    assert {one.kind for one in stages if one.model != "mixtral_8x7b"} == {"dense"}


def test_tpot_is_what_is_left_after_the_first_token() -> None:
    one = replace(FIRST, ttft_ms_mean=100.0, e2e_ms_mean=600.0, output_tokens=11)
    assert Figures.measured(one).tpot_ms_mean == 50.0


def test_a_file_that_is_no_table_of_stages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stages.csv").write_text("run,stage\na,1\n")
    with pytest.raises(InputError, match="not a table of stages"):
        read_stages(tmp_path / "stages.csv")


def test_requests_come_as_the_client_sends_them_and_few_prompts_in_turn() -> None:
    sent = workload(FIRST)
    assert len(sent) == FIRST.requests
    assert sent.arrival_s[-1] == pytest.approx(FIRST.requests / FIRST.rate_rps)
    gaps = np.diff(sent.arrival_s)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # exponential
    rows = [tuple(sent.hash_ids_of(r)) for r in range(len(sent))]
    assert len(set(rows[: FIRST.prompts])) == len(set(rows)) == FIRST.prompts
    assert rows[FIRST.prompts :] == rows[: -FIRST.prompts]
    assert np.percentile(sent.input_tokens, (10, 90)) == pytest.approx((585, 600), abs=6)
    shared = FIRST.system_tokens // sent.hash_block_tokens
    beginnings = {row[:shared] for row in rows}
    assert len(beginnings) == FIRST.system_prompts
    assert len({row[shared] for row in rows}) == len(set(rows))


def test_prompts_of_a_later_stage_are_sent_before_it() -> None:
    later = workload(replace(FIRST, stage=1))
    assert len(later) == FIRST.requests + FIRST.prompts
    gap_s = later.arrival_s[FIRST.prompts] - later.arrival_s[FIRST.prompts - 1]
    assert gap_s > 50
    before = {tuple(later.hash_ids_of(r)) for r in range(FIRST.prompts)}
    assert before == {tuple(later.hash_ids_of(r)) for r in range(FIRST.prompts, len(later))}


def test_first_uses_are_the_tail_of_a_first_stage_alone() -> None:
    first, later = (replayed(replace(FIRST, stage=stage, users=4), None, most=440) for stage in (0, 1))
    assert first.ttft_ms_p99 > 1.1 * later.ttft_ms_p99
    assert first.ttft_ms_p50 == pytest.approx(later.ttft_ms_p50, rel=0.05)


def test_the_first_requests_are_those_of_the_whole_stage() -> None:
    few = workload(FIRST, 30)
    assert len(few) == 30
    assert few.arrival_s.tolist() == workload(FIRST).arrival_s[:30].tolist()


def test_asynchronous_scheduling_costs_a_request_one_step_of_its_server() -> None:
    kernels = ("timing.calibrated=false", "server=none")
    plain = replayed(FIRST, None, kernels, most=60)
    ahead = replayed(FIRST, None, (*kernels, "engine.asynchronous=true"), most=60)
    assert ahead.tpot_ms_mean == pytest.approx(plain.tpot_ms_mean, rel=0.01)
    assert ahead.ttft_ms_p50 - plain.ttft_ms_p50 == pytest.approx(plain.tpot_ms_mean, rel=0.25)


def test_a_point_and_its_calibration_are_the_same() -> None:
    point = CENTRE + 0.3 * WIDTH
    assert vector(calibration(point)) == pytest.approx(point)
    assert vector(Calibration())[: len([term for term in TERMS if term.name.startswith("log")])].tolist() == [0, 0, 0]


def test_stages_move_the_terms_of_all_models_together() -> None:
    # A world in which the log errors of TTFT and TPOT are known sums of the terms' distances from a truth.
    truth = CENTRE + 0.2 * WIDTH
    slopes = np.linspace(0.2, 1.0, 2 * len(TERMS)).reshape(len(TERMS), 2)

    def errors(point: np.ndarray) -> np.ndarray:
        return ((point - truth) / WIDTH) @ slopes

    stages = [replace(FIRST, stage=k) for k in range(3)]
    points = design(CENTRE)
    found = surface((points - CENTRE) / WIDTH, np.array([errors(point) for point in points]))
    surfaces = StageSurfaces({"dense": CENTRE, "moe": CENTRE + 0.1 * WIDTH}, dict.fromkeys(stages, found))
    terms = surfaces.fitted(stages)
    assert np.abs(errors(terms["dense"])).max() < 0.1 * np.abs(errors(CENTRE)).max()
    assert terms["moe"] - terms["dense"] == pytest.approx(0.1 * WIDTH)


def test_errors_of_stages_are_signed_and_their_means_are_not() -> None:
    lines = [_line("a", "x", 1.2), _line("b", "x", 0.9)]
    frame = pl.DataFrame(lines)
    assert with_errors(frame)["error_tpot_ms_mean"].to_list() == pytest.approx([20.0, -10.0])
    only = means(frame).row(0, named=True)
    assert (only["tpot_ms_mean_mape"], only["tpot_ms_mean_most"]) == pytest.approx((15.0, 20.0))


def _line(stage: str, fit: str, ratio: float) -> dict[str, object]:
    measured = {f"measured_{metric}": 10.0 for metric in METRICS}
    return {"stage": stage, "fit": fit, **measured, **{f"predicted_{metric}": 10.0 * ratio for metric in METRICS}}


def test_a_stage_is_named_by_model_layout_and_rate() -> None:
    assert str(Stage(**vars(FIRST))) == "llama2_7b tp1 5/s"
