"""The micro-benchmark: which cases, how they are repeated, and a table that survives whatever interrupts it.

Nothing here needs a GPU: a device that computes its times from a formula takes the place of one. What calls PyTorch is
checked on the CPU where PyTorch is installed, and what needs CUDA where there is a GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.kernels.decode_imbalance import fit_imbalance
from framework.timing.kernels.read_csv import load_csv
from framework.timing.kernels.table import OPERATIONS
from framework.timing.kernels.tabulate import tabulate
from framework.timing.microbench import cuda as measure_cuda
from framework.timing.microbench.attention import (
    Calls,
    PagedCache,
    Sequences,
    flash_2,
    flash_3,
    flash_3_in_one_piece,
    flash_infer,
    paged_torch,
    plain_torch,
)
from framework.timing.microbench.cases import (
    KEYS,
    MIXED,
    NAMED,
    Case,
    contexts_of,
    gemm_shapes,
    model_cases,
    unmeasured_parts,
)
from framework.timing.microbench.command import Outcome, describe, estimate_s, main, measure, run
from framework.timing.microbench.device import OutOfMemoryError, Repeats, Timed, UnsupportedError
from framework.timing.microbench.graphs import CapturedGraph
from framework.timing.microbench.journal import Origin, Table
from framework.timing.microbench.options import Options, gpu_named
from tests.conftest import ROOT
from tests.helpers.parts import load, seconds_of
from tests.helpers.quick import one_in

HAS_TORCH = importlib.util.find_spec("torch") is not None
ORIGIN = Origin("h200", "2.9.0+cu128", "CC0-1.0")
SKEW_S = 3e-11


def options(*arguments: str) -> Options:
    return Options.parse(main.read(["model=llama3_8b", *arguments]))


LLAMA: Model = load("model", "llama3_8b")
H200: Gpu = load("gpu", "h200")


@dataclass
class FakeTimed:
    seconds: Callable[[], float]
    kernel: str = "fake"

    def sample(self) -> float:
        return self.seconds()

    def release(self) -> None:
        pass


@dataclass
class FakeDevice:
    """Times by the roofline of an H200, 3 us at least, plus a known skew; its clock moves by 1 s for each case."""

    memory_bytes: float = 141e9
    prepared: list[Case] = field(default_factory=list)
    interrupt_after: int = 10**9
    now: float = 0.0
    closed: bool = False

    @property
    def origin(self) -> Mapping[str, str | int | float]:
        return {"device": "NVIDIA H200", "memory_bytes": 150e9, "version": ORIGIN.version}

    def clocks_mhz(self) -> Mapping[str, float]:
        return {"sm": 1980.0}

    def prepare(self, case: Case) -> Timed:
        if len(self.prepared) == self.interrupt_after:
            raise KeyboardInterrupt
        self.prepared.append(case)
        self.now += 1.0
        if case.operation != "all_reduce" and case.bytes > self.memory_bytes:
            raise OutOfMemoryError
        if case.operation == "gemm" and case.dtype() == "fp8":
            raise UnsupportedError("this GPU does not multiply fp8")
        uneven = case.size("longest") - case.size("context") if case.size("longest") else 0
        return FakeTimed(lambda: 3e-6 + case.estimate_s(H200) + SKEW_S * case.size("batch") * uneven)

    def close(self) -> None:
        self.closed = True


def some_cases(count: int = 12) -> list[Case]:
    return model_cases([LLAMA], [1], ["bf16"])[:count]


def fill(path: Path, cases: list[Case], device: FakeDevice | None = None, **arguments: Any) -> Outcome:
    device = FakeDevice() if device is None else device
    table = Table(path, ORIGIN)
    try:
        return measure(cases, device, table, H200, clock=lambda: device.now, **arguments)
    finally:
        table.finish()


# --- which cases


@pytest.mark.parametrize(
    "path", one_in(4, sorted((ROOT / "conf" / "model").glob("*.yaml"))), ids=lambda path: path.stem
)
def test_every_model_has_cases_each_once_and_in_order(path: Path) -> None:
    cases = Options.parse(main.read([f"model={path.stem}", "tp=1,2"])).cases()
    assert len({case.identity for case in cases}) == len(cases) > 400
    rounds = [case.round for case in cases]
    assert rounds == sorted(rounds)
    for case in cases:
        names = [name for name, _ in case.key if name != "longest"]
        assert names == list(KEYS[case.operation])
        assert all(isinstance(value, str) == (name in NAMED) for name, value in case.key)
        assert case.flops >= 0
        assert case.bytes > 0


def test_gemm_shapes_are_those_of_a_layer() -> None:
    assert gemm_shapes(LLAMA, 1) == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    assert gemm_shapes(LLAMA, 4) == [(1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584)]
    copied_kv_heads = gemm_shapes(LLAMA, 16)[0]
    assert copied_kv_heads == ((2 + 2 * 1) * 128, 4096)


def test_tokens_reach_from_1_to_32768_with_edges_of_tiles() -> None:
    cases = model_cases([LLAMA], [1], ["bf16"])
    tokens = {case.size("m") for case in cases if case.size("n") == 6144}
    assert {1 << i for i in range(16)} <= tokens
    assert {24, 96, 24576, 65, 129, 257, 4097} <= tokens
    assert max(tokens) == 32768


def test_the_first_round_spans_everything() -> None:
    """What a small budget leaves of the table still covers the range."""
    cases = model_cases([LLAMA], [1, 2], ["bf16", "fp8"])
    first = [case for case in cases if case.round == 0]
    assert {case.operation for case in first} == {"gemm", "prefill_attention", "decode_attention", "all_reduce"}
    assert len(first) < len(cases) / 6
    shapes = {(case.size("n"), case.size("k")) for case in cases if case.operation == "gemm"}
    for n, k in shapes:
        tokens = [case.size("m") for case in first if (case.size("n"), case.size("k")) == (n, k)]
        assert min(tokens) == 1
        assert max(tokens) >= 2048
    assert not [case for case in first if case.operation == "gemm" and case.dtype() == "fp8"]


def test_no_case_is_longer_than_the_model_allows() -> None:
    short = Options.parse(main.read(["model=llama2_7b"])).models[0]
    cases = model_cases([short], [1], ["bf16"])
    assert max(case.size("tokens") + case.size("prefix") for case in cases) == short.max_context == 4096
    assert max(case.size("context") for case in cases) == 4096


def test_prefixes_mixed_calls_and_messages_are_there() -> None:
    cases = model_cases([LLAMA], [2], ["bf16"])
    assert {0, 512, 8192, 122880} <= {c.size("prefix") for c in cases if c.operation == "prefill_attention"}
    assert {c.size("decodes") for c in cases if c.operation == MIXED} == {16, 64, 256}
    messages = [case.size("bytes") for case in cases if case.operation == "all_reduce"]
    assert (min(messages), max(messages)) == (256, 2**30)
    assert {case.size("gpus") for case in cases if case.operation == "all_reduce"} == {2}


def test_models_share_shapes_and_wait_for_types() -> None:
    twice = model_cases([LLAMA, LLAMA], [1], ["bf16"])
    assert twice == model_cases([LLAMA], [1], ["bf16"])
    both = model_cases([LLAMA], [1], ["bf16", "fp8"])
    first = {
        dtype: min(c.round for c in both if c.operation == "gemm" and c.dtype() == dtype) for dtype in ("bf16", "fp8")
    }
    assert first == {"bf16": 0, "fp8": 1}


def test_a_shape_that_is_needed_twice_takes_the_earlier_round() -> None:
    """An output projection of the shape of a layer's matrix, which waits because its type comes second."""
    small = Model(**{**vars(LLAMA), "vocab": 6144})
    cases = model_cases([small], [1], ["fp8", "bf16"])
    (case,) = [c for c in cases if c.identity == ("gemm", (("dtype", "bf16"), ("m", 1), ("n", 6144), ("k", 4096)))]
    assert case.round == 0


