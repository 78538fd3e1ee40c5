"""Calibrations to benchmarks whose terms are known: simulated with them, written as files, and fitted again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.calibration import command, fit, optimise
from framework.calibration.apply import apply, calibrations_of
from framework.calibration.benchmark_files import Benchmark, read_benchmark
from framework.calibration.command import main
from framework.calibration.fit import calibrate, observe
from framework.calibration.held_out import held_out, untested
from framework.calibration.prior import calibration_of, prior
from framework.calibration.replay import Deployment, Served, load_of, measured, replay, sent_again
from framework.calibration.tables import figures
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.system.cluster import mixed
from framework.system.parallelism import Parallelism
from framework.timing.affine import Affine
from framework.timing.calibration_terms import Calibration, Fit, Selector, read_calibrations, write_calibrations
from framework.timing.fit_domain import Place
from framework.timing.measured import Measured
from framework.timing.server import Server
from framework.timing.table import Curve, StepRow, Surface, stack, step_s
from policies.chunked import Chunked
from tests.helpers.launcher import typed
from tests.helpers.parts import load, made_up, put
from tests.helpers.results import GPU, MODEL

AFFINE = Affine(
    base_s=0.0064,
    per_prefill_token_s=1.7e-5,
    prefill_quadratic_s=4.6e-10,
    per_sequence_s=1.2e-5,
    per_context_token_s=4.3e-8,
)
SERVER = Deployment(MODEL, mixed(1, GPU), EngineConfig(), calibrations_of(AFFINE), Chunked)
TRUTH = Calibration(kernel=0.9, host_s=8e-4, request_s=0.02)
TERMS = ("kernel", "host_s", "host_sequence_s", "request_s")
# A server whose host is slower than its kernels where few sequences decode, and launches larger steps layer by layer.
QUICK = Server("quick", asynchronous=True, graph_tokens=512, host_s=7e-3, host_sequence_s=8e-6, request_s=5e-3)
SLOW_HOST = Calibration(kernel=0.9, host_s=9e-3, host_sequence_s=3e-5, request_s=0.03, token_s=4e-6)


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # `launch` sets it: undone after the test


@pytest.fixture(autouse=True)
def _quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms are found with half the simulations that a fit takes by default, with larger errors."""
    monkeypatch.setattr(fit, "_POINTS", 2)


def requests(count: int = 150, rate: float = 6.0, outputs: tuple[int, int] = (20, 120)) -> Benchmark:
    """Requests whose times are still to be measured."""
    rng = np.random.default_rng(round(100 * rate))
    return Benchmark(
        name="made up",
        sha256="0" * 64,
        input_tokens=rng.integers(100, 3000, count),
        output_tokens=rng.integers(*outputs, count),
        ttft_s=np.ones(count),
        tpot_s=np.ones(count),
        start_s=np.cumsum(rng.exponential(1 / rate, count)),
    )


def served(benchmark: Benchmark, truth: Calibration, server: Deployment = SERVER, noise: float = 0.0) -> Benchmark:
    """The benchmark as a server with these terms would have measured it; times off by `noise`, a standard deviation."""
    times = replay(sent_again(benchmark, load_of(benchmark)), server, truth)
    factors = np.exp(noise * np.random.default_rng(1).standard_normal((2, len(benchmark))))
    return replace(
        benchmark, ttft_s=times.ttft_s * factors[0], tpot_s=times.tpot_s * factors[1], duration_s=times.duration_s
    )


def vllm_json(path: Path, benchmark: Benchmark, **changes: Any) -> Path:
    gaps = zip(np.nan_to_num(benchmark.tpot_s), benchmark.output_tokens, strict=True)
    content = {
        "model_id": "made/up-8B",
        "request_rate": benchmark.rate if benchmark.rate not in (None, np.inf) else "inf",
        "max_concurrency": benchmark.concurrency,
        "duration": benchmark.duration_s,
        "input_lens": benchmark.input_tokens.tolist(),
        "output_lens": benchmark.output_tokens.tolist(),
        "ttfts": benchmark.ttft_s.tolist(),
        "itls": [[float(gap)] * int(tokens - 1) for gap, tokens in gaps],
        "errors": [""] * len(benchmark),
    }
    if benchmark.start_s is not None:
        content["start_times"] = (5000 + benchmark.start_s).tolist()
    path.write_text(json.dumps(content | changes), "utf-8")
    return path


