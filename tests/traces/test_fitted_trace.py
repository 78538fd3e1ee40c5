"""Fitted traces: the shipped ones keep what they publish, samples are reproducible, fits find what was put in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import InputError
from tests.helpers.launcher import typed
from tests.helpers.quick import every_second, marks
from traces.catalogue import CATALOGUE
from traces.describe import difference
from traces.fit import fit_trace
from traces.fitted.arrivals import ArrivalModel, fit_arrivals
from traces.fitted.fitted_trace import FittedTrace, load_fitted, sample_fitted, shipped
from traces.fitted.lengths_fit import fit_lengths
from traces.fitted.quantiles import LEAST_REQUESTS
from traces.frame import Trace, to_workload
from traces.statistics import clock_tick, dispersion, hash_paths, rank_correlation, summarize

NAMES = ("azure_code", "azure_conv", "mooncake", "reasoning")
MAX_BYTES = 32_000


def make_trace(requests: int, seed: int = 0, prefixes: bool = False) -> Trace:
    """Poisson arrivals at 5 / s, lognormal lengths, optionally sessions below four shared prompts of eight blocks."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, requests / 5, requests))
    inputs = np.maximum(1, rng.lognormal(6, 1, requests)).astype(np.int64)
    outputs = np.maximum(1, rng.lognormal(5, 0.7, requests)).astype(np.int64)
    columns: dict[str, object] = {"arrival_s": arrival - arrival[0], "input_tokens": inputs, "output_tokens": outputs}
    if prefixes:
        paths: list[list[int]] = []
        for request in range(requests):
            if request >= 20 and rng.random() < 0.4:
                shared = paths[request - int(rng.integers(5, 20))]
            else:
                prompt = 1 + int(rng.integers(4))
                shared = [10**6 * prompt + depth for depth in range(8)]
            paths.append([*shared, *(10**7 + 10 * request + block for block in range(int(rng.integers(1, 6))))])
        columns |= {"hash_ids": paths, "input_tokens": [16 * len(path) for path in paths]}
    return Trace(pl.DataFrame(columns), "made", "synthetic", hash_block_tokens=16 if prefixes else 0)


def test_shipped_twins_are_small_and_say_where_they_come_from() -> None:
    assert shipped() == sorted(NAMES)
    for name in NAMES:
        fitted = load_fitted(name)
        assert len(fitted.to_json()) < MAX_BYTES
        assert fitted.name == name
        assert fitted.licence
        assert fitted.citation
        assert fitted.original.startswith("https://")
        assert len(fitted.original_sha256) == 64
        assert CATALOGUE[name].sha256 in (None, fitted.original_sha256)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_twins_keep_their_published_figures(name: str) -> None:
    """Within what samples differ by: 9 % in the dispersion of counts, 6 % in the others (docs/trust.md)."""
    fitted = load_fitted(name)
    sampled = summarize(fitted.sample())
    assert {figure for figure in sampled if not figure.endswith("_max")} == fitted.statistics.keys()
    off = {figure: difference(figure, value, sampled[figure]) for figure, value in fitted.statistics.items()}
    beyond = {
        figure: f"{size:.1f} {unit}"
        for figure, (size, unit) in off.items()
        if abs(size) > (2 if unit == "pt" else (9 if figure.startswith("dispersion") else 6))
    }
    assert not beyond


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name == "azure_code")) for name in NAMES])
def test_lengths_keep_their_distribution_at_any_length(name: str) -> None:
    fitted = load_fitted(name)
    sampled = summarize(fitted.sample(3 * fitted.requests, seed=5))
    for figure, value in fitted.statistics.items():
        if figure.startswith(("input_", "output_", "rate_")):
            assert sampled[figure] == pytest.approx(value, rel=0.05), figure


def test_same_seed_same_bytes() -> None:
    for name in NAMES:
        first, again, other = (sample_fitted(name, 200, seed=seed) for seed in (3, 3, 4))
        assert first.frame.equals(again.frame)
        assert first.sha256 == again.sha256
        assert not first.frame.equals(other.frame)


