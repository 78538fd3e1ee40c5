"""Which measured deployments lie in the ranges of `output.sensitivity`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.validation.fidelity.replay import Replay, Replayed
from experiments.validation.given import coverage
from experiments.validation.given.coverage import Held, counted, held, longer, unfitted
from framework.timing.calibration_terms import Calibration
from framework.timing.uncertainty.widths import Width

WIDTH = Width(0.1, 1.5, "")


def row(ttft_s: float, tpot_s: float) -> Any:
    return SimpleNamespace(gpu="h100", osl=11, ttft_s=ttft_s, tpot_s=tpot_s)


def replayed(task: Replay) -> Replayed | str:
    """TTFT grows tenfold as steps do, from 1 s; TPOT is 1 s times the factor."""
    factor = task.calibration.kernel
    return Replayed(factor**10, factor, 0.0) if task.row.tpot_s < 100 else "not served"


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "found"),
    [
        (1.0, 1.0, Held(ttft=True, tpot=True, queueing=False)),
        (2.5, 1.09, Held(ttft=True, tpot=True, queueing=False)),  # 1.1 ** 10 is 2.59
        (2.7, 1.11, Held(ttft=False, tpot=False, queueing=False)),
        (0.36, 0.89, Held(ttft=True, tpot=False, queueing=False)),  # 0.9 ** 10 is 0.35
        (0.3, 0.1, Held(ttft=False, tpot=False, queueing=True)),
    ],
)
def test_a_row_is_held_where_its_figures_lie_in_their_ranges(
    ttft_s: float, tpot_s: float, found: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "replay", replayed)
    monkeypatch.setattr(coverage, "assumed", lambda _: None)
    assert list(held([row(ttft_s, tpot_s)], {"h100": Calibration()}, WIDTH)) == [found]
    assert list(held([row(ttft_s, tpot_s)], {}, WIDTH)) == []
    assert list(held([row(ttft_s, 200.0)], {"h100": Calibration()}, WIDTH)) == []


def test_ttft_of_a_server_that_keeps_up_is_held_by_its_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "replay", lambda _: Replayed(1.0, 1.0, 0.0))
    monkeypatch.setattr(coverage, "assumed", lambda _: None)
    rows = [row(1.49, 1.0), row(1.51, 1.0), row(0.67, 1.0), row(0.66, 1.0)]
    assert [one.ttft for one in held(rows, {"h100": Calibration()}, WIDTH)] == [True, False, True, False]


def test_everything_takes_longer() -> None:
    twice = longer(Calibration(kernel=1.5, communication=0.5, host_s=2.0, request_s=1.0, compute=1.2), 2.0)
    assert (twice.kernel, twice.communication, twice.compute) == (3.0, 1.0, 1.2)
    assert (twice.host_s, twice.request_s) == (4.0, 2.0)


def test_counts_are_told_with_those_of_rows_that_wait() -> None:
    found = [Held(ttft=True, tpot=False, queueing=True), Held(ttft=False, tpot=True, queueing=False)]
    assert counted(found) == "TPOT of 1, TTFT of 1 of 2; TTFT of 1 of the 1 whose requests wait long"


def test_without_a_fit_the_servers_own_terms_count() -> None:
    assert (unfitted().kernel, unfitted().request_s) == (1.0, 5e-3)