def csv_file(path: Path, benchmark: Benchmark) -> Path:
    columns = [benchmark.input_tokens, benchmark.output_tokens, benchmark.ttft_s, benchmark.e2e_s]
    lines = [",".join(map(str, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]
    path.write_text("\n".join(["input_tokens,output_tokens,ttft_s,e2e_s", *lines]) + "\n", "utf-8")
    return path


@pytest.mark.slow  # quick tests recover them from closed loops, from drawn arrivals and in what is written
def test_terms_are_recovered_from_two_vllm_files(tmp_path):
    truth = replace(TRUTH, host_sequence_s=2e-5)
    files = [
        vllm_json(tmp_path / f"{rate}.json", served(requests(rate=rate), truth, noise=0.05)) for rate in (1.0, 12.0)
    ]
    fitted = calibrate([observe(read_benchmark(file)) for file in files], SERVER)
    assert fitted.values["kernel"] == pytest.approx(truth.kernel, rel=0.04)
    assert fitted.values["host_s"] == pytest.approx(truth.host_s, abs=3e-4)
    assert fitted.values["request_s"] == pytest.approx(truth.request_s, rel=0.06)
    for name in TERMS:
        assert abs(fitted.values[name] - getattr(truth, name)) < 3.5 * fitted.errors[name]
    assert np.sqrt(np.mean(fitted.after**2)) < 0.2 * np.sqrt(np.mean(fitted.before**2))
    assert fitted.idle == ("compute", "communication", "message_s", "eager_layer_s")
    assert fitted.values["communication"] == 1.0


def test_terms_are_recovered_from_closed_loops_in_csv_files(tmp_path):
    observed = []
    for concurrency in (4, 48):
        benchmark = replace(requests(200), start_s=None, concurrency=concurrency)
        file = csv_file(tmp_path / f"{concurrency}.csv", served(benchmark, TRUTH, noise=0.05))
        observed.append(observe(replace(read_benchmark(file), concurrency=concurrency)))
    assert [each.sent.by for each in observed] == ["closed", "closed"]
    fitted = calibrate(observed, SERVER)
    assert fitted.values["kernel"] == pytest.approx(TRUTH.kernel, rel=0.04)
    assert fitted.values["request_s"] == pytest.approx(TRUTH.request_s, rel=0.2)
    for name in TERMS:
        assert abs(fitted.values[name] - getattr(TRUTH, name)) < 3.5 * fitted.errors[name]


@pytest.mark.slow
def test_the_host_of_an_asynchronous_server_is_recovered_from_open_and_closed_loops():
    """Decodes wait for its host, which kernels do not tell; prompts, whose kernels are longer, tell the kernels."""
    engine, timing = EngineConfig(asynchronous=True), calibrations_of(AFFINE, QUICK)
    server = Deployment(MODEL, mixed(1, GPU), engine, timing, Chunked, QUICK)
    runs = [requests(rate=2.0), replace(requests(120), start_s=None, concurrency=6)]
    observed = [observe(served(run, SLOW_HOST, server, noise=0.03)) for run in runs]
    assert [each.sent.by for each in observed] == ["recorded", "closed"]
    fitted = calibrate(observed, server)
    assert fitted.values["host_s"] == pytest.approx(SLOW_HOST.host_s, rel=0.05)
    assert fitted.values["request_s"] == pytest.approx(SLOW_HOST.request_s, rel=0.25)
    assert fitted.values["kernel"] == pytest.approx(SLOW_HOST.kernel, rel=0.05)
    for name in ("kernel", "host_s", "host_sequence_s", "request_s", "token_s"):
        assert abs(fitted.values[name] - getattr(SLOW_HOST, name)) < 3.5 * fitted.errors[name]
    assert fitted.values["communication"] == 1.0


def test_a_host_between_steps_cannot_be_told_from_them():
    assert "step_s" not in {term.name for term in prior(Server())}
    assert {term.name: term.centre for term in prior(QUICK)}["host_s"] == QUICK.host_s
    kept = calibration_of({"kernel": 0.8}, QUICK)
    assert (kept.kernel, kept.host_s, kept.request_s, kept.step_s) == (0.8, QUICK.host_s, QUICK.request_s, 0.0)


@pytest.mark.slow  # a dry run of two files below holds them out in turn, and the last third of one
def test_several_runs_are_held_out_in_turn(monkeypatch):
    monkeypatch.setattr(fit, "_POINTS", 4)
    runs = [replace(served(replace(requests(60), start_s=None, concurrency=c), TRUTH), name=f"{c}") for c in (2, 24)]
    observed = [observe(run) for run in runs]
    checks = list(held_out(observed, SERVER))
    assert [(check.observed.benchmark.name, check.fitted_to) for check in checks] == [
        ("2", "the other runs"),
        ("24", "the other runs"),
    ]
    for check in checks:
        assert check.requests.tolist() == list(range(60))
        assert check.terms.kernel == pytest.approx(TRUTH.kernel, rel=0.06)
    (single,) = held_out(observed[:1], SERVER)
    assert (single.requests.tolist(), single.fitted_to) == (list(range(40, 60)), "the rest")


def test_loads_that_nothing_was_held_out_of_are_named():
    places = [Place(1000, 100, in_flight=4), Place(2000, 300, in_flight=64)]
    tested, never = untested(places)
    assert tested == "tested on prompts of 1,000 to 2,000 tokens, none cached, outputs of 100 to 300, 4 to 64 in flight"
    assert never.startswith("never tested: open loops, prompts in the prefix cache, anything beyond")
    one, never = untested([Place(1000, 100, 0.5, rate_rps=4.0)])
    assert one.startswith("tested on the end of one run alone, of prompts of 1,000 tokens, 50 % cached")
    assert never == "never tested: closed loops, anything beyond these ranges"


def test_arrivals_that_are_drawn_anew_tell_the_terms_too():
    benchmark = replace(served(requests(300, rate=4.0), TRUTH, noise=0.05), start_s=None, rate=4.0)
    fitted = calibrate([observe(benchmark, seed=3)], SERVER)
    for name in TERMS:
        assert abs(fitted.values[name] - getattr(TRUTH, name)) < 3.5 * fitted.errors[name]
    assert fitted.values["kernel"] == pytest.approx(TRUTH.kernel, rel=0.08)


def test_prompts_alone_do_not_tell_what_a_decode_costs():
    fitted = calibrate([observe(served(requests(outputs=(1, 2)), TRUTH, noise=0.05))], SERVER)
    assert "host_sequence_s" in fitted.idle
    assert not fitted.known["host_s"]
    assert fitted.values["kernel"] == pytest.approx(TRUTH.kernel, rel=0.08)
    assert any(line.startswith("host_s: these measurements hardly tell it") for line in fitted.warnings())


def test_the_last_third_is_met_by_a_fit_to_the_rest():
    benchmark = served(requests(), TRUTH, noise=0.05)
    observed = observe(benchmark)
    fitted = calibrate([observed], SERVER, until=2 / 3)
    last = np.arange(100, 150)
    found, before = (
        figures(replay(observed.sent, SERVER, terms), benchmark.output_tokens, last)
        for terms in (calibration_of(fitted.values, Server()), Calibration())
    )
    true = figures(measured(benchmark), benchmark.output_tokens, last)
    for name in ("TTFT ms mean", "TTFT ms P50", "TPOT ms mean", "TPOT ms P50", "E2E ms mean"):
        assert found[name] == pytest.approx(true[name], rel=0.05)
    assert before["TTFT ms mean"] != pytest.approx(true["TTFT ms mean"], rel=0.15)


def test_a_replay_with_the_true_terms_is_the_measurement():
    unrecorded: list[dict[str, Any]] = [{"concurrency": 8}, {"rate": 5.0}, {"rate": np.inf}]
    for benchmark in (requests(40), *(replace(requests(40), start_s=None, **known) for known in unrecorded)):
        once = served(benchmark, TRUTH)
        again = replay(observe(once).sent, SERVER, TRUTH)
        np.testing.assert_array_equal(again.ttft_s, once.ttft_s)
        np.testing.assert_array_equal(again.tpot_s, once.tpot_s)
        assert again.ttft_s.min() > TRUTH.request_s
        assert again.duration_s == once.duration_s


def test_how_requests_are_sent_again():
    benchmark = requests(20)
    assert load_of(benchmark) == "recorded"
    assert load_of(replace(benchmark, concurrency=4)) == "recorded"
    assert load_of(replace(benchmark, start_s=None, concurrency=4, rate=2.0)) == "closed"
    assert load_of(replace(benchmark, start_s=None, rate=2.0)) == "drawn"
    with pytest.raises(InputError, match="it does not say when requests were sent; give start_s"):
        load_of(replace(benchmark, start_s=None))


def test_drawn_arrivals():
    benchmark = replace(requests(200), start_s=None, rate=4.0)
    sent = sent_again(benchmark, "drawn", seed=1)
    assert sent.workload.arrival_s[-1] == pytest.approx(50.0)
    assert sent.workload.notes == ("sending times are not recorded: drawn anew at 4 requests/s, seed 1",)
    assert np.std(np.diff(sent.workload.arrival_s)) == pytest.approx(0.25, rel=0.2)
    even = sent_again(replace(benchmark, burstiness=np.inf), "drawn")
    np.testing.assert_allclose(np.diff(even.workload.arrival_s), 0.25)
    assert not sent_again(replace(benchmark, rate=np.inf), "drawn").workload.arrival_s.any()


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("recorded", "load=recorded needs that"),
        ("closed", "give concurrency=N"),
        ("drawn", "give rate=REQUESTS_PER_S"),
        ("open", "load must be one of recorded, closed, drawn; got 'open'"),
    ],
)
def test_loads_that_a_benchmark_does_not_tell(by, reason):
    with pytest.raises(InputError, match=reason):
        sent_again(replace(requests(20), start_s=None), by)