@given(requests=st.integers(1, 1000), seed=st.integers(0, 2**32), name=st.sampled_from(NAMES))
@settings(max_examples=5, deadline=None)
def test_samples_are_valid_workloads(requests: int, seed: int, name: str) -> None:
    trace = sample_fitted(name, requests, seed)
    workload = to_workload(trace)
    assert len(workload) == requests
    assert workload.arrival_s[0] == 0
    assert workload.source == "twin"
    assert (workload.input_tokens + workload.output_tokens).max() <= load_fitted(name).lengths.max_total_tokens
    if workload.hash_spans is not None:
        blocks = -(-workload.input_tokens // workload.hash_block_tokens)
        assert np.array_equal(workload.hash_counts, blocks)
        parents: dict[int, int] = {}  # an id names a block and all before it, so it follows one other only
        for path in hash_paths(trace):
            for before, block in zip([-1, *path], path, strict=False):
                assert parents.setdefault(block, before) == before


def test_twice_the_length_repeats_the_rate_profile() -> None:
    fitted = load_fitted("azure_code")
    arrival = fitted.sample(2 * fitted.requests).arrival_s
    edges = fitted.arrivals.cell_s * np.concatenate(([0], np.cumsum(fitted.arrivals.cells)))
    edges[-1] = fitted.arrivals.period_s
    for start in (0.0, fitted.arrivals.period_s):
        assert np.array_equal(np.histogram(arrival - start, edges)[0], fitted.arrivals.counts)


def test_clock_ticks_are_kept() -> None:
    arrival = sample_fitted("mooncake", 3000).arrival_s
    assert clock_tick(arrival) == 3.0
    assert np.all(arrival % 3 == 0)
    assert len(np.unique(arrival)) < 400


def test_poisson_arrivals_are_fitted_as_poisson() -> None:
    rng = np.random.default_rng(1)
    model = fit_arrivals(np.cumsum(rng.exponential(0.1, 40_000)))
    sampled = model.sample(rng)
    assert dispersion(sampled, 1.0) == pytest.approx(1, abs=0.08)
    assert dispersion(sampled, 10.0) == pytest.approx(1, abs=0.2)


def test_bursts_are_fitted_as_bursts() -> None:
    rng = np.random.default_rng(2)
    bursts = np.repeat(np.cumsum(rng.exponential(5.0, 2000)), rng.integers(1, 20, 2000))
    arrival = np.sort(bursts + rng.uniform(0, 2.0, len(bursts)))
    model = fit_arrivals(arrival)
    sampled = model.sample(np.random.default_rng(0))
    for window in (1.0, 10.0, 60.0):
        assert dispersion(sampled, window) == pytest.approx(dispersion(arrival, window), rel=0.2)


@pytest.mark.parametrize("slope", [-3.0, 0.0, 0.5, 3.0])
def test_copula_keeps_the_rank_correlation(slope: float) -> None:
    rng = np.random.default_rng(3)
    left = rng.normal(size=20_000)
    lengths = [np.ceil(np.exp(5 + x)).astype(np.int64) for x in (left, slope * left + rng.normal(size=20_000))]
    counts = np.full(400, 50)
    sampled = fit_lengths(lengths[0], lengths[1], counts).sample(counts, rng)
    assert rank_correlation(*(values.astype(float) for values in sampled)) == pytest.approx(
        rank_correlation(*(values.astype(float) for values in lengths)), abs=0.01
    )
    for real, drawn in zip(lengths, sampled, strict=True):
        for level in (0.1, 0.5, 0.9, 0.99):
            assert np.quantile(drawn, level) == pytest.approx(np.quantile(real, level), rel=0.02)


def test_shared_prompts_and_sessions_are_found() -> None:
    trace = make_trace(2000, prefixes=True)
    fitted = fit_trace(trace)
    assert fitted.prefixes is not None
    assert fitted.prefixes.trunk_blocks.tolist() == [8, 8, 8, 8]
    assert fitted.prefixes.trunk_weights.sum() == pytest.approx(1, abs=1e-4)
    sampled = summarize(fitted.sample(seed=1))
    for figure, value in fitted.statistics.items():
        if "hit" in figure:
            assert sampled[figure] == pytest.approx(value, abs=0.03), figure


@pytest.mark.slow  # those that ship are held to their size below
def test_a_twin_does_not_grow_with_its_trace() -> None:
    def numbers(requests: int) -> int:
        return fit_trace(make_trace(requests)).to_json().count(",")

    assert numbers(36_000) <= 1.1 * numbers(24_000)
    assert len(fit_trace(make_trace(3_000, prefixes=True)).to_json()) < 40_000


def test_short_traces_are_not_retold() -> None:
    trace = make_trace(200)
    fitted = fit_trace(trace)
    assert len(fitted.lengths.levels) <= 20
    assert fitted.lengths.copula.size <= 25
    assert fitted.arrivals.counts.min() >= LEAST_REQUESTS


def drifting(requests: int) -> Trace:
    """Prompts fall and outputs and the rate rise over the trace."""
    rng = np.random.default_rng(5)
    share = np.linspace(0, 1, requests)
    inputs = np.maximum(1, rng.lognormal(7 - share, 1)).astype(np.int64)
    outputs = np.maximum(1, rng.lognormal(4 + share, 0.7)).astype(np.int64)
    arrival = np.cumsum(rng.exponential(0.3 - 0.2 * share))
    columns = {"arrival_s": arrival - arrival[0], "input_tokens": inputs, "output_tokens": outputs}
    return Trace(pl.DataFrame(columns), "drifting", "real")


@pytest.mark.parametrize("seed", [0, 7])
def test_a_sample_drifts_as_its_trace_does(seed: int) -> None:
    trace = drifting(6000)
    sampled = fit_trace(trace).sample(seed=seed)
    for part in (slice(0, 600), slice(1500, 3000), slice(5400, 6000)):
        for name in ("input_tokens", "output_tokens", "arrival_s"):
            drawn, recorded = (float(one.frame[name].to_numpy()[part].mean()) for one in (sampled, trace))
            assert drawn == pytest.approx(recorded, rel=0.03), (name, part)


def test_no_request_can_be_read_from_a_fit() -> None:
    trace = drifting(2000)
    longest = pl.when(pl.int_range(2000) == 700).then(1_234_567).otherwise(pl.col("input_tokens"))
    text = fit_trace(trace.with_frame(trace.frame.with_columns(input_tokens=longest))).to_json()
    assert "1234567" not in text
    assert "1.23457e+06" not in text
    assert "input_max" not in text
    for name, values in json.loads(text)["lengths"].items():
        if name in ("levels", "input_tokens", "output_tokens"):
            assert (np.diff(values) >= 0).all()
    assert min(json.loads(text)["arrivals"]["counts"]) >= LEAST_REQUESTS


@pytest.mark.parametrize("name", every_second(NAMES))
def test_a_shorter_sample_is_the_beginning_of_a_longer_one(name: str) -> None:
    longer, shorter = (sample_fitted(name, requests, seed=2) for requests in (2000, 300))
    assert shorter.frame.equals(longer.frame.head(300))


def test_fits_beginning_is_unlike_the_rest_as_its_trace_is() -> None:
    caveat = sample_fitted("mooncake", 3000).caveat
    assert "the first 3,000 of 12,031 requests are unlike the rest: prompts of 13,5" in caveat
    assert sample_fitted("mooncake").caveat == ""


def test_file_round_trip(tmp_path: Path) -> None:
    fitted = fit_trace(make_trace(500, prefixes=True))
    fitted.save(tmp_path / "made.json")
    again = FittedTrace.load(tmp_path / "made.json")
    assert again.to_json() == fitted.to_json() == (tmp_path / "made.json").read_text()
    assert sample_fitted(tmp_path / "made.json", 300).frame.equals(fitted.sample(300).frame)
    assert [path.name for path in tmp_path.iterdir()] == ["made.json"]


def test_twin_mistakes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"schema":"trace-twin/2"}')
    with pytest.raises(InputError, match=r"shipped: azure_code, azure_conv, mooncake, reasoning"):
        sample_fitted("moncake")
    with pytest.raises(InputError, match="no such fitted trace"):
        sample_fitted(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"bad\.json is not a usable fitted trace"):
        sample_fitted(tmp_path / "bad.json")
    with pytest.raises(InputError, match="ask for 1 to"):
        sample_fitted("mooncake", 0)
    with pytest.raises(InputError, match="seed"):
        sample_fitted("mooncake", 10, seed=-1)
    content = json.loads(load_fitted("azure_conv").to_json())
    content["arrivals"]["counts"] = [0, 0]
    (tmp_path / "empty.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"empty\.json is not a usable fitted trace"):
        sample_fitted(tmp_path / "empty.json")
    with pytest.raises(InputError, match="too few"):
        fit_trace(make_trace(50))
    with pytest.raises(ValueError, match="counts"):
        ArrivalModel(180.0, 60.0, False, np.ones(3, np.int64), np.zeros(3, np.int64), np.ones(1))


def test_fit_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "own.csv"
    rows = make_trace(300).frame.rename(
        {"arrival_s": "arrived_at", "input_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
    )
    rows.write_csv(source)
    assert typed("traces", "fit")([str(source), f"out={tmp_path / 'own.json'}", "licence=CC0"]) == 0
    assert "fitted trace of 300 requests" in capsys.readouterr().out
    assert load_fitted(tmp_path / "own.json").licence == "CC0"
    for wrong in ([str(tmp_path / "none.csv")], [str(source), f"out={tmp_path / 'no' / 'own.json'}"]):
        assert typed("traces", "fit")(wrong) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.csv", "own.json"]


@pytest.mark.parametrize("name", ["azure_code", "azure_conv", pytest.param("mooncake", marks=pytest.mark.slow)])
def test_shipped_twins_are_what_the_fit_command_writes(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    file = CATALOGUE[name].file
    assert file is not None
    seed = f"first_seed={load_fitted(name).first_seed}"
    assert typed("traces", "fit")([str(real_trace(file)), seed, f"out={tmp_path / 'twin.json'}"]) == 0
    assert (tmp_path / "twin.json").read_text() == load_fitted(name).to_json()


def test_a_sample_is_kept_for_other_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    drawn = load_fitted("mooncake").sample(50)
    asked: list[int | None] = []

    def sample(self: FittedTrace, requests: int | None = None, seed: int = 0) -> Trace:
        asked.append(requests)
        return drawn

    monkeypatch.setattr(FittedTrace, "sample", sample)
    files = [tmp_path / "one.json", tmp_path / "two.json"]  # of one content, as two processes that read one file
    for file in files:
        load_fitted("mooncake").save(file)
    first, second = (sample_fitted(file, 50) for file in files)
    assert asked == [50]
    assert first.frame.equals(drawn.frame)
    assert (second.frame.equals(drawn.frame), second.notes, second.sha256) == (True, drawn.notes, drawn.sha256)
    for seed, content in ((1, None), (0, b""), (0, b"damaged")):
        if content is not None:
            for kept in (tmp_path / "cache" / "servelab" / "traces").iterdir():
                kept.write_bytes(content)
        files[0].touch()
        assert sample_fitted(files[0], 50, seed).frame.equals(drawn.frame)
    assert len(asked) == 4
    for seed in range(40):
        sample_fitted(files[0], 50, seed)
    assert len(list((tmp_path / "cache" / "servelab" / "traces").iterdir())) == 32


def test_samples_are_numbered_from_the_first_seed() -> None:
    fitted = load_fitted("mooncake")
    later = replace(fitted, first_seed=fitted.first_seed + 2)
    assert later.sample(300).frame.equals(fitted.sample(300, seed=2).frame)
    assert "seed 0" in later.sample(300).notes[0]
    with pytest.raises(InputError, match="first_seed must be a whole number of at least 0, got -1"):
        FittedTrace.from_json(fitted.to_json().replace(f'"first_seed":{fitted.first_seed}', '"first_seed":-1'), "it")
