"""What step times that are off would change in a run, by the user's door."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from framework.errors import InputError
from framework.metrics.load_state import OVERLOADED, STABLE
from framework.metrics.slo import Slo
from framework.objective.goodput import Goodput
from framework.objective.sensitivity import FIGURES, Sensitivity, reach, sensitivity
from framework.report.sensitivity_table import sensitivity_table
from framework.run.job import done
from framework.timing.uncertainty.widths import Width
from tests.helpers.composing import configured
from tests.helpers.servers import experiment, regular, requests

QUIET = ("policy=vllm_v1", "trace=synthetic", "trace.limit=60", "timing=affine", "cluster=mixed", "cluster.instances=1")


def ran(directory: Path, *words: str) -> tuple[dict[str, Any], Sensitivity | None]:
    outcome = done(configured(*QUIET, *words), directory)
    return outcome.measurement.evaluation.summary, outcome.sensitivity


def test_a_run_has_ranges_only_if_it_is_asked(tmp_path: Path) -> None:
    plain, none = ran(tmp_path / "plain")
    asked, found = ran(tmp_path / "asked", "output.sensitivity=0.2")
    assert none is None
    assert not (tmp_path / "plain" / "sensitivity.json").exists()
    assert asked == plain
    assert found is not None
    written = json.loads((tmp_path / "asked" / "sensitivity.json").read_text())
    assert written == json.loads(json.dumps(found.data()))
    assert tuple(written["ranges"]) == FIGURES
    assert written["width"]["steps"] == 0.2


def test_ranges_hold_the_runs_with_shorter_and_longer_steps(tmp_path: Path) -> None:
    # affine steps have one term here, so that runs with longer steps can be asked for by a setting
    words = [f"timing.{name}=0" for name in ("per_prefill_token_s", "prefill_quadratic_s", "per_sequence_s")]
    words += ["timing.per_context_token_s=0"]
    own, found = ran(tmp_path / "own", *words, "timing.base_s=0.02", "output.sensitivity=0.25")
    assert found is not None
    short, _ = ran(tmp_path / "short", *words, "timing.base_s=0.015")
    long, _ = ran(tmp_path / "long", *words, "timing.base_s=0.025")
    for key in ("median_tpot_ms", "goodput_rps"):
        values = (short[key], own[key], long[key])
        assert found.ranges[key] == pytest.approx((min(values), max(values)))
    for key in ("median_ttft_ms", "p99_ttft_ms"):
        low, high = min(short[key], own[key] / 1.25), max(long[key], own[key] * 1.25)
        assert found.ranges[key] == pytest.approx((low, high))


def test_times_to_first_tokens_may_be_off_by_more_than_steps() -> None:
    one = experiment(requests(regular(20), output_tokens=3), Slo(1.0, 1.0))
    found = sensitivity(one, Goodput().measure(one), Width(steps=0.1, ttft=3.0, of="all"))
    assert found.ranges["p99_ttft_ms"] == pytest.approx((100 / 3, 300))
    assert found.ranges["median_tpot_ms"] == pytest.approx((90, 110))


@pytest.mark.parametrize(
    ("values", "factor", "ends"),
    [
        ([1.0, 2.0, 4.0], 1.0, (1.0, 4.0)),
        ([4.0, 2.0, 1.0], 1.0, (1.0, 4.0)),
        ([1.8, 2.0, 2.2], 2.0, (1.0, 4.0)),
        ([0.5, 2.0, 9.0], 2.0, (0.5, 9.0)),
        ([2.0, 2.0, None], 2.0, None),
        ([None, None, None], 2.0, None),
    ],
)
def test_a_range_holds_all_three_values_and_the_factor(
    values: list[float | None], factor: float, ends: tuple[float, float] | None
) -> None:
    assert reach(values, factor) == ends


def test_a_server_near_its_capacity_has_a_wide_range_and_says_so(tmp_path: Path) -> None:
    crowded = ("trace.limit=400", "trace.rate=9", "engine.max_batch=8", "timing.base_s=0.004")
    near, found = ran(tmp_path / "near", *crowded, "output.sensitivity=0.4")
    assert found is not None
    ends = found.ranges["p99_ttft_ms"]
    assert ends is not None
    assert ends[1] / near["p99_ttft_ms"] > 1.4 + 0.1


def test_step_times_whose_errors_nobody_counted_are_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Goodput, "measure", lambda *_: pytest.fail("it ran"))
    with pytest.raises(InputError, match="errors of these step times are unknown"):
        ran(tmp_path, "output.sensitivity=auto")


def test_another_objective_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="objective=goodput"):
        ran(tmp_path, "output.sensitivity=0.1", "objective=capacity")


def test_a_replay_has_a_policy_of_its_own_and_the_same_requests(tmp_path: Path) -> None:
    own, found = ran(tmp_path / "a", "seed=3", "trace.limit=200", "output.sensitivity=0.3")
    again, same = ran(tmp_path / "b", "seed=3", "trace.limit=200", "output.sensitivity=0.3")
    assert (own, found) == (again, same)


def test_the_table_shows_the_run_between_its_ends() -> None:
    ranges = dict.fromkeys(FIGURES, (1.0, 3.0)) | {"median_tpot_ms": None}
    found = Sensitivity(Width(0.1, 1.35, "dense models with a fit"), ranges, (STABLE, OVERLOADED))
    summary = dict.fromkeys(FIGURES, 2.0) | {"load_state": STABLE, "median_tpot_ms": None}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(sensitivity_table(found, summary))
    said = console.export_text()
    assert "step times off by 10 %" in said
    assert "8 of 10 measured dense models with a fit" in said
    assert "at the edge of its capacity" in said
    assert ["goodput", "req/s", "1.00", "2.00", "3.00"] in [line.split() for line in said.splitlines()]
    calm = Sensitivity(found.width, ranges, (STABLE, STABLE))
    console.print(sensitivity_table(calm, summary))
    assert "edge" not in console.export_text()