def test_too_few_requests():
    with pytest.raises(InputError, match="11 served requests; at least 12 are needed"):
        observe(requests(11))


def test_a_server_that_refuses_what_the_real_one_served():
    small = replace(SERVER, engine=EngineConfig(kv_tokens=2048))
    with pytest.raises(InputError, match=r"refuses \d+ of 20 requests .* reason kv\); check model, gpu, tp and engine"):
        replay(sent_again(requests(20), "recorded"), small, TRUTH)


def test_figures():
    times = Served(np.asarray([0.1, 0.3]), np.asarray([np.nan, 0.02]), np.asarray([0.1, 0.5]), 2.0)
    found = figures(times, np.asarray([1, 11]))
    assert found["TTFT ms mean"] == pytest.approx(200)
    assert found["TPOT ms P99"] == pytest.approx(20)
    assert found["E2E ms P50"] == pytest.approx(300)
    assert found["requests/s"] == 1.0
    assert found["output tokens/s"] == 6.0
    assert figures(replace(times, duration_s=None), np.asarray([1, 11]))["requests/s"] is None
    assert figures(times, np.asarray([1, 11]), np.asarray([0]))["TPOT ms mean"] is None


def test_a_calibration_scales_every_part_of_a_row():
    curve = Curve((1.0, 64.0), (0.5, 2.0))
    row = StepRow(
        base_s=1.0,
        per_prefill_token_s=0.25,
        prefill_quadratic_s=0.125,
        per_sequence_s=0.5,
        per_context_token_s=0.125,
        per_sampled_s=0.25,
        linear=curve,
        attention=curve,
        logits=curve,
        decode=Surface((1.0, 8.0), (1.0, 64.0), ((1.0, 2.0), (3.0, 4.0))),
        prefill_step_s=2.0,
        skew_s=0.5,
        request_s=0.25,
        length_limit=64.0,
    )
    terms = Calibration(kernel=2.0, step_s=3.0, sequence_s=0.5, request_s=1.0)
    calibrated = apply(terms, row, Server().fitted(terms).overheads(0, Parallelism()))
    plain_s, calibrated_s = (step_s(stack([each]), 0, [4], [8], 3, 30, longest=16) for each in (row, calibrated))
    assert calibrated_s == 2 * plain_s + 3.0 + 3 * 0.5
    assert calibrated.request_s == 1.25
    assert calibrated.length_limit == 64.0
    assert apply(Calibration(), row, StepRow()) == row
    slower = apply(Calibration(compute=2.0), row, StepRow())
    assert (slower.attention, slower.decode) == (curve.times(2.0), row.decode)