def test_work_of_a_case() -> None:
    cases = {case.identity: case for case in model_cases([LLAMA], [1], ["bf16"])}
    gemm = cases["gemm", (("dtype", "bf16"), ("m", 16), ("n", 4096), ("k", 4096))]
    assert gemm.flops == 2 * 16 * 4096**2
    assert gemm.bytes == 2 * (4096**2 + 2 * 16 * 4096)
    layer = (("kv_dtype", "bf16"), ("heads", 32), ("kv_heads", 8), ("head_dim", 128), ("window", 0))
    decode = cases["decode_attention", (*layer, ("batch", 16), ("context", 1024))]
    assert decode.bytes == 16 * 1024 * 2 * 8 * 128 * 2
    chunk = cases["prefill_attention", (*layer, ("batch", 1), ("tokens", 512), ("prefix", 2048))]
    assert chunk.flops == 4 * 32 * 128 * (2560**2 - 2048**2) / 2


def test_a_window_bounds_what_is_read() -> None:
    windowed = Model(**{**vars(LLAMA), "window": 128, "windowed_layers": 16})
    decodes = [c for c in model_cases([windowed], [1], ["bf16"]) if c.operation == "decode_attention"]
    by_window = {w: max(c.bytes / c.size("batch") for c in decodes if c.size("window") == w) for w in (0, 128)}
    assert by_window[128] == 128 * 2 * 8 * 128 * 2
    assert by_window[0] > 100 * by_window[128]
    assert all(not c.size("longest") for c in decodes if c.size("window"))


@pytest.mark.parametrize("batch", [8, 32, 256])
@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 4.0])
def test_uneven_batches_have_the_mean_and_the_longest(batch: int, ratio: float) -> None:
    mean, longest = 512, int(512 * ratio)
    contexts = contexts_of(batch, mean, longest)
    assert len(contexts) == batch
    assert sum(contexts) == batch * mean
    assert max(contexts) == longest
    assert min(contexts) >= 1
    assert contexts == contexts_of(batch, mean, longest)


def test_an_impossible_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch of 2"):
        contexts_of(2, 100, 400)


def test_every_uneven_case_has_its_even_one_no_later() -> None:
    cases = model_cases([LLAMA], [1], ["bf16"])
    rounds = {case.identity: case.round for case in cases}
    uneven = [case for case in cases if case.size("longest")]
    assert {case.size("longest") / case.size("context") for case in uneven} == {1.5, 2.0, 4.0}
    assert len(uneven) == 3 * 5 * 3
    for case in uneven:
        assert rounds[case.operation, case.key[:-1]] <= case.round


