"""Routing decisions: recorded without a change of the run, replayed with the other choice, and shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from framework.metrics.slo import judge
from framework.objective.decisions import PHASES, decisions
from framework.objective.experiment import Experiment
from framework.objective.goodput import Goodput, Measurement
from framework.policy.watching import Change
from framework.run.compose import compose
from framework.run.job import done
from servelab.__main__ import main
from tests.helpers.composing import configured

_SMALL = ("trace=synthetic", "trace.requests=80", "trace.limit=80", "trace.arrivals.rate=40", "timing=affine")


@pytest.fixture(autouse=True)
def _own_words_for_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # `launch` sets it: undone after the test


def measured(*words: str) -> tuple[Experiment, Measurement]:
    experiment = compose(configured(*_SMALL, *words))
    return experiment, Goodput().measure(experiment)


@pytest.mark.parametrize(
    ("words", "hooks"),
    [
        (("policy=chunked",), {0}),
        (("policy=distserve", "cluster.prefill=2", "cluster.decode=2"), {0, 1}),
        (("policy=mooncake", "cluster.prefill=2", "cluster.decode=2", "engine/prefix_stores=dram"), {0, 1}),
        (("policy=chunked", "engine.implementation=reference"), {0}),
        (("policy=chunked", "policy.routing=round_robin"), {0}),
    ],
)
def test_a_run_that_is_watched_is_the_same(words: tuple[str, ...], hooks: set[int]) -> None:
    """`decisions` refuses a run that differs by a byte. Methods, compiled rules and look-ups are asked."""
    experiment, measurement = measured(*words)
    found = decisions(experiment, measurement, 0)
    assert {one.hook for one in found.routed} == hooks
    rows = measurement.result.requests
    first = [one for one in found.routed if one.hook == 0]
    assert [one.chosen for one in first] == rows["prefill_instance"][[one.request for one in first]].tolist()
    assert all(one.time_s == rows["arrival_s"][one.request] for one in first)


def test_the_policy_that_routes_by_the_estimate_never_goes_against_it() -> None:
    """Without waiting prompts and caches all estimates of a prefill are equal."""
    experiment, measurement = measured("policy=chunked", "trace.arrivals.rate=1")
    found = decisions(experiment, measurement, 0)
    assert found.with_choice == 80
    assert found.against_estimate == 0
    assert all(one.chosen_s == one.other_s > 0 and one.other != one.chosen for one in found.routed)


def test_a_replay_is_the_run_with_one_decision_changed() -> None:
    experiment, measurement = measured("policy=chunked", "policy.routing=round_robin", "slo.ttft_s=0.1")
    found = decisions(experiment, measurement, 5)
    assert len(found.replays) == 5
    for one in found.replays:
        routed = found.routed[one.number]
        again = experiment.on(experiment.workload).run(watch=Change(one.number, routed.other))
        assert again.requests["prefill_instance"][routed.request] == routed.other
        before, after = (judge(result, experiment.slo).good.sum() for result in (measurement.result, again))
        assert one.good == after - before
        lasted = [result.requests["end_s"] - result.requests["arrival_s"] for result in (measurement.result, again)]
        assert one.e2e_s == pytest.approx(float((lasted[1] - lasted[0]).sum()))
        earlier = [row.request for row in found.routed[: one.number]]
        same = again.requests["prefill_instance"] == measurement.result.requests["prefill_instance"]
        assert same[earlier].all()
    assert any(one.e2e_s != 0 for one in found.replays)
    assert found.regretted + found.worse <= 5


def test_a_bad_policy_is_regretted(tmp_path: Path) -> None:
    """One that sends all to instance 0 of two."""
    (tmp_path / "one.py").write_text(
        "import servelab\n\n\nclass One(servelab.Aggregated):\n"
        "    def route_prefill(self, request, cluster):\n        return 0\n"
    )
    words = [f"policy={tmp_path}/one.py:One", "cluster.instances=2", "output.decisions=8", "report=true", *_SMALL]
    assert main([*words, "trace.arrivals.rate=200", f"hydra.run.dir={tmp_path}/run", "slo.ttft_s=0.5"]) == 0
    table = pl.read_parquet(tmp_path / "run" / "decisions.parquet")
    assert table.columns[:5] == ["number", "time_s", "request", "phase", "chosen"]
    assert len(table) == 80
    assert set(table["chosen"]) == {0}
    assert set(table["other"]) == {1}
    replayed = table.drop_nulls("good_change")
    assert len(replayed) == 8
    better = ((replayed["good_change"] > 0) | ((replayed["good_change"] == 0) & (replayed["e2e_change_s"] < 0))).sum()
    assert better >= 7
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Regret of decisions" in page
    assert f"better in {better} (regret)" in page


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    found = done(configured("policy=chunked", *_SMALL), tmp_path)
    assert found.decisions is None
    assert not (tmp_path / "decisions.parquet").exists()


def test_replays_are_drawn_by_the_seed() -> None:
    experiment, measurement = measured("policy=chunked")
    one, other = (decisions(experiment, measurement, 4) for _ in range(2))
    assert one.replays == other.replays
    assert one.table().equals(other.table())
    assert np.diff([replay.number for replay in one.replays]).min() > 0
    assert set(one.table()["phase"]) == {PHASES[0]}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("output.decisions=0", "output.decisions must be a whole number of at least 1, got 0"),
        ("output.decisions=many", "output.decisions must be a whole number"),
        ("objective=capacity", "output.decisions runs the trace at one rate again and again; choose objective=goodput"),
    ],
)
def test_nonsense_is_refused(word: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["policy=chunked", "output.decisions=true", word, *_SMALL, f"hydra.run.dir={tmp_path}/run"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


def test_summary_json_is_not_changed(tmp_path: Path) -> None:
    summaries = []
    for name, words in (("plain", ()), ("watched", ("output.decisions=1",))):
        done(configured("policy=chunked", *_SMALL, *words), tmp_path / name)
        summaries.append(json.loads((tmp_path / name / "summary.json").read_text()))
    assert summaries[0] == summaries[1]
