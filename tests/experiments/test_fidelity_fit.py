"""Replays of measured deployments, and the terms and clients that are fitted to them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.validation.fidelity import command as fidelity
from experiments.validation.fidelity import csv_file as fidelity_csv
from experiments.validation.fidelity import score as fidelity_score
from experiments.validation.fidelity.beyond import BEYOND, UNFITTED, beyond
from experiments.validation.fidelity.calibrations import write_fitted
from experiments.validation.fidelity.csv_file import read_rows
from experiments.validation.fidelity.fit import (
    AGGREGATED,
    DISAGGREGATED,
    LAUNCHED,
    TERMS,
    Surfaces,
    calibration,
    choose_clients,
    fit_all,
    prior_of,
    terms_of,
)
from experiments.validation.fidelity.replay import Replay, Replayed, replay, workload
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.server import CANDIDATES, Client, assumed, server, stated, unsupported
from experiments.validation.fidelity.study import Replays, Study, study
from framework.calibration.replay import Sent, Served
from framework.errors import InputError
from framework.timing.calibration_terms import Calibration, read_calibrations
from framework.timing.fit_domain import Domain
from tests.experiments.test_fidelity import row

package = pytest.mark.skipif(
    importlib.util.find_spec(fidelity_csv.PACKAGE) is None, reason="aiconfigurator-core is not installed"
)
CLIENT = Client(0.8)


def latencies(task: Replay) -> Replayed:
    """A smooth world: latencies that terms, client and load move as they would."""
    terms, one = task.calibration, task.row
    step_s = 0.01 * terms.kernel + terms.step_s + terms.host_sequence_s * one.concurrency
    step_s += 0.001 * terms.communication * (one.parallelism.tp - 1)
    waiting_s = 0.3 * (1.0 - task.client.shortest) + 0.05 * task.client.spare
    waiting_s += 100 * one.concurrency * task.client.token_s + 2.0 / (task.client.rounds or 10)
    return Replayed(20 * step_s + terms.request_s + waiting_s, step_s, 0.0)


def world(tasks: Sequence[Replay]) -> list[Replayed | str]:
    return [latencies(task) for task in tasks]


def measured(truth: Calibration, client: Client, **changes: object) -> list[Row]:
    """Rows of several deployments and loads as that world would measure them."""
    rows = []
    for number, (tp, concurrency) in enumerate((tp, c) for tp in (1, 2, 4, 8) for c in (4, 16, 64, 256)):
        pool = replace(row().decode, parallelism=replace(row().parallelism, tp=tp))
        one = row(number, prefill=pool, decode=pool, concurrency=concurrency, key=f"{number:012x}", **changes)
        seen = latencies(Replay(one, client, truth))
        rows.append(replace(one, ttft_s=seen.ttft_s, tpot_s=seen.tpot_s))
    return rows


TRUTH = Calibration(kernel=0.95, communication=1.3, step_s=0.6e-3, host_sequence_s=6e-6, request_s=0.01)


def test_terms_are_found_again() -> None:
    rows = measured(TRUTH, CLIENT)
    clients = {one.key: CLIENT for one in rows}
    found = fit_all(rows, clients, Surfaces.laid([(one, CLIENT) for one in rows], world))
    terms = calibration(terms_of(rows[0], found))
    for one in rows:
        said, seen = latencies(Replay(one, CLIENT, terms)), latencies(Replay(one, CLIENT, TRUTH))
        assert said.tpot_s == pytest.approx(seen.tpot_s, rel=0.01)
        assert said.ttft_s == pytest.approx(seen.ttft_s, rel=0.02)


def test_doubtful_rows_move_nothing() -> None:
    rows = measured(TRUTH, CLIENT)
    wrong = [replace(one, key=f"d{one.key}", tpot_s=9 * one.tpot_s, doubts=("wrong",)) for one in rows]
    clients = {one.key: CLIENT for one in (*rows, *wrong)}
    surfaces = Surfaces.laid([(one, CLIENT) for one in (*rows, *wrong)], world)
    without = terms_of(rows[0], fit_all(rows, clients, surfaces))
    assert terms_of(rows[0], fit_all([*rows, *wrong], clients, surfaces)).tolist() == without.tolist()


def test_a_row_without_any_like_it_has_its_backends_terms() -> None:
    rows = measured(TRUTH, CLIENT)
    clients = {one.key: CLIENT for one in rows}
    found = fit_all(rows, clients, Surfaces.laid([(one, CLIENT) for one in rows], world))
    assert terms_of(replace(rows[0], gpu="b200"), found).tolist() == found[rows[0].backend,].tolist()
    assert terms_of(replace(rows[0], backend="sglang"), found).tolist() == [term.centre for term in TERMS]


def test_versions_of_a_server_have_terms_of_their_own() -> None:
    old, new = measured(TRUTH, CLIENT, version="1"), measured(replace(TRUTH, kernel=1.3), CLIENT, version="2")
    new = [replace(one, key=f"n{one.key}") for one in new]
    clients = {one.key: CLIENT for one in (*old, *new)}
    found = fit_all([*old, *new], clients, Surfaces.laid([(one, CLIENT) for one in (*old, *new)], world))
    kernels = [calibration(terms_of(one, found)).kernel for one in (old[0], replace(old[0], version="3"), new[0])]
    assert kernels[0] < kernels[1] < kernels[2]  # another version has the terms of both


def test_steps_of_experts_are_launched_longer_where_no_graph_holds_them() -> None:
    expert = row(model="deepseek_v3", backend="trtllm")
    assert prior_of(expert) == prior_of(replace(expert, backend="sglang")) != AGGREGATED
    assert prior_of(replace(expert, backend="vllm")) == prior_of(row(backend="trtllm")) == AGGREGATED
    assert prior_of(replace(expert, mode="disagg")) == DISAGGREGATED


def test_a_client_is_chosen_whatever_the_way_of_a_request() -> None:
    far = replace(calibration(LAUNCHED.centre), request_s=0.125)
    rows = measured(far, Client(0.9, None, 1, rounds=5), family="gap analysis", model="deepseek_v3", backend="trtllm")
    chosen = choose_clients(rows, rows, world)
    assert {(chosen[one.key].shortest, chosen[one.key].spare) for one in rows} == {(0.9, 1)}


def test_no_data_leave_the_prior() -> None:
    assert fit_all([], {}, Surfaces({})).keys() == {()}


def test_clients_are_chosen_from_the_training_rows_of_their_campaign() -> None:
    truth = calibration(np.array([term.centre for term in TERMS]))
    rows = measured(truth, Client(0.9, None, 1), family="gap analysis")
    chosen = choose_clients(rows, rows[:8], world)
    assert {(chosen[one.key].shortest, chosen[one.key].spare) for one in rows} == {(0.9, 1)}
    nothing = choose_clients(rows, [], world)
    assert {nothing[one.key] for one in rows} == {assumed(rows[0])}


def test_how_fast_clients_read_and_how_much_they_send_is_chosen_with_the_rest() -> None:
    truth = calibration(np.array([term.centre for term in TERMS]))
    for client in (Client(0.9, None, 1, 6e-5, rounds=5), Client(0.98, None, 0, rounds=20)):
        rows = measured(truth, client, family="gap analysis")
        chosen = choose_clients(rows, rows[:8], world)
        assert {chosen[one.key] for one in rows} == {client}


def test_a_campaign_is_read_by_clients_of_its_own() -> None:
    truth = calibration(np.array([term.centre for term in TERMS]))
    slow = measured(truth, Client(0.9, None, 1, 1e-4, rounds=5), family="gap analysis")
    fast = measured(truth, Client(0.9, None, 1, rounds=5), family="gap analysis", dtype="bf16")
    fast = [replace(one, key=f"f{one.key}") for one in fast]
    chosen = choose_clients([*slow, *fast], [*slow, *fast], world)
    assert {chosen[one.key].token_s for one in slow} == {1e-4}
    assert {chosen[one.key].token_s for one in fast} == {0.0}


def test_what_kernels_hide_is_found_where_it_shows() -> None:
    def hidden(tasks: Sequence[Replay]) -> list[Replayed | str]:
        return [showing(task) for task in tasks]

    def showing(task: Replay) -> Replayed:
        prefill_s = max(0.4 / task.row.parallelism.tp, 200 * task.calibration.eager_layer_s)
        return Replayed(prefill_s + task.calibration.request_s, 0.01, 0.0)

    rows, truth = measured(TRUTH, CLIENT), calibration(np.array([term.centre for term in TERMS]))
    truth = replace(truth, eager_layer_s=5.5e-4)
    seen = [showing(Replay(one, CLIENT, truth)) for one in rows]
    rows = [replace(one, ttft_s=each.ttft_s, tpot_s=each.tpot_s) for one, each in zip(rows, seen, strict=True)]
    clients = {one.key: CLIENT for one in rows}
    found = fit_all(rows, clients, Surfaces.laid([(one, CLIENT) for one in rows], hidden))
    assert calibration(terms_of(rows[0], found)).eager_layer_s == pytest.approx(5.5e-4, rel=0.2)  # prior: 1e-4


def served_in(server_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays by a server that takes so long for a request, half of it to the first token, with what it waits."""

    def answer(sent: Sent, deployment: object, terms: Calibration) -> Served:
        each = np.full(len(sent.workload), 1.0)
        e2e_s = terms.request_s + server_s
        later = sent.workload.output_tokens - 1
        return Served(each * (terms.request_s + server_s / 2), server_s / 2 / later, each * e2e_s, None)

    monkeypatch.setattr("framework.calibration.replay.replay", answer)
    monkeypatch.setattr("experiments.validation.fidelity.replay.server", lambda row, client: None)