def test_parts_that_no_case_covers_are_named() -> None:
    mixtral = Options.parse(main.read(["model=mixtral_8x7b"])).models[0]
    assert [line.split(";")[0] for line in unmeasured_parts([LLAMA, mixtral])] == [
        "mixtral_8x7b: its experts are not measured"
    ]


def test_heads_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(InputError, match="tp = 3 does not divide the 32 heads"):
        options("tp=3").cases()


# --- how they are timed


def timed(*seconds: float) -> FakeTimed:
    left = list(seconds)
    return FakeTimed(lambda: left.pop(0) if len(left) > 1 else left[0])


def test_steady_times_end_at_the_least_repeats() -> None:
    calls: list[float] = []
    measured = Repeats(warm_up=2, least=5).time(FakeTimed(lambda: calls.append(1.0) or 1.0))  # type: ignore[func-returns-value]
    assert len(calls) == 7
    assert (measured.latency_s, measured.spread_s) == (1.0, 0.0)


def test_the_warm_up_does_not_count() -> None:
    measured = Repeats(warm_up=3, least=4).time(timed(9.0, 9.0, 9.0, 2.0))
    assert measured.latency_s == 2.0


def test_unsteady_times_are_repeated_to_the_cap() -> None:
    rng = np.random.default_rng(0)
    samples: list[float] = []

    def sample() -> float:
        samples.append(float(rng.uniform(1, 2)))
        return samples[-1]

    measured = Repeats(warm_up=0, least=5, most=40).time(FakeTimed(sample))
    assert len(samples) == 40
    assert measured.latency_s == np.median(samples)
    assert measured.spread_s == pytest.approx(np.subtract(*np.percentile(samples, [75, 25])))


def test_repeats_end_once_the_spread_is_small() -> None:
    left = [1.0, 2.0, 3.0, 1.5, *[1.0] * 1000]
    Repeats(warm_up=0, least=4, most=500).time(FakeTimed(lambda: left.pop(0)))
    taken = 1004 - len(left)
    assert 4 < taken < 40


def test_repeats_end_when_their_time_is_over() -> None:
    now = [0.0]

    def sample() -> float:
        now[0] += 1.0
        return 1.0 + now[0] % 2

    Repeats(warm_up=0, least=3, most=1000, seconds=7.0).time(FakeTimed(sample), lambda: now[0])
    assert now[0] == 7.0


# --- the table


def test_the_loader_of_kernel_tables_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "h200.csv"
    cases = options("tp=1,2", "dtypes=bf16").cases()
    assert fill(path, cases).measured == len(cases)
    kernels = load_csv(path, H200)
    assert set(kernels.tables) == {
        *("gemm", "prefill_attention", "decode_attention", "uneven_decode", "all_reduce", "elementwise")
    }
    extra = sum(case.operation not in OPERATIONS for case in cases)
    assert sum(table.height for table in kernels.tables.values()) == len(cases) - extra
    origin = kernels.provenance
    assert (origin.gpu, origin.backend, origin.version, origin.licence) == ("h200", "torch", "2.9.0+cu128", "CC0-1.0")
    gemm = kernels.table("gemm").filter(pl.col("m") == 1024, pl.col("n") == 6144).row(0, named=True)
    (case,) = [case for case in cases if (case.size("m"), case.size("n")) == (1024, 6144)]
    assert gemm["latency_s"] == pytest.approx(3e-6 + case.estimate_s(H200), rel=1e-5)
    assert gemm["spread_s"] == 0
    assert gemm["kernel"] == "fake"


def test_the_table_makes_step_times(tmp_path: Path) -> None:
    """Everything that a dense model's step is composed of is measured."""
    path = tmp_path / "h200.csv"
    fill(path, options("tp=1,2", "dtypes=bf16").cases())
    for tp in (1, 2):
        parts = tabulate(load_csv(path, H200), LLAMA, H200, Parallelism(tp=tp))
        assert seconds_of(parts, "gemm")[-1] > 0
        assert seconds_of(parts, "decode_attention").min() > 0
        assert (seconds_of(parts, "communication").max() > 0) == (tp == 2)
        assert parts["decode_attention"].skew_s == pytest.approx(LLAMA.layers * SKEW_S, rel=1e-3)
    even = {name: table for name, table in load_csv(path, H200).tables.items() if name != "uneven_decode"}
    parts = tabulate(replace(load_csv(path, H200), tables=even), LLAMA, H200, Parallelism())
    assert parts["decode_attention"].skew_s == 0.0


def test_uneven_rows_give_the_skew_back(tmp_path: Path) -> None:
    path = tmp_path / "h200.csv"
    fill(path, options("ops=decode_attention").cases())
    kernels = load_csv(path, H200)
    skew = fit_imbalance(kernels.table("decode_attention"), kernels.table("uneven_decode"))
    assert skew.per_token_s == pytest.approx(SKEW_S, rel=1e-3)
    assert skew.cases == 45


