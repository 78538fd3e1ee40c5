"""Ablations: what is run, how replicates become intervals, what is printed and written, and how mistakes end."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.ablation.file import Ablation, Published, read_ablation
from experiments.ablation.report import as_csv, as_json, lay_out, write
from experiments.ablation.run import Outcome, run
from experiments.table.formats import as_markdown, as_text
from framework.cli.explain import explain
from framework.errors import InputError
from tests.conftest import ROOT
from tests.helpers.launcher import typed

SMALL = ["trace=synthetic", "trace.limit=60", "policy=ares", "cluster.prefill=1", "cluster.decode=2"]
VARIANTS = {
    "turns": ["policy.placement=round_robin", "policy.period_s=null", "predictor=none"],
    "least": ["policy.period_s=null", "predictor=none"],
}


def small(**changes: Any) -> Ablation:
    settings: dict[str, Any] = {
        "title": "small",
        "base": SMALL,
        "variants": VARIANTS,
        "comparisons": {"turns": ["least"]},
        "metrics": {"p99_tpot_ms": "P99 TPOT ms", "preemptions": "preemptions"},
        "replicates": 2,
        "name": "small",
    }
    return Ablation(**settings | changes)


def outcome(values: Mapping[str, Mapping[str, Sequence[float]]], source: str = "twin", **changes: Any) -> Outcome:
    arrays = {name: {key: np.asarray(row, float) for key, row in rows.items()} for name, rows in values.items()}
    count = len(next(iter(next(iter(arrays.values())).values())))
    return Outcome(small(**changes), count, [], "reasoning", source, arrays)


MADE = {
    "turns": {"p99_tpot_ms": [10.0, 12.0, 14.0], "preemptions": [0.0, 1.0, 5.0]},
    "least": {"p99_tpot_ms": [9.0, 10.9, 13.1], "preemptions": [0.0, 2.0, 4.0]},
}


# --- statistics -------------------------------------------------------------------------------------------------------


def test_differences_are_paired() -> None:
    made = outcome(MADE)
    difference = made.difference("least", "turns", "p99_tpot_ms")
    assert difference.mean == pytest.approx(-1.0)
    assert difference.half_width == pytest.approx(4.302653 * 0.1 / np.sqrt(3), rel=1e-6)
    assert difference.is_significant
    assert not made.difference("least", "turns", "preemptions").is_significant
    assert made.level("turns", "p99_tpot_ms").half_width > 4  # the replicates differ far more than the variants
    assert made.change("least", "turns", "p99_tpot_ms").mean == pytest.approx(
        100 * np.mean([-0.1, -1.1 / 12, -0.9 / 14])
    )
    assert np.isnan(made.change("least", "turns", "preemptions").mean)  # a baseline of 0 has no percentage


# --- runs -------------------------------------------------------------------------------------------------------------


def test_every_variant_runs_on_the_same_sample_and_replicates_differ() -> None:
    found = run(small(), 2)
    assert found.trace == "synthetic"
    assert list(found.values) == ["turns", "least"]
    turns, least = found.values["turns"]["p99_tpot_ms"], found.values["least"]["p99_tpot_ms"]
    assert turns.shape == (2,)
    assert turns[0] != turns[1]
    assert not np.array_equal(turns, least)
    again = run(small(), 2)
    assert as_json(again) == as_json(found)
    doubled = run(small(variants={"turns": VARIANTS["turns"], "least": VARIANTS["turns"]}), 2)
    assert doubled.difference("least", "turns", "p99_tpot_ms").mean == 0


def test_overrides_of_the_command_line_reach_every_run() -> None:
    slower = run(small(), 1, ["timing=roofline", "timing.overhead_s=0.1"])
    usual = run(small(), 1, ["timing=roofline"])
    for variant in VARIANTS:
        assert slower.values[variant]["p99_tpot_ms"][0] > usual.values[variant]["p99_tpot_ms"][0] + 90


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"p99_typo_ms": "?"}}, ["p99_typo_ms", "p99_tpot_ms"]),
        ({"variants": VARIANTS | {"least": ["trace.limit=50"]}}, ["paired", "base"]),
        ({"replicate": "trace.rate_scale"}, ["trace.rate_scale"]),
    ],
    ids=["metric", "trace of a variant", "rate of 0"],
)
def test_what_cannot_be_run_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra wraps what a part refuses
        run(small(**changes), 2)
    line = explain(caught.value)
    assert line is not None
    assert all(word in line for word in words), line


def test_replicates_that_are_all_the_same_have_no_interval() -> None:
    same = small(base=[*SMALL, "trace.seed=3"])
    with pytest.raises(InputError, match=r"does not vary with seed.*replicates=1"):
        run(same, 2)
    assert run(same, 1).replicates == 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"comparisons": {"turns": ["mots"]}}, "mots"),
        ({"comparisons": {"nots": []}}, "nots"),
        ({"published": (Published("p99_tpot_ms", "tons", "?"),)}, "tons"),
        ({"published": (Published("goodput", "least", "?"),)}, "goodput"),
        ({"replicates": 0}, "replicates"),
    ],
)
def test_names_that_do_not_fit_together_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        small(**changes)


# --- the report -------------------------------------------------------------------------------------------------------


def printed(made: Outcome) -> str:
    return as_text(lay_out(made), width=170)


def test_the_table_shows_levels_differences_and_what_is_significant() -> None:
    text = printed(outcome(MADE))
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "fitted trace, not a recording" in text
    assert "minus turns" in text
    assert "12.0 ± 5.0" in rows["turns"]
    assert "−1.00 ± 0.25 (−8.5 %)*" in rows["least"]
    assert " 0 ± 2.5" in rows["least"]
    assert rows["least"].count("*") == 1
    assert "fitted trace" not in printed(outcome(MADE, source="synthetic"))


def test_published_figures_stand_beside_the_measured_ones() -> None:
    made = outcome(MADE, published=(Published("p99_tpot_ms", "least", "74.77 % lower"),), notes=("Mind this.",))
    lines = lay_out(made).notes
    assert "published 74.77 % lower; 'least' here −8.5 ± 4.6 % against 'turns'" in lines[0]
    assert lines[1] == "Mind this."
    assert "3 replicates of reasoning (twin)" in lines[2]


def test_files_hold_every_value(tmp_path: Path) -> None:
    made = outcome(MADE | {"least": {"p99_tpot_ms": [9.0, float("nan"), 13.1], "preemptions": [0.0, 2.0, 4.0]}})
    write(tmp_path / "new" / "out", made)
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["small.csv", "small.json", "small.md"]
    rows = list(csv.DictReader(as_csv(made).splitlines()))
    assert [float(row["p99_tpot_ms"]) for row in rows if row["variant"] == "turns"] == [10.0, 12.0, 14.0]
    assert [row["p99_tpot_ms"] for row in rows if row["variant"] == "least"] == ["9.0", "", "13.1"]
    document = json.loads(as_json(made))
    assert document["values"]["least"]["p99_tpot_ms"] == [9.0, None, 13.1]
    assert document["differences"]["turns"]["least"]["preemptions"]["mean"] == 0
    assert "| turns | 12.0 ± 5.0 |" in as_markdown(lay_out(made))


# --- the command ------------------------------------------------------------------------------------------------------


_BRIEF_SEARCH = ("trace.limit=50", "objective.most_requests=100", "objective.tolerance=0.5")


_ABLATIONS = sorted((ROOT / "conf" / "ablation").glob("*.yaml"))
_QUICK = ("ares", "pipeline")  # the others run with the slow tests, and their policies and options in tests/golden


def test_every_shipped_ablation_compares_with_a_base() -> None:
    assert len(_ABLATIONS) > 10
    for path in _ABLATIONS:
        one = read_ablation(path.stem)
        assert one.base
        assert len(one.variants) > 1


@pytest.mark.parametrize(
    "name",
    [pytest.param(path.stem, marks=() if path.stem in _QUICK else pytest.mark.slow) for path in _ABLATIONS],
)
def test_every_shipped_ablation_reads_and_runs(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = read_ablation(name).base
    size = "trace.limit=30" if "trace=mooncake" in base else "trace.requests=30"
    overrides = ["engine.log=full", *(_BRIEF_SEARCH if "objective=capacity" in base else [size])]
    assert typed("ablation")([name, *overrides, "replicates=1", f"out={tmp_path}"]) == 0
    shown = capsys.readouterr()
    for variant in read_ablation(name).variants:
        assert variant in shown.out
    assert "published" in shown.out
    assert "replicate 1 of 1" in shown.err
    assert (tmp_path / f"{name}.md").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], ["nonesuch", "ares"]),
        (["ares", "replicates=0"], ["replicates", "0"]),
        (["ares", "policy=nonesuch"], ["nonesuch", "distserve"]),
        (["ares", "engine.tokens=5"], ["engine.tokens"]),
        (["ares", f"out={ROOT}/run.py/there"], ["run.py", "cannot be made"]),
    ],
    ids=["name", "replicates", "policy", "key", "directory"],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("ablation")(arguments) == 2
    shown = capsys.readouterr()
    assert not shown.out
    (line,) = shown.err.splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in words), line


def test_a_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text("title: odd\nvariant: {}\n")
    with pytest.raises(InputError, match=r"odd\.yaml: its keys must be among .*variants"):
        read_ablation("odd", tmp_path)
    (tmp_path / "short.yaml").write_text("title: short\n")
    with pytest.raises(InputError, match=r"short\.yaml: .*variants"):
        read_ablation("short", tmp_path)