def test_requests_last_as_long_as_reading_those_in_flight_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    served_in(2.0, monkeypatch)
    one = row(concurrency=100, osl=1000)
    found = replay(Replay(one, Client(1.0, token_s=5e-5), Calibration(request_s=0.5)))
    assert isinstance(found, Replayed)
    assert found.ttft_s == pytest.approx(100 * 1000 * 5e-5 - 1.0, rel=0.02)  # 5 s for all, half of 2 s comes after it
    assert found.tpot_s == pytest.approx(1.0 / 999)


def test_the_first_of_tokens_that_come_together_comes_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    served_in(2.0, monkeypatch)
    one = row(concurrency=100, osl=1000)
    found = replay(Replay(one, Client(1.0, together=10), Calibration(request_s=0.5)))
    assert isinstance(found, Replayed)
    assert found.ttft_s == pytest.approx(1.5 + 9 * 1.0 / 999)
    assert found.tpot_s == pytest.approx((1.0 - 9 * 1.0 / 999) / 999)
    short = replay(Replay(row(concurrency=100, osl=4), Client(1.0, together=10), Calibration(request_s=0.5)))
    assert isinstance(short, Replayed)
    assert (short.ttft_s, short.tpot_s) == pytest.approx((2.5, 0.0))  # all four tokens come at the end