def test_what_is_in_the_table_is_not_measured_again(tmp_path: Path) -> None:
    path, cases, device = tmp_path / "t.csv", some_cases(), FakeDevice()
    fill(path, cases[:5])
    before = path.read_text().splitlines()
    outcome = fill(path, cases, device)
    assert (outcome.known, outcome.measured) == (5, 7)
    assert device.prepared == cases[5:]
    assert set(before) < set(path.read_text().splitlines())
    assert sorted(tmp_path.iterdir()) == [path]


def test_uneven_and_mixed_rows_are_known_again(tmp_path: Path) -> None:
    path, device = tmp_path / "t.csv", FakeDevice()
    cases = [case for case in options().cases() if case.operation == MIXED or case.size("longest")]
    fill(path, cases)
    assert set(pl.read_csv(tmp_path / "t.steps.csv")["op"]) == {MIXED}
    assert set(pl.read_csv(path)["op"]) == {"decode_attention"}
    assert fill(path, cases, device).known == len(cases)
    assert not device.prepared


def test_a_killed_measurement_goes_on_from_its_journal(tmp_path: Path) -> None:
    path, cases = tmp_path / "t.csv", some_cases()
    killed = Table(path, ORIGIN)
    measure(cases[:6], FakeDevice(), killed, H200)  # and no finish
    assert not path.exists()
    outcome = fill(path, cases)
    assert (outcome.known, outcome.measured) == (6, 6)
    assert len(path.read_text().splitlines()) == 13


@pytest.mark.parametrize("lost", [1, 5, 40])
def test_a_torn_last_line_is_measured_again(tmp_path: Path, lost: int) -> None:
    path, cases = tmp_path / "t.csv", some_cases()
    killed = Table(path, ORIGIN)
    measure(cases[:6], FakeDevice(), killed, H200)
    journal = tmp_path / "t.csv.part"
    journal.write_bytes(journal.read_bytes()[:-lost])
    device = FakeDevice()
    assert fill(path, cases[:6], device).known == 5
    assert device.prepared == [cases[5]]
    assert len(pl.read_csv(path)) == 6


def test_a_journal_torn_twice_stays_whole(tmp_path: Path) -> None:
    """What is appended behind a torn line must not grow together with it."""
    path, cases = tmp_path / "t.csv", some_cases()
    for count in (4, 8):
        measure(cases[:count], FakeDevice(), Table(path, ORIGIN), H200)
        journal = tmp_path / "t.csv.part"
        journal.write_bytes(journal.read_bytes()[:-9])
    assert fill(path, cases).known == 7
    assert len(pl.read_csv(path)) == len(cases)


def test_a_journal_of_nothing_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "t.csv.part").write_bytes(b"op,dty")
    assert fill(tmp_path / "t.csv", some_cases(2)).measured == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("h200,", "h100,", "line 2: measured with gpu h100, this machine has h200; choose another out="),
        ("2.9.0+cu128", "2.1.0", "line 2: measured with version 2.1.0"),
        (",16,", ",many,", "many"),
        ("op,", "operation,", "line 1: not the columns"),
        ("gemm", "conv", "line 2: unknown op 'conv'"),
        (",fake,", ",", "values for"),
    ],
)
def test_a_foreign_table_is_refused_and_left_alone(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "t.csv"
    fill(path, some_cases())
    text = path.read_text().replace(old, new, 1)
    if old == "gemm":
        text = path.read_text().replace("gemm,", "conv,")
    path.write_text(text)
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        Table(path, ORIGIN)
    assert path.read_text() == text


def test_what_does_not_fit_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    cases = options("ops=gemm", "dtypes=bf16,fp8").cases()
    limit = 1e9
    outcome = fill(tmp_path / "t.csv", cases, FakeDevice(memory_bytes=limit))
    fits = [case for case in cases if case.bytes <= limit]
    assert outcome.out_of_memory == len(cases) - len(fits) > 0
    refused = sum(case.dtype() == "fp8" for case in fits)
    assert dict(outcome.unsupported) == {"gemm: this GPU does not multiply fp8": refused}
    assert outcome.measured == len(fits) - refused
    assert f"{outcome.out_of_memory} out of memory" in str(outcome)


def test_a_budget_cuts_the_last_cases(tmp_path: Path) -> None:
    cases, device = some_cases(40), FakeDevice()
    outcome = fill(tmp_path / "t.csv", cases, device, budget_s=10.1)
    assert device.prepared == cases[:10]
    assert (outcome.measured, outcome.unmeasured) == (10, 30)
    assert "30 not measured for lack of time" in str(outcome)
    again = fill(tmp_path / "t.csv", cases, FakeDevice(), budget_s=0.01)
    assert (again.known, again.measured, again.unmeasured) == (10, 0, 30)


def test_progress_and_clocks_are_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    outcome = fill(tmp_path / "t.csv", some_cases(25), report=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 25) for i in range(25)]
    assert [entry["seconds"] for entry in outcome.clocks] == [0, 10, 20]
    assert outcome.clocks[0]["sm"] == 1980.0


# --- the command line


