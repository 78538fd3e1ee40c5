"""Whether both engines agree on runs of a family, seed by seed, and the smallest run found on which they do not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.helpers.differences import NEAR, expected, has_near_tie, outline, run_reference, unlike
from tests.helpers.drawing import Draw
from tests.helpers.families import FAMILIES
from tests.helpers.scenarios import Scenario
from tests.helpers.shrinking import described, shrunk

_TOLD = 12  # differences of one run


def drawn(family: str, seed: int, exact: bool = True) -> Scenario:
    """The run of a family that belongs to a seed."""
    draw = Draw(list(FAMILIES).index(family), seed)
    return FAMILIES[family](draw) if exact else FAMILIES[family](draw, exact=False)


def agree(family: str, seeds: Iterable[int]) -> None:
    """Raise AssertionError, with the seed and a smaller run, where the engines do not agree to the bit."""
    for seed in seeds:
        scenario = drawn(family, seed)
        found = disagreement(scenario, 0.0)
        if found:
            small = shrunk(scenario, lambda candidate: bool(disagreement(candidate, 0.0)))
            again = disagreement(small, 0.0)
            raise AssertionError(f"{family} {seed}: {found}\n\nA smaller run: {again}\n{described(small)}")


def agree_in_floats(family: str, seeds: Iterable[int]) -> None:
    """As `agree`, within 1e-9, of runs in general floats but those with events closer than that."""
    compared = set_aside = 0
    for seed in seeds:
        scenario = drawn(family, seed, exact=False)
        simulation, notes = run_reference(scenario)
        if has_near_tie(simulation):
            set_aside += 1
            continue
        compared += 1
        found = disagreement(scenario, NEAR, outline(simulation, notes))
        assert not found, f"{family} {seed} in floats: {found}"
    assert compared > set_aside, f"{set_aside} of {compared + set_aside} runs were set aside"


def disagreement(scenario: Scenario, tolerance: float, reference: dict[str, Any] | None = None) -> str:
    """What the engines disagree about, or what went wrong in one of them; empty where they agree.

    `reference`: what the reference engine leaves behind, if that is known.
    """
    try:
        found = unlike(scenario, expected(scenario) if reference is None else reference, tolerance)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "\n".join([f"{len(found)} differences", *found[:_TOLD]]) if found else ""