def test_measured_parts_are_calibrated_as_the_parts_are(tmp_path):
    put(tmp_path, "llama3_8b", "h100", "own", made_up())
    timing = Measured(backend="own", profiles=str(tmp_path))
    calibration = Calibration(kernel=0.5, communication=4.0, step_s=0.25)
    setup = load("model", "llama3_8b"), load("gpu", "h100"), Parallelism()
    row = calibrations_of(timing)(calibration).row(*setup)
    entry = timing.entry(*setup)
    expected = entry.joint.of(entry.parts.row(calibration))
    assert expected.attention is not None
    longer = expected.attention.continued_to(float(setup[0].max_context))  # than the profile
    assert row == replace(expected, attention=longer)
    assert row != apply(calibration, timing.row(*setup), StepRow())  # which cannot tell communication from kernels


def own_benchmark(tmp_path: Path, count: int) -> Path:
    """A benchmark file of a server whose kernels are the made-up profile with it."""
    profiles = tmp_path / "profiles"
    put(profiles, "llama3_8b", "h100", "own", made_up(communication_s=np.zeros(4)))
    timing = calibrations_of(Measured(backend="own", profiles=str(profiles)))
    server = Deployment(load("model", "llama3_8b"), mixed(1, load("gpu", "h100")), EngineConfig(), timing, Chunked)
    benchmark = served(requests(count), TRUTH, server, noise=0.03)
    errors = [""] * count
    errors[5] = "gone"
    return vllm_json(tmp_path / "bench.json", benchmark, errors=errors)