def test_a_run_writes_the_table_and_its_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, device = tmp_path / "h200.csv", FakeDevice()
    chosen = options(f"out={out}", "ops=all_reduce", "tp=2", "licence=CC0-1.0")
    run(chosen, lambda library: device)
    run(chosen, lambda library: device)
    assert device.closed
    assert set(pl.read_csv(out)["licence"]) == {"CC0-1.0"}
    origin = json.loads(out.with_suffix(".json").read_text())
    assert [entry["device"] for entry in origin] == ["NVIDIA H200"] * 2
    assert [entry["outcome"] for entry in origin] == [
        "23 measured, 0 already in the table",
        "0 measured, 23 already in the table",
    ]
    assert origin[0]["clocks_mhz"][0]["sm"] == 1980.0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", ["{", '{"device": 1}'])
def test_another_file_in_the_origins_place_is_told_before_anything_is_measured(tmp_path: Path, content: str) -> None:
    out, device = tmp_path / "h200.csv", FakeDevice()
    out.with_suffix(".json").write_text(content)
    with pytest.raises(InputError, match=r"h200\.json: .*move it away"):
        run(options(f"out={out}"), lambda library: device)
    assert not device.prepared
    assert out.with_suffix(".json").read_text() == content


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    out, device = tmp_path / "h200.csv", FakeDevice(interrupt_after=7)
    with pytest.raises(KeyboardInterrupt):
        run(options(f"out={out}"), lambda library: device)
    assert device.closed
    assert len(pl.read_csv(out)) == 7
    assert sorted(tmp_path.iterdir()) == [out]


def test_a_dry_run_counts_and_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    main(["model=llama3_8b", "tp=1,2", "gpu=h200", "list"])
    printed = capsys.readouterr().out
    cases = options("tp=1,2").cases()
    assert printed.splitlines()[0].startswith("round 0: gemm ")
    assert f"{len(cases)} cases, about " in printed
    assert "on one h200 (estimated)" in printed
    minutes = sum(estimate_s(case, H200) for case in cases) / 60
    assert f"about {minutes:.0f} minutes" in describe(cases, H200)


def test_help_is_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert "python -m framework.timing.microbench model=llama3_8b tp=1,2,4 out=h200.csv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=gpt9"], "model=gpt9: there is no model of that name; choose one of"),
        ([], "model= needs names"),
        (["model=llama3_8b", "tp=0"], "tp must be a whole number"),
        (["model=llama3_8b", "tp=1,,2"], "tp= needs names, with commas between them; got '1,,2'"),
        (["model=llama3_8b", "minutes=soon"], "minutes must be a finite number above 0, got 'soon'"),
        (["model=llama3_8b", "minutes=-1"], "minutes must be a finite number above 0"),
        (["model=llama3_8b", "dtypes=int3"], "dtypes must be one of bf16, fp8; got 'int3'"),
        (["model=llama3_8b", "ops=conv"], "ops must be one of gemm"),
        (["model=llama3_8b", "attention=magic"], "attention must be one of auto"),
        (["model=llama3_8b", "out=t.txt"], "out=t.txt: must end in .csv"),
        (["model=llama3_8b", "out=/no/such/t.csv"], "there is no directory /no/such"),
        (["model=llama3_8b", "speed=1"], "speed=1: not understood"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Options.parse(main.read(arguments))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "memory", "name"),
    [
        ("NVIDIA H200", 150.1e9, "h200"),
        ("NVIDIA H100 80GB HBM3", 85.0e9, "h100"),
        ("NVIDIA A100-SXM4-80GB", 85.1e9, "a100"),
        ("NVIDIA L40S", 47.7e9, "l40s"),
        ("NVIDIA B200", 191.5e9, "b200"),
    ],
)
def test_devices_are_recognised(device: str, memory: float, name: str) -> None:
    assert gpu_named("", device, memory).name == name


@pytest.mark.parametrize(
    ("device", "memory", "message"),
    [
        ("NVIDIA H100 PCIe", 85.0e9, "variant"),
        ("NVIDIA H200 NVL", 150.0e9, "variant"),
        ("NVIDIA A100-PCIE-40GB", 42.0e9, "variant"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10.0e9, "variant"),
        ("NVIDIA A100-SXM4-40GB", 42.0e9, "of 42 GB, not a a100"),
        ("NVIDIA GeForce RTX 3090", 25.0e9, "which conf/gpu does not know"),
    ],
)
def test_other_devices_must_be_named(device: str, memory: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gpu_named("", device, memory)
    assert gpu_named("h100", device, memory).name == "h100"


def command_line(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "framework.timing.microbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=path, timeout=60)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_one_line_says_so(tmp_path: Path) -> None:
    ended = command_line("model=llama3_8b", f"out={tmp_path / 't.csv'}")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: the micro-benchmark needs PyTorch with CUDA")
    assert len(ended.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@dataclass
class NoGpu:
    """A torch without CUDA."""

    __version__ = "2.9.0+cpu"

    @property
    def cuda(self) -> NoGpu:
        return self

    def is_available(self) -> bool:
        return False


def test_without_a_gpu_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", NoGpu())
    with pytest.raises(InputError, match=r"^PyTorch 2\.9\.0\+cpu sees no CUDA GPU: .*") as caught:
        run(options(f"out={tmp_path / 't.csv'}"), measure_cuda.CudaDevice)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Tried to allocate 20 GiB", OutOfMemoryError),
        ("CUDA error: an illegal memory access was encountered", InputError),
        ("No available kernel.\n  Aborting execution.", UnsupportedError),
    ],
)
def test_errors_of_libraries_are_sorted(text: str, kind: type[Exception]) -> None:
    sorted_out = measure_cuda.refused(RuntimeError(text))
    assert type(sorted_out) is kind
    assert "\n" not in str(sorted_out)


# --- graphs of calls, on a GPU that only counts


class FakeCuda:
    """The part of torch.cuda that times calls: a clock, and graphs that know how many calls they hold.

    A call takes `call_s` on the GPU and, outside a graph, at least `host_s`.
    """

    def __init__(self, call_s: float, host_s: float) -> None:
        self.call_s, self.host_s, self.now = call_s, host_s, 0.0
        self.cuda = self
        self.graphs: list[FakeGraph] = []
        self.capturing: FakeGraph | None = None

    def call(self, weights: int) -> None:
        if self.capturing is None:
            self.now += max(self.call_s, self.host_s)
        else:
            self.capturing.calls.append(weights)

    def synchronize(self) -> None:
        pass

    def stream(self, stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        return FakeEvent(self)

    def CUDAGraph(self) -> FakeGraph:  # noqa: N802
        self.graphs.append(FakeGraph(self))
        return self.graphs[-1]

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, stream: object) -> Iterator[None]:
        self.capturing = graph
        yield
        self.capturing = None


@dataclass
class FakeEvent:
    cuda: FakeCuda
    at: float = 0.0

    def record(self) -> None:
        self.at = self.cuda.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end.at - self.at)


