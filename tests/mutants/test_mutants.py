"""Bugs that are seeded into the engine: all can be, and some of the nastiest are seen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers.families import FAMILIES
from tests.mutants.engine_hunt import fate, seen_before
from tests.mutants.hunt import SURVIVED, save_runs
from tests.mutants.seeds import ENGINE, MUTANTS, Mutant

NASTY = (
    "blocks of a leap are booked at its end",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "a migration outlives the preemption of its request",
            "a rank crosses a step late",
            "a leap goes on past the opening of admission",
            "a boundary at this very time has passed",
            "swap-in ignores the watermark",
        )
    ),
)


def test_there_are_enough_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.text()) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_seeded(mutant: Mutant) -> None:
    assert mutant.text() != (ROOT / ENGINE / mutant.file).read_text()
    ast.parse(mutant.text())


def test_runs_that_hunts_begin_with_are_of_mutants_and_families_that_there_are() -> None:
    assert set(seen_before()) <= {mutant.name for mutant in MUTANTS}
    assert {run.split()[0] for run in seen_before().values()} <= set(FAMILIES)


def test_one_that_cannot_be_seeded_is_reported() -> None:
    with pytest.raises(ValueError, match=r"gone: durations/leap\.py has 0 times 'not there'"):
        Mutant("gone", "durations/leap.py", "not there", "").text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mutants") / "runs"
    save_runs(file, 1)
    return file


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_one_is_seen(name: str, runs: Path) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    found = fate(mutant, runs, seen_before().get(name, ""))
    assert found != SURVIVED
    assert not found.startswith(("breaks", "hangs")), found


@pytest.mark.parametrize("most", [2, pytest.param(len(FAMILIES), marks=pytest.mark.slow)])
def test_the_engine_as_it_is_survives(most: int, runs: Path) -> None:
    """So that being seen means something."""
    same = Mutant("none", "durations/leap.py", '"""Leaps:', '"""Leaps :')
    assert fate(same, runs, most=most) == SURVIVED
