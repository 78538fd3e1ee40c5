"""Policies as they are shipped against the best of a short search: every policy has a row, the first trial is it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.validation.defaults.report import table
from experiments.validation.defaults.run import Found, race_above, search
from experiments.validation.defaults.study import Coarse, Study, read_study
from tests.conftest import ROOT
from tests.helpers.launcher import typed


def test_every_policy_of_the_project_has_a_row() -> None:
    study = read_study()
    assert set(study.policies) == {file.stem for file in (ROOT / "conf" / "policy").glob("*.yaml")}
    assert {"azure_code", "azure_conv", "mooncake", "reasoning"} == set(study.traces)


def test_the_first_trial_is_the_policy_as_it_is(tmp_path: Path) -> None:
    shared = [*("gpu=h100", "trace.requests=60", "engine.max_batch=2", "timing=roofline"), "objective=capacity"]
    study = Study(3, 2, shared, {"synthetic": []}, {"chunked": "chunked"}, Coarse({}, {}))
    found = search(study, "synthetic", "chunked", tmp_path)
    assert found.untuned_rps <= found.tuned_rps
    assert not any(word.startswith("engine.max_batch") for word in found.best)  # what is given is not searched
    alone = search(replace(study, trials=1), "synthetic", "chunked", tmp_path)
    assert alone.tuned_rps == alone.untuned_rps == found.untuned_rps
    assert alone.best == ()


def test_only_the_cells_that_are_named_are_searched_coarsely() -> None:
    study = read_study()
    assert set(study.coarse.settings["reasoning"]) <= set(study.overrides("reasoning", "trail"))
    assert not set(study.coarse.settings["azure_code"]) & set(study.overrides("azure_code", "trail"))
    assert set(study.coarse.traces) <= set(study.policies)
    assert all(set(traces) <= set(study.traces) for traces in study.coarse.traces.values())
    assert set(study.coarse.settings) == set(study.traces)


def test_a_search_that_runs_out_of_requests_is_not_settled(tmp_path: Path) -> None:
    shared = ["gpu=h100", "trace.requests=60", "timing=roofline", "objective=capacity", "objective.most_requests=120"]
    study = Study(1, 2, shared, {"synthetic": []}, {"chunked": "chunked"}, Coarse({}, {}))
    assert not search(study, "synthetic", "chunked", tmp_path).settled


def test_draws_race_the_defaults() -> None:
    assert race_above(20.0, 1.01) == ("objective.at_least=20.2", "objective.first_step=1.1")
    assert race_above(0.0, 2.0) == ()


def test_a_cell_below_the_share_is_marked() -> None:
    found = [Found("a", "x", 4.0, 10.0, ()), Found("a", "y", 10.0, 10.0, (), False), Found("b", "x", 0.0, 0.0, ())]
    found.append(Found("b", "y", 10.0, 10.0, (), race_rps=20.0))
    assert table(found, 0.5).splitlines() == [
        "| policy | a | b |",
        "|---|---:|---:|",
        "| x | 4 / 10 (40 %) ! | 0 / 0 |",
        "| y | 10 / 10 (100 %) ? | 10 / < 20 |",
    ]


@pytest.mark.parametrize("words", [["nowhere"], ["azure_code", "only=nobody"]])
def test_what_the_study_does_not_name_is_refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "defaults")(words) == 2
    assert "is not in the study; choose from" in capfd.readouterr().err