@dataclass
class FakeGraph:
    cuda: FakeCuda
    calls: list[int] = field(default_factory=list)

    def replay(self) -> None:
        self.cuda.now += len(self.calls) * self.cuda.call_s

    def reset(self) -> None:
        self.calls.clear()


@pytest.mark.parametrize(
    ("call_s", "host_s", "captured"),
    [
        (4e-3, 1e-5, [2]),  # two calls pass 5 ms
        (1.0, 1e-5, [1]),
        (2e-4, 1e-5, [25]),
        (2e-6, 4e-5, [125, 1024]),  # the host hides how short the call is: captured again, as often as is allowed
        (1e-5, 5e-5, [100, 500]),
    ],
)
def test_graphs_hold_as_many_calls_as_5_ms_need(
    call_s: float, host_s: float, captured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(call_s, host_s)
    monkeypatch.setattr("time.perf_counter", lambda: cuda.now)
    graph = CapturedGraph(cuda, None, Calls("kernel", cuda.call, [(0,), (1,), (2,)]))
    assert [len(made.calls) for made in cuda.graphs] == pytest.approx(captured, abs=1)
    assert cuda.graphs[-1].calls[:4] == [0, 1, 2, 0][: len(cuda.graphs[-1].calls)]
    assert graph.sample() == pytest.approx(call_s)
    assert graph.kernel == "kernel"
    graph.release()
    assert not cuda.graphs[-1].calls


# --- calls of PyTorch and attention libraries, on the CPU


def layer_case(operation: str, window: int = 0, **sizes: int) -> Case:
    shared: dict[str, str | int] = {
        "kv_dtype": "bf16",
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "window": window,
        "batch": 1,
    }
    return Case(operation, tuple({**shared, **sizes}.items()), 0, 0.0, 1.0)


ATTENTION_CASES = [
    layer_case("decode_attention", batch=3, context=32),  # whole pages
    layer_case("decode_attention", batch=5, context=20, longest=40),
    layer_case("prefill_attention", batch=2, tokens=7, prefix=0),
    layer_case("prefill_attention", batch=2, tokens=7, prefix=300),
    layer_case(MIXED, tokens=9, prefix=30, decodes=3, context=17),
    layer_case("prefill_attention", window=6, tokens=9, prefix=30),
]


def naive(torch: Any, q: Any, k: Any, v: Any, window: int) -> Any:
    """Attention of one sequence's last tokens by its definition: q (t, h, d), k and v (c, kv heads, d)."""
    k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) / q.shape[2] ** 0.5
    at = torch.arange(k.shape[0])[None, :] - (k.shape[0] - q.shape[0] + torch.arange(q.shape[0]))[:, None]
    scores[:, (at > 0) | ((at <= -window) & (window > 0))] = -float("inf")
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


