"""Whether a run kept up with its load, of results made by hand and of runs by the launcher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.load import Window
from framework.metrics.clock import Clock
from framework.metrics.load_state import BACKLOGGED, OVERLOADED, STABLE, LoadState, load_state
from tests.helpers import warm
from tests.helpers.processes import start
from tests.helpers.results import FAILED, FINISHED, REJECTED, REQUEST_FIELDS, records, small_result

LENGTH_S = 100.0
ARRIVAL_S = np.arange(0.0, LENGTH_S, 0.1)  # ten requests each second
NOISE = np.random.default_rng(0).exponential(size=len(ARRIVAL_S))


def requests(waited_s: Any, served_s: Any, arrival_s: Any = ARRIVAL_S, state: Any = FINISHED) -> np.ndarray:
    """Requests that wait for their first step, and then are served, for so long."""
    made = records(REQUEST_FIELDS, [{}] * len(arrival_s))
    made["arrival_s"], made["state"] = arrival_s, state
    made["start_s"] = arrival_s + waited_s
    made["end_s"] = made["start_s"] + served_s
    return made


def state_of(made: np.ndarray, is_fixed: bool = True, counted: np.ndarray | None = None) -> LoadState:
    """Of a run of these requests, over a window of 100 s."""
    result = replace(small_result(), requests=made, window=Window(0.0, LENGTH_S, "hand-made"))
    everything = np.ones(len(made), np.bool_) if counted is None else counted
    return load_state(result, Clock(LENGTH_S, LENGTH_S, everything, is_fixed, False, "", np.zeros(0), np.zeros(0)))


def test_a_steady_system_is_stable() -> None:
    state = state_of(requests(0.1 * NOISE, 2.0 + NOISE))
    assert state.name == STABLE
    assert abs(state.growth) < 0.005


def test_a_queue_that_grows_is_an_overload_by_as_much() -> None:
    state = state_of(requests(0.2 * ARRIVAL_S, 2.0 + NOISE))
    assert state.name == OVERLOADED
    assert state.growth == pytest.approx(0.2, abs=0.01)


def test_decodes_that_slow_down_are_an_overload_without_a_queue() -> None:
    state = state_of(requests(0.01, 2.0 + 0.2 * ARRIVAL_S))
    assert state.name == OVERLOADED
    assert state.growth == pytest.approx(0.2, abs=0.01)


def test_the_last_requests_are_served_faster_and_hide_no_overload() -> None:
    """The whole time no longer grows in the later half, for nothing arrives any more; the wait does."""
    waited_s = 0.1 * ARRIVAL_S
    served_s = np.where(ARRIVAL_S < 50.0, 6.0, 11.0 - waited_s)
    state = state_of(requests(waited_s, served_s + 0.1 * NOISE))
    assert state.name == OVERLOADED
    assert state.growth == pytest.approx(0.1, abs=0.01)


def test_growth_of_a_small_part_is_none() -> None:
    """30 s to begin with become 33 s: more than 1 % of the window, and far from twice as long."""
    assert state_of(requests(0.1, 30.0 + 0.03 * ARRIVAL_S)).name == STABLE


def test_growth_of_less_than_a_hundredth_of_the_window_is_none() -> None:
    """0.1 s to begin with become 0.9 s, in 100 s."""
    assert state_of(requests(0.0, 0.1 + 0.008 * ARRIVAL_S)).name == STABLE


def test_growth_that_noise_explains_is_none() -> None:
    """Twentieths of the window that alternate between 0 and 30 s, higher in the later half."""
    parts = (ARRIVAL_S // 5.0).astype(int)
    served_s = np.where(parts % 2 == 0, 0.1, 20.0 + 0.1 * ARRIVAL_S)
    state = state_of(requests(0.0, served_s))
    assert state.growth > 0.01
    assert state.name == STABLE


def test_a_burst_that_is_worked_off_is_a_backlog() -> None:
    burst_s = np.interp(ARRIVAL_S, [30.0, 50.0, 70.0], [0.0, 8.0, 0.0])
    assert state_of(requests(burst_s, 2.0 + NOISE)).name == BACKLOGGED
    assert state_of(requests(0.2 * burst_s, 2.0 + NOISE)).name == STABLE


def test_a_wait_as_long_as_the_service_is_no_backlog() -> None:
    waits_s = np.full(len(ARRIVAL_S), 2.0)
    whole = np.floor(ARRIVAL_S)  # so that sums are exact
    assert state_of(requests(waits_s, 2.0, whole)).name == STABLE
    assert state_of(requests(waits_s, 1.0, whole)).name == BACKLOGGED


def test_a_system_that_fills_up_and_comes_to_rest_is_stable() -> None:
    filling_s = np.interp(ARRIVAL_S, [0.0, 40.0], [2.0, 10.0])
    state = state_of(requests(0.01, filling_s + 0.1 * NOISE))
    assert state.growth > 0.05
    assert state.name == STABLE


def waits(means_s: Any) -> np.ndarray:
    """A wait of each request, noisy, whose means over the twenty parts are near these."""
    return np.repeat(means_s, len(ARRIVAL_S) // 20) * (0.9 + 0.1 * NOISE)


CALM = np.full(17, 0.2)


def test_a_wait_that_begins_to_grow_late_is_an_overload_by_as_much() -> None:
    """As where KV memory is full at last: 4 s in the last part, of a window of 100 s. No line fits that."""
    state = state_of(requests(waits([*CALM, 1.0, 2.5, 4.0]), 6.0 + NOISE))
    assert state.name == OVERLOADED
    assert state.growth == pytest.approx(3.0 / 10.0, abs=0.05)
    ramp_s = np.where(ARRIVAL_S < 70.0, 0.2, 0.2 + 0.3 * (ARRIVAL_S - 70.0))
    assert state_of(requests(ramp_s + 0.1 * NOISE, 6.0 + NOISE)).name == OVERLOADED


@pytest.mark.parametrize(
    "last",
    [(1.0, 4.0, 2.5), (2.5, 1.0, 4.0), (0.15, 2.5, 4.0), (0.3, 0.5, 0.9)],
    ids=["it falls", "it fell between", "it was as long before", "it is short"],
)
def test_what_is_no_growth_at_the_end(last: tuple[float, float, float]) -> None:
    assert state_of(requests(waits([*CALM, *last]), 6.0 + NOISE)).name == STABLE


def test_a_wait_that_was_long_before_has_not_doubled_at_the_end() -> None:
    before = np.tile([3.0, 2.6], 9)[:17]
    assert state_of(requests(waits([*before, 3.4, 4.0, 4.8]), 9.0 + NOISE)).name == STABLE


@pytest.mark.parametrize(("times", "name"), [(1, OVERLOADED), (2, BACKLOGGED)])
def test_a_burst_at_the_end_is_no_overload(times: int, name: str) -> None:
    """From 85 s on the wait grows by 0.6 s a second. With twice the arrivals there the system serves 1.25 times what
    usually arrives; with no more than usual it serves 0.63 of that.
    """
    sent_s = np.sort(np.concatenate([ARRIVAL_S, *[ARRIVAL_S[ARRIVAL_S >= 85.0]] * (times - 1)]))
    waited_s = np.where(sent_s < 85.0, 0.1, 0.1 + 0.6 * (sent_s - 85.0))
    assert state_of(requests(waited_s, 2.0, sent_s)).name == name


@pytest.mark.parametrize(("follows", "most"), [(0.0, 8), (0.5, 32)])
def test_of_drawn_series_that_are_at_rest_few_are_overloaded(follows: float, most: int) -> None:
    """Of 400, with waits of parts that are independent, or that go together with those of the part before."""
    rng, overloaded = np.random.default_rng(1), 0
    for _ in range(400):
        means_s = rng.exponential(3.0, 20)
        for k in range(1, 20):
            means_s[k] = follows * means_s[k - 1] + (1 - follows) * means_s[k]
        overloaded += state_of(requests(np.repeat(means_s, 50), 2.0)).name == OVERLOADED
    assert overloaded <= most


def test_of_drawn_series_those_that_grow_late_are_overloaded() -> None:
    rng, overloaded = np.random.default_rng(2), 0
    for _ in range(400):
        begin, growth = rng.uniform(0.0, 80.0), rng.uniform(0.3, 1.0)
        waited_s = 0.2 * rng.exponential(size=len(ARRIVAL_S)) + growth * np.maximum(ARRIVAL_S - begin, 0.0)
        overloaded += state_of(requests(waited_s, 5.0)).name == OVERLOADED
    assert overloaded == 400


def test_requests_that_were_turned_away_count_for_nothing() -> None:
    away = ARRIVAL_S % 1.0 > 0.45
    mixed = requests(np.where(away, 0.0, 0.2 * ARRIVAL_S), np.where(away, 0.0, 2.0), state=np.where(away, REJECTED, 1))
    assert state_of(mixed).name == OVERLOADED
    late = requests(np.where(away, 0.2 * ARRIVAL_S, 0.01), 2.0, state=np.where(away, REJECTED, FINISHED))
    assert state_of(late).name == STABLE
    assert state_of(requests(0.0, 0.0, state=REJECTED)).name is None


def test_requests_that_never_began_waited_to_their_end() -> None:
    stalled = requests(0.0, 0.2 * ARRIVAL_S, state=np.where(ARRIVAL_S < 1.0, FINISHED, FAILED))
    stalled["start_s"] = np.nan
    assert state_of(stalled).name == OVERLOADED


def test_nothing_is_told_of_too_little() -> None:
    few = np.linspace(0.0, LENGTH_S, 100)
    assert state_of(requests(0.1, 2.0, few)).name == STABLE
    nothing = state_of(requests(0.1, 2.0, few[1:]))
    assert nothing.name is None
    assert np.isnan(nothing.growth)
    assert state_of(requests(0.1, 2.0, ARRIVAL_S / 2.3)).name is None  # fewer than half of the window
    assert state_of(requests(0.1, 2.0), counted=ARRIVAL_S < 9.0).name is None


def test_nothing_is_told_where_the_end_of_the_run_decides() -> None:
    assert state_of(requests(0.2 * ARRIVAL_S, 2.0), is_fixed=False).name is None


def test_turns_after_the_window_count_for_nothing() -> None:
    """Later turns of sessions are served fast once no session opens; others were never sent."""
    opening, later = requests(0.2 * ARRIVAL_S, 2.0), requests(0.0, 0.1, LENGTH_S + 0.1 + ARRIVAL_S)
    never = records(REQUEST_FIELDS, [{"arrival_s": np.nan, "state": FAILED}] * 500)
    made = np.concatenate([opening, later, never])
    assert state_of(made) == state_of(opening)


@pytest.mark.parametrize(("rate", "name"), [(2, STABLE), (200, OVERLOADED)])
def test_a_run_says_whether_it_kept_up(rate: int, name: str, tmp_path: Path) -> None:
    words = ("policy=chunked", "cluster.instances=1", "trace=synthetic", "trace.requests=600")
    limits = (f"trace.arrivals.rate={rate}", "slo.ttft_s=0.2", "slo.tpot_s=0.005")
    process = start(tmp_path, *words, *limits, python=str(warm.path() / "python"))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    summary = json.loads(next(tmp_path.rglob("summary.json")).read_text())
    assert summary["load_state"] == name
    assert f", 1 GPU, {name}" in output
    is_warned = "overloaded: latencies" in " ".join(output.split())
    assert is_warned == (name == OVERLOADED)