def test_reading_that_keeps_up_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    served_in(2.0, monkeypatch)
    one = row(concurrency=100, osl=1000)
    for token_s in (0.0, 1e-5, 2.4e-5):  # 2.5e-5 s would fill the 2.5 s of a request
        found = replay(Replay(one, Client(1.0, token_s=token_s), Calibration(request_s=0.5)))
        assert isinstance(found, Replayed)
        assert found.ttft_s == 1.5


def test_a_stated_client_is_not_chosen() -> None:
    rows = measured(TRUTH, CLIENT, family="InferenceX")
    chosen = choose_clients(rows, rows, world)
    assert {chosen[one.key] for one in rows} == {stated(rows[0])} == {Client(0.8)}


def test_candidates_differ() -> None:
    assert len(set(CANDIDATES)) == len(CANDIDATES)


def test_lengths_are_those_of_the_row() -> None:
    one = row(isl=1000, osl=100, concurrency=16, prompts=160)
    drawn = workload(one, Client(0.8))
    assert len(drawn) == 160
    assert 800 <= drawn.input_tokens.min() < 850
    assert 950 < drawn.input_tokens.max() <= 1000
    assert 80 <= drawn.output_tokens.min() <= drawn.output_tokens.max() <= 100
    exact = workload(one, Client(1.0))
    assert set(exact.input_tokens) == {1000}
    assert len(workload(one, Client(1.0, rounds=3))) == 48
    assert workload(one, Client(0.8)).input_tokens.tolist() == drawn.input_tokens.tolist()


@package
def test_a_deployment_is_replayed_as_measured() -> None:
    reading = read_rows()
    one = next(r for r in reading.rows if r.model == "llama3_70b" and r.gpu == "h100" and r.backend == "vllm")
    assert unsupported(one) == ""
    there = server(one, assumed(one))
    assert there.engine.batching == "decode_first"
    plain = replay(Replay(one, assumed(one), Calibration()))
    slower = replay(Replay(one, assumed(one), Calibration(kernel=1.2, request_s=0.05)))
    assert isinstance(plain, Replayed)
    assert isinstance(slower, Replayed)
    assert plain.tpot_s == pytest.approx(one.tpot_s, rel=0.3)
    assert 1.0 < slower.tpot_s / plain.tpot_s < 1.25
    assert slower.ttft_s > plain.ttft_s + 0.045
    assert replay(Replay(one, assumed(one), Calibration())) == plain


