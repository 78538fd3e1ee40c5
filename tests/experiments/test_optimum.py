"""Short searches against all points of small spaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import optuna
import polars as pl
import pytest
from rich.console import Console

from experiments.validation.optimum import solve as solving
from experiments.validation.optimum.file import Scenario, read_scenarios
from experiments.validation.optimum.report import draw, layout, rows, table, write
from experiments.validation.optimum.solve import Optimum, Searches, solve
from framework.errors import InputError
from tests.helpers.launcher import in_this_process, typed

NEAR, TRIALS, SEEDS = 0.02, 4, 2
SEARCHES = Searches("tpe", TRIALS, SEEDS)
FILE = """
sampler: tpe
trials: 4
seeds: 2
first_seed: 0
near: 0.02
policies:
  distserve: { space: pd, fixed: [engine.max_batch=64, policy.order=fcfs] }
  chunked: { space: chunked, fixed: [engine.max_batch=64, policy.order=fcfs] }
scenarios:
  - { model: llama3_8b, gpus: 2, trace: synthetic, rates: { distserve: 20, chunked: 25 }, overrides: [slo.ttft_s=1] }
traces:
  synthetic: [trace.limit=50]
"""


def scenarios(folder: Path) -> list[Scenario]:
    (folder / "small.yaml").write_text(FILE)
    return read_scenarios((), (), folder / "small.yaml")[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("optimum")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(solving, "Sweep", in_this_process)
        yield folder


@pytest.fixture(scope="module")
def solved(folder: Path) -> list[Optimum]:
    return [solve(scenario, SEARCHES, folder / "out") for scenario in scenarios(folder)]


def test_a_scenario_has_a_rate_for_each_policy(folder: Path) -> None:
    distserve, chunked = scenarios(folder)
    assert (distserve.policy, distserve.rate, distserve.space) == ("distserve", 20, "pd")
    assert (chunked.policy, chunked.rate, chunked.space) == ("chunked", 25, "chunked")
    assert chunked.name == "chunked llama3_8b synthetic"
    assert {"trace.rate=25", "trace.limit=50", "slo.ttft_s=1", "engine.max_batch=64"} <= set(chunked.overrides)


def test_words_choose_scenarios(folder: Path) -> None:
    (folder / "small.yaml").write_text(FILE)
    study, chosen = read_scenarios(["chunked", "llama3_8b"], ["seed=3"], folder / "small.yaml")
    assert (study["trials"], study["seeds"], study["near"]) == (TRIALS, SEEDS, NEAR)
    assert [one.policy for one in chosen] == ["chunked"]
    assert chosen[0].overrides[-1] == "seed=3"
    with pytest.raises(InputError, match="only=chunked,distserve"):
        read_scenarios(["chunked", "distserve"], (), folder / "small.yaml")


@pytest.mark.slow  # a search of all points runs them, too
def test_every_point_is_run(solved: list[Optimum]) -> None:
    distserve, chunked = solved
    assert len(distserve.values) == len(distserve.points) == 7, "chunk sizes"
    assert len(chunked.values) == len(chunked.points) == 14, "one instance of 2 GPUs or two of 1"
    for one in solved:
        assert one.values == {key: summary["goodput_rps"] for key, summary in one.summaries.items()}
        assert one.values[one.best] == max(one.values.values()) > 0


@pytest.mark.slow
def test_searches_end_at_points_that_were_run(solved: list[Optimum]) -> None:
    for one in solved:
        assert len(one.found) == SEEDS
        for found in one.found:
            assert len(found) == TRIALS
            assert np.all(np.diff(found) >= 0)
            assert set(found) <= set(one.values.values())
        gaps = one.gaps()
        assert gaps.shape == (SEEDS,)
        assert np.all((gaps >= 0) & (gaps < 1))
        reached = one.trials_to(NEAR)
        assert np.array_equal(np.isfinite(reached), gaps <= NEAR)
        assert np.all(reached[np.isfinite(reached)] <= TRIALS)
        assert 1 / len(one.values) <= one.share_near(NEAR) <= 1


def test_what_is_known_is_found_again_and_not_run_again(folder: Path, solved: list[Optimum]) -> None:
    files = {path.name: path.stat().st_mtime_ns for path in (folder / "results" / "records").iterdir()}
    again = solve(scenarios(folder)[1], SEARCHES, folder / "out")
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "results" / "records").iterdir()} == files
    assert again.values == solved[1].values
    assert [list(found) for found in again.found] == [list(found) for found in solved[1].found]


@pytest.mark.slow  # a best that is missed is reported, as below
def test_a_search_of_all_points_finds_the_best(folder: Path) -> None:
    whole = solve(scenarios(folder)[1], Searches("tpe", 14, 1), folder / "out")
    assert list(whole.gaps()) == [0]


def test_a_best_that_is_missed_is_reported(solved: list[Optimum]) -> None:
    one = solved[1]
    best = one.values[one.best]
    found = (np.array([0.5, 0.9]) * best, np.array([0.5, 0.99]) * best, np.array([1.0, 1.0]) * best)
    known = Optimum(one.scenario, one.points, one.values, one.summaries, found)
    assert known.gaps() == pytest.approx([0.1, 0.01, 0.0])
    assert list(known.trials_to(NEAR)) == [np.inf, 2, 1]


def test_the_table_has_a_row_a_scenario(solved: list[Optimum], folder: Path) -> None:
    found = rows(solved, NEAR)
    assert [row["policy"] for row in found] == ["distserve", "chunked"]
    assert [row["layout"] for row in found] == ["1×1 : 1×1", layout(solved[1].points[solved[1].best].settings)]
    assert found[1]["layout"] in ("2×1", "1×2")
    console = Console(width=160, record=True, file=(folder / "shown").open("w"))
    console.print(table(solved, NEAR))
    text = console.export_text()
    for words in ("points", "best", "chunk", "goodput", "SLO", "llama3_8b", "7", "14"):
        assert words in text, words


def test_files_say_what_the_table_says(solved: list[Optimum], folder: Path) -> None:
    out = folder / "written"
    write(out, solved, NEAR)
    draw(out, solved)
    summary, points = pl.read_csv(out / "optimum.csv"), pl.read_csv(out / "points.csv")
    assert summary["goodput"].to_list() == pytest.approx([one.values[one.best] for one in solved], rel=1e-12)
    assert summary["gap"].to_list() == pytest.approx([float(np.median(one.gaps())) for one in solved])
    assert len(points) == 7 + 14
    assert points["goodput"].max() == summary["goodput"].max()
    lines = (out / "optimum.md").read_text().splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert (out / "heatmap.png").read_bytes().startswith(b"\x89PNG")


def test_words_that_name_nothing_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "optimum")(["only=nonesuch"]) == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert line.startswith("error: only=nonesuch")
