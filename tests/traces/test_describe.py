"""The figures of a trace on worked examples, and the table that shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from framework.cli.terminal import warn_once
from tests.helpers.launcher import typed
from traces import describe
from traces.fitted.fitted_trace import load_fitted, sample_fitted
from traces.statistics import clock_tick, dispersion, ideal_hit_ratio, lru_hit_ratio, rank_correlation


@pytest.fixture
def own_trace(tmp_path: Path) -> Path:
    """A file of 200 requests, one a second, in the Vidur format."""
    path = tmp_path / "own.csv"
    rows = {"arrived_at": np.arange(200.0), "num_prefill_tokens": np.arange(1, 201), "num_decode_tokens": [7] * 200}
    pl.DataFrame(rows).write_csv(path)
    return path


@pytest.fixture
def no_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No recorded trace within reach."""
    monkeypatch.delenv("TRACES_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_dispersion_of_counts() -> None:
    assert dispersion(np.arange(0, 100, 0.25), 1.0) == 0.0  # four in each window
    paired = np.repeat(np.arange(0, 101, 2.0), 2)  # 2, 0, 2, 0, ...: mean 1, variance 1
    assert dispersion(paired, 1.0) == pytest.approx(1.0)
    assert dispersion(paired, 2.0) == 0.0


def test_rank_correlation() -> None:
    rising = np.arange(10.0)
    assert rank_correlation(rising, rising**3) == pytest.approx(1)
    assert rank_correlation(rising, -rising) == pytest.approx(-1)
    assert rank_correlation(rising, np.ones(10)) == 0.0


def test_clock_tick() -> None:
    rng = np.random.default_rng(0)
    exact = np.sort(rng.uniform(0, 1000, 5000))
    assert clock_tick(exact) == 0.0
    assert clock_tick(np.floor(exact)) == 1.0
    jitter = rng.integers(-1, 2, 400) / 1000  # a clock that is a millisecond early or late
    tick = (exact // 3).astype(int)
    assert clock_tick(3.0 * tick + jitter[tick]) == 3.0
    assert clock_tick(np.zeros(20)) == 0.0


def test_ideal_hit_ratio_counts_whole_known_prefixes() -> None:
    paths = [[0, 1, 2], [0, 1, 3], [0, 4, 2], [0, 1, 2]]
    inputs = np.array([40.0, 48.0, 48.0, 40.0])
    assert ideal_hit_ratio(paths, inputs, 16) == pytest.approx((32 + 16 + 40) / 176)


def test_finite_cache_evicts_the_oldest_leaf_first() -> None:
    paths = [[0, 1], [0, 2], [0, 1]]
    inputs = np.full(3, 32.0)
    assert lru_hit_ratio(paths, inputs, 16, capacity_tokens=48) == pytest.approx((16 + 32) / 96)
    assert lru_hit_ratio(paths, inputs, 16, capacity_tokens=32) == pytest.approx((16 + 16) / 96)
    assert lru_hit_ratio(paths, inputs, 16, capacity_tokens=0) == 0.0


def test_finite_cache_grows_into_the_ideal_one() -> None:
    trace = sample_fitted("mooncake", 400)
    paths, inputs = trace.frame["hash_ids"].to_list(), trace.frame["input_tokens"].to_numpy().astype(float)
    ratios = [lru_hit_ratio(paths, inputs, 512, size) for size in (10**4, 10**5, 10**6, 10**9)]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(ideal_hit_ratio(paths, inputs, 512))


def test_difference_is_relative_or_in_points() -> None:
    for figure, reference, value, size, unit in (
        ("input_p50", 200.0, 210.0, 5.0, "%"),
        ("ideal_hit_ratio", 0.30, 0.32, 2.0, "pt"),
        ("rank_correlation", 0.0, -0.01, -1.0, "pt"),
    ):
        off, of_what = describe.difference(figure, reference, value)
        assert off == pytest.approx(size)
        assert of_what == unit


def test_table_of_a_file(own_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("traces", "describe")([str(own_trace)]) == 0
    shown = capsys.readouterr().out
    assert "own (real)" in shown
    assert "dispersion of counts, 60 s" in shown
    assert "difference" not in shown
    assert "hit ratio" not in shown


def test_a_file_beside_a_twin_fitted_to_it(own_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("traces", "describe")([str(own_trace), "twin=own"]) == 0
    fitted_now = capsys.readouterr().out
    assert "difference" in fitted_now
    assert typed("traces", "fit")([str(own_trace), f"out={tmp_path / 'own.json'}"]) == 0
    capsys.readouterr()
    assert typed("traces", "describe")([str(own_trace), f"twin={tmp_path / 'own.json'}"]) == 0
    assert capsys.readouterr().out == fitted_now
    assert typed("traces", "describe")([str(tmp_path / "own.json")]) == 0
    assert "published" in capsys.readouterr().out


@pytest.mark.usefixtures("no_recordings")
def test_without_the_recording_the_published_figures_stand_in(capsys: pytest.CaptureFixture[str]) -> None:
    warn_once.cache_clear()  # it is said once in a process
    assert typed("traces", "describe")(["azure_conv", "twin=own"]) == 0
    captured = capsys.readouterr()
    assert "published" in captured.out
    assert f"{load_fitted('azure_conv').statistics['requests']:,.0f}" in captured.out
    assert "fitted trace" in captured.err
    assert typed("traces", "fit")(["azure_conv"]) == 2
    assert "not at hand" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["no_such_trace"], ["none.json"], ["azure_conv", "twin=nothing"], ["azure_conv", "seed=-1"]]
)
@pytest.mark.usefixtures("no_recordings")
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("traces", "describe")(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("WARNING")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
