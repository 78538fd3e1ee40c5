"""The capacity search on systems whose capacity is known, and on the ends of its range."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from scipy.optimize import brentq

from framework.errors import InputError
from framework.load import Closed
from framework.metrics.slo import judge
from framework.objective import capacity
from framework.objective.capacity import Capacity, Search
from framework.objective.experiment import Experiment
from framework.objective.probe import Criterion, Probe, probe
from framework.objective.stability import MISSED, SUSTAINED, Reading
from framework.report.capacity_table import capacity_table
from framework.report.load_words import AT_LEAST, footnotes, mark
from framework.report.sweep_groups import mean_of
from framework.result import Result
from framework.run.compose import compose
from framework.timing.affine import Affine
from framework.workload import Workload, at_rate, rate_rps
from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.composing import configured as composed
from tests.helpers.servers import CRITERION, SERVICE_S, experiment, poisson, regular, requests, ttft_within


@pytest.mark.parametrize("limit_s", [0.5, 1000.0])
@pytest.mark.parametrize("count", [100, 3000])
def test_capacity_of_a_server_is_its_rate_however_short_the_trace_and_loose_the_slo(count: int, limit_s: float) -> None:
    one = experiment(requests(regular(count)), ttft_within(limit_s))
    measurement = Capacity().measure(one)
    summary = measurement.evaluation.summary
    assert summary["capacity_low"] * SERVICE_S == pytest.approx(1.0, abs=0.0051)  # half the tolerance to either side
    assert summary["capacity_low"] < summary["capacity_high"] <= 1.01 * summary["capacity_low"]
    assert summary["capacity_settled"]
    assert measurement.notes == ()


def test_one_pass_of_a_short_trace_would_say_much_more() -> None:
    one = experiment(requests(regular(300)), ttft_within(10.0))
    overloaded = one.on(at_rate(one.workload, 1.4 / SERVICE_S)).run()
    assert judge(overloaded, one.slo).good.mean() >= 0.9
    assert Capacity().measure(one).value * SERVICE_S < 1.01


def waits_within(rho: float, wait_s: float) -> float:
    """P(wait <= wait_s) of M/D/1 (Crommelin 1932; Erlang 1909)."""
    arrivals = [rho * (k - wait_s / SERVICE_S) for k in range(int(wait_s / SERVICE_S + 1e-9) + 1)]
    return (1 - rho) * sum(x**k / math.factorial(k) * math.exp(-x) for k, x in enumerate(arrivals))


def m_d_1(wait_s: float, attainment: float = 0.9) -> float:
    return float(brentq(lambda rho: waits_within(rho, wait_s) - attainment, 0.01, 0.999)) / SERVICE_S


@pytest.mark.slow
def test_poisson_arrivals_meet_crommelin() -> None:
    wait_s = 0.5
    slo = ttft_within(wait_s + SERVICE_S + 1e-9)
    found = [
        Capacity(tolerance=0.005).measure(experiment(requests(poisson(20_000, seed)), slo)).value for seed in range(4)
    ]
    assert np.mean(found) == pytest.approx(m_d_1(wait_s), rel=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.15, 0.3, 0.5, 1.0])
def test_long_traces_meet_crommelin_closely(wait_s: float) -> None:
    slo = ttft_within(wait_s + SERVICE_S + 1e-9)
    found = [
        Capacity(tolerance=0.002).measure(experiment(requests(poisson(200_000, seed)), slo)).value for seed in range(3)
    ]
    assert np.mean(found) == pytest.approx(m_d_1(wait_s), rel=0.006)


def test_undecided_counts_as_too_much_and_is_said() -> None:
    one = experiment(requests(poisson(50, seed=0)), ttft_within(100.0))
    measurement = Capacity(most_requests=100).measure(one)
    assert not measurement.evaluation.summary["capacity_settled"]
    told = [note for note in measurement.notes if "most_requests" in note]
    summary = measurement.evaluation.summary
    assert [note.split()[0] for note in told] == [f"{summary['capacity_high']:.4g}"]
    file = io.StringIO()
    assert measurement.probes is not None
    Console(file=file, width=120).print(capacity_table(summary, measurement.probes))
    assert f"capacity  at least {summary['capacity']:#.4g}" in file.getvalue()
    assert mark(summary).endswith(AT_LEAST)
    assert mean_of([summary, summary | {"capacity_settled": True}])["capacity_settled"] is False
    assert any("may be higher" in line for line in footnotes([summary]))
    assert AT_LEAST not in mark(summary | {"capacity_settled": True})


def mixed_lengths(long_share: float) -> Workload:
    tokens = np.ones(200, np.int64)
    tokens[: round(200 * long_share)] = 90
    return Workload(regular(200), np.random.default_rng(0).permutation(tokens), np.ones(200, np.int64))


def test_no_capacity_where_too_many_cannot_meet_the_slo() -> None:
    slow = Affine(base_s=0.01, per_prefill_token_s=0.01)  # 0.91 s for the long ones
    measurement = Capacity().measure(experiment(mixed_lengths(0.2), ttft_within(0.5), slow))
    assert measurement.value == 0.0
    assert measurement.probes is not None
    assert len(measurement.probes) < 10
    assert measurement.notes[0].endswith("40 of 200 requests miss the SLO (TTFT 40, TPOT 0, not served 0)")
    assert measurement.evaluation.summary["capacity_settled"]
    feasible = Capacity().measure(experiment(mixed_lengths(0.05), ttft_within(0.5), slow))
    assert feasible.value > 0


def test_no_capacity_where_requests_of_one_instant_are_too_many() -> None:
    pairs = np.repeat(regular(100), 2)
    measurement = Capacity().measure(experiment(requests(pairs), ttft_within(1.5 * SERVICE_S)))
    assert measurement.value == 0.0
    assert "even alone 0 of 200" in measurement.notes[0]
    assert "trace.jitter_s" in measurement.notes[0]


def test_what_has_no_rate_is_refused() -> None:
    with pytest.raises(InputError, match="all arrive at once"):
        Capacity().measure(experiment(requests(np.zeros(10)), ttft_within(1.0)))
    with pytest.raises(InputError, match="load=open"):
        Capacity().measure(replace(experiment(requests(regular(10)), ttft_within(1.0)), load=Closed(4)))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"attainment": 0.0}, {"attainment": 90}, {"tolerance": 0}, {"most_requests": 1.5}, {"replicates": 1}),
        *({"first_step": 1.0}, {"at_least": 0.0}, {"replicates": 1_001}),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"objective.{next(iter(wrong))}"):
        Capacity(**wrong)  # type: ignore[arg-type]


def test_settings_at_their_limits_are_not() -> None:
    Capacity(attainment=1.0, tolerance=1e-6, most_requests=1, replicates=1_000, first_step=1.01)


Judged = Callable[[float], bool]


def searched(
    monkeypatch: pytest.MonkeyPatch, passes: Judged, start_rps: float, step: float = 2.0, lost: float = 0.0
) -> Search:
    """A search on a system that passes where `passes(rate)` says so."""
    one = experiment(requests(regular(10)), ttft_within(1.0))
    result = one.run()

    def recorded(_: Experiment, rate_rps: float, __: Criterion) -> tuple[Probe, Result]:
        reading = Reading((1.0, 1.0), 0.0, 0.0, SUSTAINED if passes(rate_rps) else MISSED)
        return Probe(rate_rps, 1, 2, 20, 1.0, reading, settled=True), result

    monkeypatch.setattr(capacity, "probe", recorded)
    monkeypatch.setattr(capacity, "undisturbed_misses", lambda *_: lost)
    search = Search(one, replace(CRITERION, attainment=0.5), lambda done, total: None)
    search.find(start_rps, step)
    search.check()
    return search


@pytest.mark.parametrize("start_rps", [1e-3, 0.9, 5.0, 5.01, 6.0, 4e4])
@pytest.mark.parametrize("step", [1.1, 2.0])
def test_search_ends_around_the_edge(monkeypatch: pytest.MonkeyPatch, start_rps: float, step: float) -> None:
    search = searched(monkeypatch, lambda rate: rate <= 5.0, start_rps, step)
    assert search.low_rps <= 5.0 < search.high_rps <= 1.01 * search.low_rps
    assert len(search.probes) <= 26
    assert [one.rate_rps for one in search.ends] == [search.low_rps, search.high_rps]


def test_search_gives_up_where_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    search = searched(monkeypatch, lambda rate: False, 1.0)
    assert search.low_rps == 0.0
    assert len(search.probes) < 10


def test_search_goes_on_as_long_as_enough_could_keep_the_slo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the requests must; of those whom no rate helps there may be as many."""
    assert searched(monkeypatch, lambda rate: rate <= 5.0, 40.0, lost=0.5).low_rps == pytest.approx(5.0, rel=0.01)
    assert searched(monkeypatch, lambda rate: rate <= 5.0, 40.0, lost=0.51).low_rps == 0.0