class Library:
    """Stands for an attention library: takes the arguments that it documents, and computes by the definition."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def paged(self, q: Any, k: Any, v: Any, starts: Any, contexts: Any, table: Any, window: tuple[int, int]) -> Any:
        assert window[1] == 0
        assert {starts.dtype, contexts.dtype, table.dtype} == {self.torch.int32}
        outs = []
        for i, context in enumerate(contexts.tolist()):
            pages = table[i, : -(-context // k.shape[1])].long()
            keys, values = (x[pages].flatten(0, 1)[:context] for x in (k, v))
            outs.append(naive(self.torch, q[starts[i] : starts[i + 1]], keys, values, window[0] + 1))
        return self.torch.cat(outs)

    def flash_attn_varlen_func(
        self,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        causal: bool,
        window_size: tuple[int, int],
        block_table: Any,
    ) -> Any:
        assert causal
        assert k.shape[1] % 256 == 0
        assert (max_seqlen_q, max_seqlen_k) == (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
        return self.paged(q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), block_table, window_size)

    def varlen_attn_out(
        self,
        out: Any,
        query: Any,
        key: Any,
        value: Any,
        cu_seq_q: Any,
        cu_seq_k: Any,
        max_q: int,
        max_k: int,
        *,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Any,
        block_table: Any,
    ) -> Any:
        assert out.shape == query.shape
        assert enable_gqa
        assert max_k == int(seqused_k.max()) == int(cu_seq_k.diff().max())
        return self.paged(query, key, value, cu_seq_q, seqused_k, block_table, window_size)


class Flash2(Library):
    def flash_attn_with_kvcache(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        cache_seqlens: Any,
        block_table: Any,
        causal: bool,
        window_size: tuple[int, int],
    ) -> Any:
        assert causal
        assert q.shape[1] == 1
        starts = self.torch.arange(len(q) + 1).int()
        return self.paged(q[:, 0], k_cache, v_cache, starts, cache_seqlens, block_table, window_size)


class Flash3(Library):
    def flash_attn_with_kvcache(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        cache_seqlens: Any,
        page_table: Any,
        cu_seqlens_q: Any,
        max_seqlen_q: int,
        causal: bool,
        window_size: tuple[int, int],
    ) -> Any:
        assert causal
        assert max_seqlen_q == int(cu_seqlens_q.diff().max())
        return self.paged(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, window_size)


class Flash3InOnePiece(Library):
    def flash_attn_varlen_func(  # type: ignore[override]
        self,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        causal: bool,
        num_splits: int,
    ) -> Any:
        assert causal
        assert num_splits == 0
        assert k.shape == (int(cu_seqlens_k[-1]), 2, 8)
        assert (max_seqlen_q, max_seqlen_k) == (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
        bounds = zip(cu_seqlens_k[:-1].tolist(), cu_seqlens_k[1:].tolist(), strict=True)
        return self.torch.cat(
            [
                naive(self.torch, q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]], k[first:last], v[first:last], 0)
                for i, (first, last) in enumerate(bounds)
            ]
        )


class FlashInfer(Library):
    def BatchDecodeWithPagedKVCacheWrapper(self, workspace: Any, layout: str, **buffers: Any) -> FlashInfer:  # noqa: N802
        assert layout == "NHD"
        assert buffers["use_cuda_graph"]
        return FlashInfer(self.torch)

    def BatchPrefillWithPagedKVCacheWrapper(self, workspace: Any, layout: str) -> FlashInfer:  # noqa: N802
        return FlashInfer(self.torch)

    def plan(self, *arrays: Any, q_data_type: Any, kv_data_type: Any, window_left: int, causal: bool = False) -> None:
        *arrays_, heads, kv_heads, head_dim, self.page = arrays
        assert (heads, kv_heads, head_dim) == (4, 2, 8)
        assert causal == (len(arrays_) == 4)
        self.pages, self.order, last = arrays_[-3:]
        self.contexts = ((self.pages.diff() - 1) * self.page + last).int()
        self.starts = arrays_[0] if causal else self.torch.arange(len(last) + 1).int()
        self.window = window_left

    def run(self, q: Any, paged_kv_cache: tuple[Any, Any]) -> Any:
        counts = self.pages.diff().tolist()
        table = self.torch.zeros((len(counts), max(counts)), dtype=self.torch.int32)
        for row, pages in zip(table, self.order.split(counts), strict=True):
            row[: len(pages)] = pages
        return self.paged(q, *paged_kv_cache, self.starts, self.contexts, table, (self.window, 0))


def expected(torch: Any, cache: PagedCache, k: Any, v: Any) -> Any:
    table, outs, at = cache.page_table().long(), [], 0
    for i, (tokens, context) in enumerate(zip(cache.sequences.tokens, cache.sequences.contexts, strict=True)):
        keys, values = (x[table[i]].flatten(0, 1)[:context] for x in (k, v))
        outs.append(naive(torch, cache.queries[at : at + tokens], keys, values, cache.window))
        at += tokens
    return torch.cat(outs)


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
@pytest.mark.parametrize("library", ["flashinfer", "flash_2", "flash_3", "torch"])
def test_every_library_is_asked_for_the_same_attention(case: Case, library: str) -> None:
    torch = pytest.importorskip("torch")
    cache = PagedCache(torch, case, 2, 256 if library in ("flash_2", "torch") else 16, "cpu")
    assert sorted(cache.order.tolist()) == list(range(sum(cache.pages)))
    function = {
        "flashinfer": lambda: flash_infer(torch, FlashInfer(torch), cache),
        "flash_2": lambda: flash_2(Flash2(torch), cache),
        "flash_3": lambda: flash_3(Flash3(torch), cache),
        "torch": lambda: paged_torch(Library(torch).varlen_attn_out, cache),
    }[library]()
    for k, v in cache.copies:
        assert torch.equal(function(k, v), expected(torch, cache, k, v))


@pytest.mark.parametrize("case", ATTENTION_CASES[:5], ids=str)
def test_a_library_without_pages_is_asked_for_the_same_attention(case: Case) -> None:
    torch = pytest.importorskip("torch")
    cache = PagedCache(torch, case, 2, 1, "cpu")
    cache.order = cache.order.sort().values
    function = flash_3_in_one_piece(Flash3InOnePiece(torch), cache)
    for k, v in cache.copies:
        assert torch.equal(function(k, v), expected(torch, cache, k, v))
    with pytest.raises(UnsupportedError, match="a window needs"):
        flash_3_in_one_piece(None, PagedCache(torch, ATTENTION_CASES[5], 1, 1, "cpu"))


@pytest.mark.parametrize("case", [ATTENTION_CASES[0], ATTENTION_CASES[2], ATTENTION_CASES[3]], ids=str)
def test_attention_of_torch_aligns_to_the_last_token(case: Case) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    function, inputs = plain_torch(torch, case, 2, "cpu")
    torch.manual_seed(0)
    sequences = Sequences.of(case)
    queries = torch.randn((len(sequences.tokens), 4, sequences.tokens[0], 8), dtype=torch.bfloat16)  # drawn first
    for k, v in inputs:
        found: Any = function(k, v)
        for i, out in enumerate(found):
            q, keys, values = (x[i].transpose(0, 1) for x in (queries, k, v))
            assert torch.allclose(out.transpose(0, 1).float(), naive(torch, q, keys, values, 0), atol=0.03)


@pytest.mark.parametrize("case", [ATTENTION_CASES[1], ATTENTION_CASES[5]], ids=str)
def test_old_torch_refuses_what_it_cannot_do(case: Case) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match=r"torch 2\.12"):
        plain_torch(torch, case, 1, "cpu")


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_gemms_take_turns_over_their_weights(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    case = Case("gemm", (("dtype", dtype), ("m", 16), ("n", 48), ("k", 32)), 0, 0.0, 1.0)
    calls = measure_cuda.gemm_calls(torch, case, 3, "cpu")
    assert len(calls.inputs) == 3
    assert len({weights.data_ptr() for (weights,) in calls.inputs}) == 3
    first, second, again = (calls(turn).clone() for turn in (0, 1, 3))  # type: ignore[attr-defined]
    assert first.shape == (16, 48)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_fp8_needs_round_sizes() -> None:
    torch = pytest.importorskip("torch")
    case = Case("gemm", (("dtype", "fp8"), ("m", 16), ("n", 50), ("k", 32)), 0, 0.0, 1.0)
    with pytest.raises(UnsupportedError, match="multiples of 16"):
        measure_cuda.gemm_calls(torch, case, 1, "cpu")


def test_calls_cycle_through_their_inputs() -> None:
    seen: list[int] = []
    calls = Calls("kernel", seen.append, [(0,), (1,), (2,)])
    for turn in range(7):
        calls(turn)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_sequences_of_a_case() -> None:
    mixed = Sequences.of(ATTENTION_CASES[4])
    assert mixed == Sequences((9, 1, 1, 1), (39, 17, 17, 17))
    assert not mixed.are_decodes
    assert not mixed.are_alike
    uneven = Sequences.of(ATTENTION_CASES[1])
    assert uneven.are_decodes
    assert (sum(uneven.contexts), max(uneven.contexts)) == (100, 40)


def test_processes_reduce_together() -> None:
    """The processes of an all-reduce, over gloo instead of NCCL."""
    torch = pytest.importorskip("torch")
    from framework.timing.microbench.all_reduce import Group

    group = Group(torch, 2, backend="gloo")
    try:
        assert group.ask(("prepare", 4096)) == [0.0, 0.0]
        first, second = group.ask(("sample", 0))
        assert 0 < first < 10
        assert 0 < second < 10
    finally:
        group.close()
    assert not any(process.is_alive() for process in group.processes)


def test_processes_that_die_are_an_unsupported_case() -> None:
    torch = pytest.importorskip("torch")
    from framework.timing.microbench.all_reduce import Group

    group = Group(torch, 2, backend="gloo")
    for process in group.processes:
        process.terminate()
        process.join()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="the processes ended"):
            group.ask(("prepare", 4096))


# --- on a GPU


def gpu() -> Gpu | None:
    if not HAS_TORCH:
        return None
    import torch  # type: ignore[import-not-found, unused-ignore]

    if not torch.cuda.is_available():
        return None
    try:
        properties = torch.cuda.get_device_properties(0)
        return gpu_named("", torch.cuda.get_device_name(0), float(properties.total_memory))
    except InputError:
        return None


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and a GPU of conf/gpu")
@pytest.mark.parametrize("operation", ["gemm", "prefill_attention", "decode_attention"])
def test_a_gpu_is_not_faster_than_it_can_be(operation: str) -> None:
    """Weights and KV that came from the cache would show as more than the bandwidth of memory."""
    found = gpu()
    if found is None:
        pytest.skip("no GPU of conf/gpu")
    device = measure_cuda.CudaDevice()
    for case in [case for case in options("dtypes=bf16").cases() if case.operation == operation][:24:4]:
        prepared = device.prepare(case)
        measured = Repeats().time(prepared)
        prepared.release()
        assert measured.latency_s > 0.9 * max(case.flops / found.peak("bf16"), case.bytes / found.bandwidth_bytes_s)
    device.close()
