"""What a search tells of itself: who is still there, and its pictures."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from experiments.tune import plots, storage
from experiments.tune.goals import Goal
from experiments.tune.result import Findings, Row
from experiments.tune.space import Dimension, Space
from experiments.tune.storage import OWNER, Presence

HERE = f"{socket.gethostname()}:{os.getpid()}"


def test_who_runs_here_is_there_as_long_as_its_process_is() -> None:
    presence = Presence(optuna.create_study())
    assert presence.owner.startswith(f"{HERE}:")
    assert presence._is_there(presence.owner)
    assert not presence._is_there(f"{HERE}:1")  # another process that had the number before
    assert not presence._is_there(f"{socket.gethostname()}:999999999:5")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells when a process began")
def test_a_process_began_when_the_kernel_says() -> None:
    """In ticks since the machine started; of a process that begins now as many as have gone by."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        after_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        began_s = float(storage._started(process.pid)) * tick_s
        process.communicate()
    assert before_s - 2 * tick_s <= began_s <= after_s + 2 * tick_s
    assert storage._started(process.pid) == ""


def test_who_runs_elsewhere_is_gone_after_a_minute_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    study, now_s = optuna.create_study(), [1000.0]
    presence, other = Presence(study), "elsewhere:7:5"
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    study.set_user_attr(f"alive {other}", 0)
    assert presence._is_there(other)
    now_s[0] += 59.0
    assert presence._is_there(other)
    study.set_user_attr(f"alive {other}", 1)
    now_s[0] += 2.0
    assert presence._is_there(other)  # it has said something since
    now_s[0] += 59.0
    assert presence._is_there(other)
    now_s[0] += 1.0
    assert not presence._is_there(other)


def test_whoever_has_entered_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_BEAT_S", 0.01)
    study = optuna.create_study()
    with Presence(study) as presence:
        key = f"alive {presence.owner}"
        latest_s = time.monotonic() + 5.0
        while study.user_attrs[key] < 3 and time.monotonic() < latest_s:
            time.sleep(0.01)
    last = study.user_attrs[key]
    assert last >= 3
    time.sleep(0.05)
    assert study.user_attrs[key] == last


def test_a_trial_of_nobody_is_running_for_a_minute_if_somebody_else_is_there() -> None:
    study = optuna.create_study()
    presence, trial = Presence(study), study.ask()
    (begun,) = study.get_trials()
    assert not presence.is_running(begun)  # nobody but this process
    study.set_user_attr("alive elsewhere:7:5", 0)
    assert presence.is_running(begun)
    trial.set_user_attr(OWNER, f"{HERE}:1")
    assert not presence.is_running(study.get_trials()[0])


def space(*dimensions: Dimension) -> Space:
    return Space("own", {}, dimensions, {}, (), (), {dimension.name: None for dimension in dimensions})


SPACE = space(
    *(Dimension("a", IntDistribution(1, 3)), Dimension("b", IntDistribution(1, 2))),
    Dimension("c", FloatDistribution(0.0, 9.0)),
)


def found(*tried: tuple[int, int, float], maximize: bool = True) -> Findings:
    rows = [
        Row(k, "complete", (value,), SPACE.point({"a": a, "b": b, "c": float(k)}), {})
        for k, (a, b, value) in enumerate(tried)
    ]
    goal = Goal("goodput_rps", maximize=maximize)
    return Findings("own", SPACE, 6, (goal,), tuple(rows), {"b": 0.75, "a": 0.25, "c": 0.0})


def test_the_map_has_the_best_value_of_each_cell_readable() -> None:
    study = found((1, 1, 2.0), (1, 1, 4.0), (3, 1, 10.0), (2, 2, 7.0))
    axes, bar = plots._heatmap(study).axes
    texts = {text.get_position(): (text.get_text(), text.get_color()) for text in axes.texts}
    # the most important dimension lies across; light cells, above the middle of 4 and 10, have dark letters
    assert texts == {(0, 0): ("4", "white"), (0, 2): ("10", "black"), (1, 1): ("7", "white")}
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("b", "a", "highest goodput_rps")
    least = found((1, 1, 2.0), (1, 1, 4.0), maximize=False)
    axes, bar = plots._heatmap(least).axes
    assert [text.get_text() for text in axes.texts] == ["2"]
    assert bar.get_ylabel() == "lowest goodput_rps"


def test_the_most_important_setting_comes_first() -> None:
    (axes,) = plots._importances(found((1, 1, 2.0))).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a", "c"]
    assert axes.yaxis_inverted()
    assert [bar.get_width() for bar in axes.patches] == [75.0, 25.0, 0.0]
    assert [text.get_text().strip() for text in axes.texts] == ["75 %", "25 %", "0 %"]


def test_the_course_shows_the_best_so_far() -> None:
    for maximize, best in ((True, [3.0, 5.0, 5.0]), (False, [3.0, 3.0, 1.0])):
        (axes,) = plots._history(found((1, 1, 3.0), (1, 2, 5.0), (2, 2, 1.0), maximize=maximize)).axes
        (line,) = axes.lines
        assert list(line.get_xdata()) == [0, 1, 2]
        assert list(line.get_ydata()) == best


def test_a_continuum_has_no_cells() -> None:
    own = space(Dimension("x", FloatDistribution(1.0, 9.0)), Dimension("a", IntDistribution(1, 3)))
    study = Findings("own", own, None, (Goal("goodput_rps"),), (), {})
    assert [one.name for one in plots._grids(study)] == ["a"]