def arguments(file: Path, *more: str) -> list[str]:
    known = ["model=llama3_8b", "gpu=h100", "tp=1", "backend=own", f"timing.profiles={file.parent}/profiles"]
    known += ["policy=chunked", "server=none"]  # as `own_benchmark` was served
    return [str(file), *known, *more]


def test_what_is_written_is_what_later_runs_take(tmp_path, capsys):
    own = own_benchmark(tmp_path, 120)
    path = tmp_path / "cache" / "servelab" / "profiles" / "h100" / "own" / "calibration.json"
    other, stale = Fit(TRUTH, Selector(model="qwen25_7b")), Fit(TRUTH, Selector(model="llama3_8b", dtype="bf16"))
    write_calibrations(path, [other, stale])
    main(arguments(own))
    shown = capsys.readouterr().out
    assert str(path) in shown.replace("\n", "")
    for part in ("bench.json: 119 requests", "TTFT ms P99", "output tokens/s", "last 40, fitted to the rest", "kernel"):
        assert part in shown
    assert "1 of 120 requests failed" in shown
    kept, fit = read_calibrations(path)
    assert kept == other
    assert fit.selector == stale.selector
    written = fit.calibration
    setup = load("model", "llama3_8b"), load("gpu", "h100"), Parallelism()
    timing = Measured(backend="own", profiles=str(own.parent / "profiles"))
    of = calibrations_of(timing)
    for chunks, decodes in (([], 1), ([], 40), ([2000], 0), ([500], 10)):  # kernel, compute and host_s are hardly apart
        found_s, true_s = (
            step_s(stack([of(terms).row(*setup)]), 0, [0] * len(chunks), chunks, decodes, 800 * decodes)
            for terms in (written, TRUTH)
        )
        assert found_s == pytest.approx(true_s, rel=0.05)
    assert written.request_s == pytest.approx(TRUTH.request_s, rel=0.15)
    sha256 = read_benchmark(own).sha256
    assert fit.rows == (f"bench.json sha256={sha256} requests=119 failed=1",)
    assert "llama3_8b bf16 on h100 tp1, arrivals recorded" in fit.note
    assert fit.domain is not None
    assert fit.domain.rate_rps == pytest.approx((6.0, 6.0), rel=0.2)
    assert timing.row(*setup) == of(written).row(*setup)
    assert timing.row(*setup) != timing.entry(*setup).parts.row(Calibration())


