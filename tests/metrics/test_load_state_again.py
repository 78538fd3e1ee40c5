"""Whether runs kept up with their load, against a second, plain computation: of drawn waits, and of runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from framework.load import Closed, Open, Window
from framework.metrics.clock import Clock, clock_of
from framework.metrics.load_state import load_state
from framework.metrics.summary import evaluate
from framework.objective.goodput import judged
from framework.result import STATES
from framework.run.compose import compose
from tests.helpers.composing import configured
from tests.helpers.recomputed_load import Load, load
from tests.helpers.results import FAILED, FINISHED, REJECTED, REQUEST_FIELDS, records, small_result

Floats = np.ndarray
_RUNS = 200
_NEAR = 1e-9


def drawn_waits_s(rng: np.random.Generator, at: Floats) -> Floats:
    """Seconds of requests that are sent at these shares of the window: calm, a ramp, one at the end, a burst."""
    begin = rng.uniform(0.0, 0.95)
    end = rng.uniform(begin, 1.2)
    shapes = [
        np.zeros(len(at)),
        at,
        np.maximum(at - begin, 0.0),
        np.maximum(at - 0.85, 0.0),
        np.interp(at, [begin, (begin + end) / 2, end], [0.0, 1.0, 0.0]),
        np.where((20 * at).astype(int) % 2 == 0, at, 0.2),
    ]
    calm_s = rng.choice([0.01, 0.3, 3.0]) * rng.exponential(size=len(at))
    return calm_s + rng.uniform(0.2, 40.0) * shapes[rng.choice(len(shapes), p=[0.2, 0.1, 0.15, 0.35, 0.15, 0.05])]


def test_a_second_computation_of_drawn_waits() -> None:
    """And they lead to every state, else that would not tell much."""
    states: Counter[str | None] = Counter()
    for seed in range(_RUNS):
        rng = np.random.default_rng(seed)
        made, counted, start_s = drawn_requests(rng)
        is_short = bool(rng.random() < 0.2)
        window = Window(start_s, start_s + 100.0, "drawn")
        clock = Clock(100.0, 100.0, counted, True, is_short, "", np.zeros(0), np.zeros(0))
        found = load_state(replace(small_result(), requests=made, window=window), clock)
        rows = [
            {
                "arrival_s": float(one["arrival_s"]),
                "queue_s": None if np.isnan(one["start_s"]) else float(one["start_s"] - one["arrival_s"]),
                "state": STATES[one["state"]],
            }
            for one in made[counted]
        ]
        again = load(rows, made["end_s"][counted].tolist(), (window.start_s, window.end_s), is_short)
        assert_alike((found.name, found.growth), again)
        states[again.name] += 1
        states["at the end"] += again.is_at_end
    assert min(states[name] for name in (None, "stable", "backlogged", "overloaded")) > 20
    assert 10 < states["at the end"] < states["overloaded"] - 10


def drawn_requests(rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Records of requests, which of them count, and when their window of 100 s begins."""
    count, start_s = int(rng.choice([90, 100, 400, 900, 900])), rng.uniform(0.0, 50.0)
    at = np.sort(rng.beta(1.0, rng.choice([0.6, 1.0, 1.0]), count)) * rng.choice([0.4, 1.0, 1.0, 1.0, 1.0, 1.1])
    made = records(REQUEST_FIELDS, [{}] * count)
    made["state"] = rng.choice([FINISHED, REJECTED, FAILED], count, p=rng.choice([[1.0, 0, 0], [0.8, 0.15, 0.05]]))
    made["arrival_s"] = start_s + 100.0 * at
    made["start_s"] = made["arrival_s"] + drawn_waits_s(rng, at)
    made["end_s"] = made["start_s"] + rng.choice([0.5, 5.0]) + drawn_waits_s(rng, at) * rng.choice([0.0, 1.0])
    made["start_s"][(made["state"] != FINISHED) & (rng.random(count) < 0.7)] = np.nan
    return made, at > rng.choice([-1.0, -1.0, 0.1]), start_s


@pytest.mark.parametrize(
    "overrides",
    [
        ("trace.arrivals.rate=2",),
        ("trace.arrivals.rate=60",),
        ("trace.arrivals.rate=60", "load.warmup_s=2", "load.cooldown_s=1"),
        ("trace.arrivals.rate=40", "policy=mooncake", "cluster.instances=2"),
        ("trace.arrivals.rate=25", "policy=distserve", "cluster.instances=2", "engine.kv_tokens=6000"),
        ("load=closed", "load.concurrency=40", "load.duration_s=20"),
        ("load=closed", "load.concurrency=4", "load.duration_s=null"),
        ("trace=synthetic_sessions",),
    ],
    ids=" ".join,
)
def test_a_second_computation_of_runs(overrides: tuple[str, ...]) -> None:
    words = (
        "policy=chunked",
        "cluster.instances=1",
        "trace=synthetic",
        "trace.requests=450",
        "slo.ttft_s=0.2",
        "slo.tpot_s=0.005",
    )
    experiment = compose(configured(*words, *overrides))
    result, options = experiment.run(), experiment.load
    summary = judged(experiment, result).summary
    clock = clock_of(result, experiment.slo)
    table = evaluate(result, experiment.slo).requests.with_row_index("row")
    table = table.filter(table["counted"]) if "counted" in table.columns else table
    window = (-np.inf, np.inf)
    if isinstance(options, Open) and clock.is_fixed:
        sent_s = [
            row["arrival_s"] for row in evaluate(result, experiment.slo).requests.to_dicts() if not row.get("turn")
        ]
        window = (min(sent_s) + options.warmup_s, max(sent_s) - options.cooldown_s)
    elif isinstance(options, Closed) and options.duration_s is not None and clock.is_fixed:
        window = (options.warmup_s, options.duration_s)
    rows = table.to_dicts()
    ends_s = result.requests["end_s"][table["row"].to_numpy()].tolist()
    again = load(rows, ends_s, window, summary["window_is_short"])
    assert_alike((summary["load_state"], summary["latency_growth"]), again)


def assert_alike(found: tuple[str | None, float | None], again: Load) -> None:
    assert found[0] == again.name
    growth = None if found[1] is None or np.isnan(found[1]) else found[1]
    assert growth == (None if again.growth is None else pytest.approx(again.growth, rel=_NEAR, abs=_NEAR))
