"""Fitted traces against recordings: what is run, what counts as near, how tables read, how mistakes end."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.validation.twins import run
from experiments.validation.twins.judge import RULES
from experiments.validation.twins.report import cells, samples, summary
from experiments.validation.twins.run import SPANS, Cell, Extent, Found, Pair, measure
from experiments.validation.twins.study import Compared, Memory, Study, read_study
from framework.cli.composition import composing
from framework.cli.conf import CONF
from tests.helpers.launcher import typed
from traces.fit import fit_trace
from traces.formats import write_parquet
from traces.frame import Trace
from traces.load import from_file, load

POLICIES = {
    "chunked": ["policy=chunked", "server=none", "cluster.instances=1"],
    "continuous": ["policy=continuous", "server=none", "cluster.instances=1"],
}


def recording(requests: int = 400) -> Trace:
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(0.2, requests))
    lengths = {name: rng.integers(200, 3000, requests) for name in ("input_tokens", "output_tokens")}
    return Trace(pl.DataFrame({"arrival_s": arrival - arrival[0], **lengths}), "made", "real")


def made_study(path: Path) -> Study:
    compared = Compared({"path": str(path)}, ["engine.prefix_cache=false"], {"small": Memory([], [2.0])})
    return Study(["model=llama3_8b", "gpu=h100"], POLICIES, "continuous", {"made": compared})


def test_the_study_has_enough_cells_and_keeps_some_out() -> None:
    study = read_study()
    assert set(study.traces) == {"mooncake", "azure_conv", "azure_code", "reasoning"}
    for compared in study.traces.values():
        rates = sum(len(memory.rates) for memory in compared.memories.values())
        assert rates * len(study.policies) >= 16
        assert rates >= 4  # kept out, with one policy


def test_every_cell_is_played_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = recording()
    write_parquet(trace, tmp_path / "made.parquet")
    fit_trace(trace).save(tmp_path / "made.json")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "BLOCK_S", 5.0)
    study = made_study(tmp_path / "made.parquet")
    progress: list[str] = []
    with composing(CONF):
        found = measure(study, "made", Extent(samples=2, resamples=3, capacity_resamples=1), progress.append)
    assert [cell.span for cell in found.attainment] == list(SPANS) * 2
    for pair in found.attainment.values():
        assert len(pair.fitted) == 2
        assert len(pair.resampled) == 3
        assert 0 <= pair.recorded <= 1
    assert all(len(pair.fitted) == 1 and len(pair.resampled) == 1 for pair in found.capacity.values())
    assert progress == ["made, small, chunked", "made, small, continuous"]
    assert RULES["attainment"].scores(found.attainment.values()).mean < 0.06


def test_what_is_drawn_from_distributions_is_compared_with_other_draws_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.5,1,Gamma,0.8,1\n600,0.5,1,Gamma,0.8,1\n")
    lengths = {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{5: 0.25, 900: 0.75}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths}))
    recording = {"path": str(tmp_path), "format": "servegen"}
    fit_trace(from_file(str(tmp_path), "servegen")).save(tmp_path / "made.json")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    compared = Compared(recording, [], {"small": Memory([], [2.0])}, "draws")
    study = Study([], POLICIES, "continuous", {"made": compared})
    played = [spans[SPANS[0]] for spans in run._played(study, "made", Extent(samples=1, resamples=2))]
    assert len(played) == 4
    for seed, workload in ((0, played[0]), (1, played[2]), (2, played[3])):
        assert np.array_equal(workload.arrival_s, load(path=tmp_path, format="servegen", seed=seed).arrival_s)
    assert not np.array_equal(played[2].arrival_s, played[3].arrival_s)


def test_near_and_within_the_interval() -> None:
    rule = RULES["attainment"]
    far = Pair(0.5, [0.6, 0.5], [0.4, 0.7])
    assert not rule.is_near(far)
    assert rule.holds(far)
    assert rule.holds(Pair(0.5, [0.6], [0.4] * 38 + [0.61]))  # one of 39 is enough
    assert not rule.holds(Pair(0.5, [0.6], [0.4, 0.55]))
    assert not rule.holds(Pair(0.5, [0.6], []))
    assert rule.is_near(Pair(0.5, [0.559], []))
    scores = rule.scores([far, Pair(0.5, [0.48, 0.5], [])])
    assert (scores.cells, scores.near, scores.held) == (2, 1, 2)
    assert (scores.mean, scores.worst, scores.mean_of_samples) == pytest.approx((0.06, 0.1, 0.03))
    assert RULES["p99_ttft_s"].is_near(Pair(2.0, [2.39], []))
    assert not RULES["capacity"].is_near(Pair(2.0, [1.89], []))
    assert RULES["capacity"].is_near(Pair(0.0, [0.0], []))
    chance = [rule.scores([Pair(0.5, [0.5], resampled)]).held_of_resamples for resampled in ([0.4, 0.7, 0.5, 0.42], [])]
    assert chance[0] == 0.5  # the lowest and the highest lie outside of what the others leave
    assert math.isnan(chance[1])
    assert math.isinf(RULES["capacity"].scores([Pair(0.0, [1.0], [])]).worst)


def test_tables_mark_what_is_off_and_keep_cells_apart(tmp_path: Path) -> None:
    found = Found("made", {}, {}, {})
    for policy, fitted in (("chunked", 0.6), ("continuous", 0.5)):
        for span in SPANS:
            found.attainment[Cell(policy, "small", 2.0, span)] = Pair(0.5, [fitted], [0.4, 0.7])
            found.p99_ttft_s[Cell(policy, "small", 2.0, span)] = Pair(1.0, [1.1], [])
        found.capacity[Cell(policy, "small", None, "whole")] = Pair(2.0, [3.0], [])
    study = made_study(tmp_path)
    rows = summary(study, [found]).splitlines()[2:]
    assert rows[0] == "| made | of the fitting | attainment | 4 | 10.0 points | 10.0 points | 0 | 4 | 0.0 |"
    assert rows[4] == "| made | kept out | P99 TTFT | 4 | 10.0 % | 10.0 % | 4 | 4 |  |"
    found.attainment[Cell("chunked", "small", 2.0, SPANS[0])] = Pair(0.5, [0.6, 0.5, 0.8], [0.4, 0.7])
    found.attainment[Cell("continuous", "small", 2.0, SPANS[0])] = Pair(0.5, [0.5, 0.9, 0.9], [])
    found.p99_ttft_s.update({cell: Pair(1.0, [1.1] * 3, []) for cell in found.p99_ttft_s})
    found.attainment.update({cell: Pair(0.5, [0.5] * 3, []) for cell in found.attainment if cell.span != SPANS[0]})
    assert samples(study, [found]).splitlines()[-1] == "- made: 0: 0, 1: 0, 2: 1"
    rows = cells(study, found).splitlines()[-2:]
    assert rows[0].startswith("| chunked | small | 2 | 50.0 / 60.0 ~ |")
    assert rows[0].endswith("| 2.00 / 3.00 ! |")
    assert rows[1].startswith("| continuous (kept out) | small | 2 | 50.0 / 50.0 |")


def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACES_OFFLINE", "1")
    monkeypatch.setenv("TRACES_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for words, progress in (
        (["mooncak"], "there is no such trace in the study"),
        (["mooncake", "samples=0"], "samples must be a whole number from 1"),
        (["mooncake"], "the recording is not at hand"),
    ):
        assert typed("validation", "twins")(words) == 2
        assert progress in capsys.readouterr().err.splitlines()[-1]