def test_as_many_probes_are_expected_as_halvings_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a ratio of 2 to one of 1.01 it is halved 6.1 times, and two rates are checked."""
    search = searched(monkeypatch, lambda rate: rate <= 5.0, 4.0)
    assert search._expected() == 2
    search.low_rps = 0.0
    assert search._expected() == 7 + 2
    search.low_rps, search.high_rps = 2.0, 8.0
    assert search._expected() == 8 + 2


@pytest.mark.parametrize(("edge_rps", "is_given_up"), [(0.5, False), (0.3, True)])
def test_a_search_from_above_gives_up_at_once(
    monkeypatch: pytest.MonkeyPatch, edge_rps: float, is_given_up: bool
) -> None:
    search = searched(monkeypatch, lambda rate: rate <= edge_rps, 1.0)
    search.probes.clear()
    search.low_rps, search.high_rps = 0.0, math.inf
    search.find_above(0.4, 1.1)
    assert (search.low_rps == 0.0) == is_given_up
    assert (len(search.probes) == 1) == is_given_up
    if not is_given_up:
        assert search.low_rps <= edge_rps < search.high_rps <= 1.01 * search.low_rps


def test_a_system_that_does_not_sustain_what_is_asked_for_has_capacity_0_and_a_note() -> None:
    one = experiment(requests(regular(300)), ttft_within(10.0))
    rate_rps = 1 / SERVICE_S
    beaten = Capacity(at_least=1.1 * rate_rps).measure(one)
    assert beaten.value == beaten.evaluation.summary["capacity_low"] == 0.0
    assert beaten.evaluation.summary["capacity_high"] == 1.1 * rate_rps
    assert beaten.probes is not None
    assert len(beaten.probes) == 1
    assert "objective.at_least asks for no lower rate" in beaten.notes[0]
    better = Capacity(at_least=0.8 * rate_rps, first_step=1.2)
    assert better.measure(one).value == pytest.approx(rate_rps, rel=0.01)
    assert better.rate_rps(one) == pytest.approx(rate_rps, rel=0.01)


def test_a_replicate_that_is_undecided_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment(requests(regular(1000)), ttft_within(10.0))
    other = replace(one, sample=lambda number, block_s: requests(regular(500)))

    def recorded(experiment: Experiment, rate_rps: float, criterion: Criterion) -> tuple[Probe, Result]:
        found, result = probe(experiment, rate_rps, criterion)
        return replace(found, settled=found.passed or len(experiment.workload) == 1000), result

    monkeypatch.setattr(capacity, "probe", recorded)
    assert Capacity(tolerance=0.1).measure(other).evaluation.summary["capacity_settled"]
    assert not Capacity(tolerance=0.1, replicates=2).measure(other).evaluation.summary["capacity_settled"]


def test_attainment_that_rises_with_the_rate_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    search = searched(monkeypatch, lambda rate: 3.0 <= rate <= 5.0 or 5.3 <= rate < 5.6, 4.0)
    assert 4.95 < search.low_rps <= 5.0
    one = experiment(requests(regular(10)), ttft_within(1.0))
    notes = capacity._notes(Capacity(), one, search, one.run())
    assert any("less than the capacity, fails" in note for note in notes)
    assert any("passes, although" in note for note in notes)


def test_interval_is_the_spread_of_replicates() -> None:
    one = experiment(requests(poisson(3000, seed=0)), ttft_within(0.5))
    plain = Capacity().measure(one)
    assert plain.evaluation.summary["capacity_half_width"] is None
    seen: list[tuple[int, int]] = []
    measurement = Capacity(replicates=4).measure(one, lambda done, total: seen.append((done, total)))
    summary = measurement.evaluation.summary
    values = summary["capacity_replicates"]
    assert measurement.value == plain.value
    assert len(values) == 4
    assert summary["capacity_half_width"] == pytest.approx(3.182446 * np.std(values, ddof=1), rel=1e-6)  # t(0.975, 3)
    assert summary["capacity_half_width"] > abs(measurement.value - m_d_1(0.4))
    assert measurement.probes is not None
    assert sorted(set(measurement.probes["sample"])) == [0, 1, 2, 3, 4]
    assert all(done <= total for done, total in seen)


def test_the_run_at_capacity_is_evaluated() -> None:
    one = experiment(requests(poisson(2000, seed=0)), ttft_within(0.5))
    measurement = Capacity().measure(one)
    summary, probes = measurement.evaluation.summary, measurement.probes
    assert probes is not None
    shown = probes.row(by_predicate=pl.col("rate_rps") == measurement.value, named=True)
    assert summary["offered"] == summary["capacity_requests"] == shown["requests"] == 2000 * shown["passes"]
    assert rate_rps(measurement.result.workload) == pytest.approx(measurement.value)
    assert summary["slo_attainment"] == pytest.approx(
        (shown["attainment_first_half"] + shown["attainment"]) / 2, abs=0.001
    )
    assert summary["capacity_per_gpu"] == measurement.value


def configured(*overrides: str) -> Experiment:
    return compose(composed(*overrides))


def test_sessions_are_offered_at_the_rate_of_all_their_requests() -> None:
    one = configured("policy=chunked", "trace=synthetic_sessions", "trace.requests=1500")
    probed, result = probe(one, 6.0, CRITERION)
    assert probed.reading.verdict == SUSTAINED
    assert len(result.requests) == probed.requests * 9 // 8  # the load is kept up until those judged have ended
    arrival_s = np.sort(result.requests["arrival_s"])
    middle = arrival_s[len(arrival_s) // 3 : 2 * len(arrival_s) // 3]
    assert (len(middle) - 1) / (middle[-1] - middle[0]) == pytest.approx(6.0, rel=0.1)


def test_samples_are_drawn_anew_and_again_the_same() -> None:
    one = configured("policy=chunked", "trace=synthetic", "trace.requests=100")
    first, second = one.sample(1, 300.0), one.sample(2, 300.0)
    assert not np.array_equal(first.arrival_s, one.workload.arrival_s)
    assert not np.array_equal(first.arrival_s, second.arrival_s)
    np.testing.assert_array_equal(first.arrival_s, one.sample(1, 300.0).arrival_s)
    next_seed = configured("policy=chunked", "trace=synthetic", "trace.requests=100", "seed=1")
    np.testing.assert_array_equal(first.arrival_s, next_seed.workload.arrival_s)


def test_samples_of_a_recording_are_made_of_its_blocks(real_trace: Callable[[str], Path]) -> None:
    path = real_trace("conversation_trace.jsonl")
    one = configured("policy=chunked", "trace=mooncake", f"trace.path={path}", "trace.window_s=[0,1200]")
    sample = one.sample(1, 300.0)
    assert len(sample) != len(one.workload)
    assert set(sample.input_tokens) <= set(one.workload.input_tokens)
    assert any("300 s" in note for note in sample.notes)


def test_run_prints_and_keeps_every_rate(tmp_path: Path) -> None:
    command = [
        str(warm.path() / "python"),
        str(ROOT / "run.py"),
        "policy=chunked",
        "trace=synthetic",
        "trace.requests=150",
    ]
    options = ["objective=capacity", "objective.replicates=2", "objective.tolerance=0.3", f"hydra.run.dir={tmp_path}"]
    environment = os.environ | {"COLUMNS": "80"}
    finished = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    probes = pl.read_csv(tmp_path / "probes.csv")
    assert f"capacity  {summary['capacity']:#.4g}" in finished.stdout
    assert "req/s, by 2 samples" in finished.stdout
    rows = [line for line in finished.stdout.splitlines() if "× 150" in line]
    assert len(rows) == (probes["sample"] == 0).sum()
    assert [row.split()[1] for row in rows if row.startswith("▸")] == [f"{summary['capacity']:#.4g}"]
    assert max(map(len, finished.stdout.splitlines())) <= 80
    assert summary["capacity_runs"] >= len(probes)


@pytest.mark.parametrize(
    ("source", "kind"),
    [("real", "samples of blocks of 30 s"), ("twin", "samples of the fitted trace"), ("synthetic", "samples")],
)
def test_it_is_said_what_replicates_are_of(source: str, kind: str) -> None:
    one = experiment(replace(requests(regular(20)), source=source), ttft_within(10.0))
    summary = Capacity(tolerance=0.2, replicates=2, resample_s=30.0).measure(one).evaluation.summary
    assert summary["capacity_replicates_of"] == kind
    assert Capacity(tolerance=0.2).measure(one).evaluation.summary["capacity_replicates_of"] is None


def test_a_probe_plays_the_trace_twice_and_says_how_long_that_took() -> None:
    """Two times 80 requests at 1 req/s, and a further eighth: 180 of them, the last of which ends 0.1 s later."""
    probed, result = probe(experiment(requests(regular(80)), ttft_within(1.0)), 1.0, CRITERION)
    assert (probed.passes, probed.requests, probed.runs) == (2, 160, 1)
    assert len(result.requests) == 180
    assert probed.simulated_s == pytest.approx(179 + SERVICE_S)


def test_a_probe_ends_at_the_most_requests() -> None:
    """A rate that 5 % too high needs 4 passes to be settled; two of them are 80 requests."""
    one = experiment(requests(regular(40)), ttft_within(1e6))
    found = [probe(one, 1.05 / SERVICE_S, replace(CRITERION, most_requests=most))[0] for most in (159, 160)]
    assert [(each.passes, each.runs, each.settled) for each in found] == [(2, 1, False), (4, 2, True)]
    assert [each.reading.verdict for each in found] == ["queue grows", "queue grows"]