@package
def test_what_cannot_be_replayed_says_why() -> None:
    big = replace(row(model="deepseek_v3", gpu="h100", dtype="fp8_block", expert_dtype="fp8_block"))
    assert "does not fit gpu h100" in unsupported(big)


@package
def test_study_of_a_few_rows(tmp_path: Path) -> None:
    rows = [r for r in read_rows().rows if (r.model, r.gpu, r.backend) == ("llama3_70b", "h100", "vllm")]
    rows = [r for r in rows if r.osl == 1024 and r.isl == 1024 and r.concurrency <= 16]
    one = study(rows, Replays(1))
    assert one.raw.keys() == one.validated.keys() == {r.key for r in rows}
    assert fidelity.own(one).height == 2 * len(rows)
    assert write_fitted([one], tmp_path, fewest=len(rows) + 1) == []
    (path,) = write_fitted([one], tmp_path, fewest=len(rows))
    assert path == tmp_path / "h100" / "vllm" / "calibration.json"
    fits = read_calibrations(path)
    assert {(fit.selector.kind, fit.selector.model, fit.selector.dtype) for fit in fits} == {
        ("dense", "", ""),
        ("", "llama3_70b", "fp8"),
    }
    low, high = min(r.concurrency for r in rows), max(r.concurrency for r in rows)
    assert {fit.domain for fit in fits} == {Domain((1024, 1024), (1024, 1024), in_flight=(low, high))}
    assert all(fit.licence and fit.source and set(fit.rows) == {r.key for r in rows} for fit in fits)


@package
@pytest.mark.slow
def test_dense_deployments_are_predicted_within_what_is_claimed() -> None:
    rows = [r for r in read_rows().rows if (r.mode, r.kind) == ("agg", "dense") and not r.doubts]
    errors = fidelity.own(study(rows, Replays(2)))
    found = {line["fitted"]: line for line in fidelity_score.scores(errors).iter_rows(named=True)}
    assert found[True]["ttft_s_mape"] <= 17
    assert found[True]["tpot_s_mape"] <= 6
    assert found[False]["ttft_s_mape"] <= 32
    assert found[False]["tpot_s_mape"] <= 13


def test_each_half_of_the_loads_is_tried_by_a_fit_to_the_other() -> None:
    rows = measured(TRUTH, CLIENT)
    clients = {one.key: CLIENT for one in rows}
    surfaces = Surfaces.laid([(one, CLIENT) for one in rows], world)
    found = beyond(rows, clients, surfaces, world)
    tried = found.filter(pl.col("axis") == "in flight")
    low, high = (tried.filter(pl.col("tested") == side) for side in ("below", "above"))
    assert set(low["concurrency"]) == {4, 16}
    assert set(high["concurrency"]) == {64, 256}
    assert set(found["predictor"]) == {UNFITTED, BEYOND}
    for side in (low, high):  # in a smooth world what one half tells holds for the other
        error = {line["predictor"]: line["tpot_s_mape"] for line in fidelity_score.scores(side).iter_rows(named=True)}
        assert error[BEYOND] < 0.5 * error[UNFITTED]


def test_across_instances_a_request_may_take_longer_on_its_way() -> None:
    truth = replace(TRUTH, request_s=0.3)
    rows = measured(truth, CLIENT)
    clients = {one.key: CLIENT for one in rows}
    pairs = [(one, CLIENT) for one in rows]
    found = [
        calibration(terms_of(rows[0], fit_all(rows, clients, Surfaces.laid(pairs, world, prior)))).request_s
        for prior in (AGGREGATED, DISAGGREGATED)
    ]
    assert found[0] <= 0.1
    assert found[1] == pytest.approx(0.3, rel=0.15)


def test_options() -> None:
    options = fidelity.parse(fidelity.main.read(["kinds=moe", "out=x", "calibrations=y"]))
    assert (options.kinds, options.out, options.calibrations) == (("moe",), Path("x"), Path("y"))
    with pytest.raises(InputError, match="kinds must be dense, moe"):
        fidelity.parse(fidelity.main.read(["kinds=small"]))
    with pytest.raises(InputError, match="rows=3: not understood"):
        fidelity.parse(fidelity.main.read(["rows=3"]))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("key", ["out", "calibrations"])
def test_where_results_cannot_go_is_told_before_anything_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(InputError, match="file: cannot be made"):
        fidelity.main([f"{key}=file"])


def test_reasons_are_counted() -> None:
    one = Study((), {}, {}, {"a": "too big", "b": "too big", "c": "no table"}, {})
    assert fidelity.left_out([one]) == ["not replayed: 2 too big", "not replayed: 1 no table"]