def test_a_dry_run_of_two_files_that_say_nothing_of_their_loads_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(optimise, "_MOVES", 1)  # what it says does not depend on how well the terms are fitted
    monkeypatch.setattr(command, "replay", lambda *parts: replace(replay(*parts), extrapolated=0.25))
    own = own_benchmark(tmp_path, 40)
    files = [csv_file(tmp_path / f"{name}.csv", read_benchmark(own)) for name in ("low", "high")]
    dry = arguments(own, "dry=true", f"out={tmp_path / 'out'}")[1:]
    main([f"{files[0]},concurrency=2", f"{files[1]},concurrency=9", *dry])
    shown = " ".join(capsys.readouterr().out.split())
    assert "calibrated" in shown
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()
    assert "low.csv: 39 requests, closed" in shown
    assert "25.0% of the simulated time lies in steps larger than what was measured" in shown
    assert shown.count("all, fitted to the other runs") == 2
    assert "2 to 9 in flight" in shown
    assert "never tested: open loops, prompts in the prefix cache" in shown


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["dry=maybe"], "dry must be true or false, got 'maybe'"),
        (["load=sideways"], "load must be one of recorded, closed, drawn; got 'sideways'"),
        (["load=closed"], "bench.json: no number of requests in flight; give concurrency=N"),
        (["concurrency=0"], "concurrency must be a whole number"),
        (["missing.csv,colour=red"], "colour=red: not understood"),
        (["engine.max_batches=8"], "engine.max_batches: there is no such setting"),
        (["rate=fast"], "rate must be a number of requests/s above 0, or inf; got 'fast'"),
        (["seed=-1"], "seed must be a whole number from 0 to 1,000,000,000, got '-1'"),
        (["colour=red"], "colour=red: not understood"),
        (["missing.json"], "missing.json: cannot be read"),
        (["dtype=int3"], "model.dtype must be one of"),
        (["engine.kv_tokens=1024"], "the simulated server refuses"),
    ],
)
def test_mistakes_are_one_line(more, line, tmp_path, monkeypatch, capsys):
    own = own_benchmark(tmp_path, 40)
    assert typed("calibrate")(arguments(own, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert line in error


def test_times_in_another_unit_are_refused(tmp_path):
    own = own_benchmark(tmp_path, 40)
    benchmark = read_benchmark(own)
    slow = replace(benchmark, ttft_s=1e3 * benchmark.ttft_s, tpot_s=1e3 * benchmark.tpot_s)
    with pytest.raises(InputError, match=r"bench.csv: a median TPOT of .* milliseconds given as seconds"):
        main(arguments(csv_file(tmp_path / "bench.csv", slow), "load=closed", "concurrency=4"))


def test_no_file_and_no_profiles(tmp_path):
    own = own_benchmark(tmp_path, 40)
    with pytest.raises(InputError, match=r"FILE .* is missing"):
        main(["model=llama3_8b"])
    with pytest.raises(InputError, match="only timing=measured keeps a calibration; add dry=true"):
        main([str(own), "model=llama3_8b", "timing=roofline"])
