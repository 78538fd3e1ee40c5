"""The claims table: how its rows are read, what an effect is worth, and that every row can be run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.table.formats import as_latex, as_markdown
from experiments.tune import base
from experiments.tune.base import Configuration
from experiments.validation.claims import run as running
from experiments.validation.claims.file import Claim, Trial, claim_names, read_claims
from experiments.validation.claims.pages import system_pages
from experiments.validation.claims.rule import can_pass, has_sign, off_by, verdict
from experiments.validation.claims.run import put_to_test
from experiments.validation.claims.sheet import as_csv, lay_out
from framework.errors import InputError
from framework.run.compose import fitting_parts
from tests.helpers.composing import composing
from tests.helpers.launcher import in_this_process, typed

CONTENT: dict[str, Any] = {
    "system": "Quick",
    "source": "a paper",
    "text": "twice the goodput",
    "metric": "request_throughput",
    "claimed": 2.0,
    "published": True,
    "class_reason": "All of it stands there.",
    "settings": ["timing=roofline", "trace=synthetic", "trace.requests=60", "trace.arrivals.rate=20"],
    "arms": {
        "system": ["policy=chunked", "cluster.instances=2"],
        "baseline": ["policy=chunked", "cluster.instances=1"],
    },
}
TRIAL = Trial(replicates=3, fast_replicates=2, passes_within=1.2)


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Sweep", in_this_process)


def first_of_some_systems(names: Sequence[str]) -> list[Any]:
    """The other rows are read with the slow tests."""
    firsts = list({name.partition("/")[0]: name for name in reversed(names)}.values())[::6]
    return [pytest.param(name, marks=() if name in firsts else pytest.mark.slow) for name in names]


def claim(**changes: Any) -> Claim:
    return Claim(**(CONTENT | changes), name="quick")


@pytest.mark.parametrize(
    ("claimed", "simulated", "off"),
    [
        (2.0, 2.0, 1.0),
        (2.0, 4.0, 2.0),
        (4.0, 2.0, 2.0),
        (0.25, 0.5, 2.0),  # 75 % lower against 50 % lower
        (2.0, 0.5, 4.0),  # the wrong way
        ([2.0, 4.0], 3.0, 1.0),
        ([2.0, 4.0], 8.0, 2.0),
        ([2.0, 4.0], 1.0, 2.0),
        ([0.25, 0.5], 0.125, 2.0),
        (2.0, 0.0, math.inf),
        (2.0, math.nan, math.inf),
        (2.0, math.inf, math.inf),
    ],
)
def test_how_far_a_factor_is_off(claimed: Any, simulated: float, off: float) -> None:
    assert off_by(claim(claimed=claimed), simulated) == pytest.approx(off)


@pytest.mark.parametrize(
    ("claimed", "simulated", "said"),
    [
        (2.0, 2.4, "pass"),  # 20 % more, to the digit
        (2.0, 2.4001, "sign"),
        (2.0, 2.0 / 1.2, "pass"),
        (2.0, 1.666, "sign"),
        (2.0, 1.0, "no sign"),  # on neither side
        (1.1, 0.99, "no sign"),  # near, but on the other side
        (1.1, 1.1, "sign"),  # any right sign would do
        (1.2, 1.2, "sign"),
        (1.21, 1.21, "pass"),
        (1.3, 1.15, "pass"),
        (1.3, 1.13, "sign"),  # within 1.2, but nearer to 1 than to 1.3
        (1 / 1.3, 1 / 1.13, "sign"),
        ([1.1, 3.0], 2.0, "sign"),
        (0.5, 0.6, "pass"),
        (0.5, 0.601, "sign"),
        (0.5, 0.5 / 1.2, "pass"),
        (0.5, 1.2, "no sign"),
        ([2.0, 4.0], 4.8, "pass"),
        ([2.0, 4.0], 3.0, "pass"),
        ([2.0, 4.0], 1.66, "sign"),
        (2.0, math.nan, "no sign"),
        (0.5, 0.0, "sign"),
    ],
)
def test_a_published_row_passes_within_20_percent_and_nearer_to_the_claim_than_to_1(
    claimed: Any, simulated: float, said: str
) -> None:
    assert verdict(claim(claimed=claimed), simulated, 1.2) == said
    assert has_sign(claim(claimed=claimed), simulated) == (said != "no sign")


def test_of_a_chosen_regime_the_sign_counts() -> None:
    chosen = claim(published=False)
    assert [verdict(chosen, factor, 1.2) for factor in (2.0, 1.2, 0.9)] == ["sign", "sign", "no sign"]
    assert verdict(claim(published=False, claimed=0.5), 0.9, 1.2) == "sign"


def test_a_row_that_rests_on_a_mistake_does_not_pass() -> None:
    mistaken = claim(rests_on_mistake=True, found=("The paper's simulator takes one for the other.",))
    assert [verdict(mistaken, factor, 1.2) for factor in (2.0, 0.9)] == ["sign", "no sign"]
    assert not can_pass(mistaken, 1.2)
    assert can_pass(claim(), 1.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"claimed": 1.0}, ["claimed", "factor"]),
        ({"claimed": [0.5, 2.0]}, ["claimed", "factor"]),
        ({"claimed": -2.0}, ["claimed", "factor"]),
        ({"arms": {"system": []}}, ["arms", "system and baseline"]),
        ({"chosen": ["the rate", {"and this": "the limit"}]}, ["chosen", "needs quotes"]),
        ({"rests_on_mistake": True}, ["found", "mistake"]),
        ({"replicates": 0}, ["replicates", "whole number"]),
    ],
)
def test_a_row_that_does_not_fit_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        claim(**changes)
    assert all(word in str(caught.value) for word in ("quick.yaml", *words))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.pop("metric"), ["metric"]),
        (lambda content: content.update(colour="red"), ["its keys must be among", "metric"]),
    ],
)
def test_a_file_that_is_no_row_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], words: list[str]
) -> None:
    content = dict(CONTENT)
    change(content)
    (tmp_path / "swift").mkdir()
    OmegaConf.save(OmegaConf.create(content), tmp_path / "swift" / "quick.yaml")
    with pytest.raises(InputError) as caught:
        read_claims(folder=tmp_path)
    assert all(word in str(caught.value) for word in ("swift/quick.yaml", *words))


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("ares", ["ares/goodput", "ares/tpot"]),
        ("ares/tpot", ["ares/tpot"]),
        ("eagle", ["eagle/48", "eagle/large", "eagle/small"]),
        ("sarathi/yi", ["sarathi/yi_relaxed", "sarathi/yi_strict"]),
    ],
)
def test_only_takes_a_system_or_a_case(word: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert [one.name for one in read_claims([word])] == names
    assert not capsys.readouterr().err


def test_only_refuses_a_name_that_no_claim_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "claims")(["only=are"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: only=are: no claim of that name; choose from andes/surge, ares/goodput,")
    assert error.count("\n") == 1


def test_own_leaves_out_what_is_shown_beside_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Claim] = []

    def record(claims: list[Claim], *_: Any, **__: Any) -> list[Any]:
        asked.extend(claims)
        raise InputError("enough")

    monkeypatch.setattr("experiments.validation.claims.run.put_to_test", record)
    out = f"out={tmp_path / 'out'}"
    claims = typed("validation", "claims")
    assert claims(["only=ares/tpot", out]) == claims(["own=true", "only=ares/tpot", out]) == 2
    whole, own = asked
    assert whole.sensitivity
    assert not own.sensitivity
    assert own.settings == whole.settings


def test_names_are_in_the_order_of_the_table() -> None:
    """That of README and docs/claims.md, in which EAGLE-3 comes before EAGLE."""
    names = claim_names()
    assert len(names) == 72
    assert names.index("eagle3/64") < names.index("eagle/48")


def test_runs_become_a_table_and_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = claim(
        published=False,
        sensitivity={"a slower load": ("trace.arrivals.rate=2",)},
        chosen=("the rate",),
    )
    (tested,) = put_to_test([row], TRIAL, tmp_path)
    assert tested.effect.factor > 1
    assert tested.effect.low <= tested.effect.factor <= tested.effect.high
    assert tested.effect.replicates == 3
    assert {one.replicates for one in tested.sensitivity.values()} == {2}
    assert set(tested.sensitivity) == {"a slower load"}
    records = sorted((tmp_path / "results").rglob("*.json"))
    written = [path.stat().st_mtime_ns for path in records]
    (again,) = put_to_test([row], TRIAL, tmp_path)
    assert again == tested
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "results").rglob("*.json"))] == written

    sheet = lay_out([tested], TRIAL.in_fast_mode())
    markdown = as_markdown(sheet)
    assert "twice the goodput" in markdown
    assert "0 of 0 published rows pass" in markdown
    assert "1 of 1 others have the sign" in markdown
    assert "Fast mode" in markdown
    assert r"\toprule" in as_latex(sheet)
    page = system_pages([tested])["quick"]
    assert "## What was chosen\n\n1. the rate\n" in page
    assert "| 1 | a slower load | × " in page
    lines = as_csv([tested], TRIAL).splitlines()
    assert len(lines) == 1 + 2
    assert [line.split(",")[2] for line in lines[1:]] == ['""', "a slower load"]


def test_a_row_that_draws_nothing_has_as_many_replicates_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tested,) = put_to_test([claim(replicates=1)], TRIAL, tmp_path)
    assert tested.effect.replicates == 1
    assert math.isnan(tested.effect.low)
    assert len(list((tmp_path / "results").rglob("*.json"))) == 2
    markdown = as_markdown(lay_out([tested], TRIAL))
    assert "Replicates: row 1: 1." in system_pages([tested])["quick"]
    assert f"| × {tested.effect.factor:.2f} |" in markdown  # no interval


def test_a_run_that_is_refused_names_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = claim(arms={"system": ["policy=chunked", "cluster.instances=0"], "baseline": ["policy=chunked"]})
    with pytest.raises(InputError, match=r"quick, regime, system: .*cluster\.instances"):
        put_to_test([row], TRIAL.in_fast_mode(), tmp_path)


@pytest.mark.parametrize("name", first_of_some_systems(claim_names()))
def test_every_shipped_row_fits_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "initialize_config_dir", lambda *_, **__: composing())
    (row,) = read_claims([name])
    for arm in row.arms.values():
        config = Configuration((*row.settings, *arm, "trace.seed=3", *row.fast)).config
        assert fitting_parts(config)["policy"].name
    for further in row.sensitivity.values():
        trace = Configuration((*row.settings, *row.arms["system"], *further)).config.trace
        # A distribution that is changed keeps what is not set anew, which may not fit it.
        for side in ("input", "output"):
            if side in trace:
                assert instantiate(trace[side], _convert_="all").quantile(np.array([0.5]))[0] > 0
    assert np.isfinite(row.range).all()
    assert row.class_reason.endswith(".")
