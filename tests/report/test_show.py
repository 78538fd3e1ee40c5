"""One step shown: the reference points, the figures of merit, the command line."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from rich.console import Console

from framework.cli.launch import USER_ERROR
from framework.report import show_step as command
from framework.report.show_step import parse_step, run
from framework.report.step_figures import StepFigures, step_figures
from framework.report.step_table import step_table
from framework.system.model import Experts
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration, Fit, calibration_path, write_calibrations
from framework.timing.flops import Chunk, Step, flops, moved_bytes
from framework.timing.measured import Measured
from framework.timing.overheads import WaveQuantization
from framework.timing.roofline import Roofline
from framework.timing.table import stack, step_s
from tests.helpers.launcher import typed
from tests.helpers.parts import load, made_up, put

DECODES = [f"decode={batch}x{context}" for context in (512, 4096) for batch in (1, 16, 64, 256)]
# H100, vLLM 0.24.0, bf16, in ms: two independent compositions of the same kernel tables agree on these within 2 %, but
# for the last of each line, whose contexts end beyond its batch's: there the other one holds the utilisation.
REFERENCE = {
    "model=llama3_8b tp=1": (43.3, 6.2, 7.0, 8.9, 14.8, 6.3, 10.1, 18.0, 54.2),
    "model=llama3_8b tp=4": (19.5, 2.7, 3.0, 3.5, 6.0, 2.8, 3.7, 6.2, 15.2),
    "model=llama3_70b tp=4": (129.9, 14.9, 16.3, 17.5, 27.2, 15.1, 18.1, 24.1, 52.2),
}
POINTS = [
    (setup, step, expected)
    for setup, times in REFERENCE.items()
    for step, expected in zip(("prefill=2048", *DECODES), times, strict=True)
]


@functools.cache
def asked(arguments: str) -> StepFigures:
    return run(command.main.read(["gpu=h100", *arguments.split()]))


# --- reference points -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setup", "step", "expected_ms"), POINTS)
def test_reference_points(setup: str, step: str, expected_ms: float) -> None:
    rounding = 0.05 / expected_ms  # they are given with one decimal
    within = 0.03 if step != DECODES[-1] else 0.04
    assert asked(f"{setup} {step}").step_ms == pytest.approx(expected_ms, rel=within + rounding)


def test_reference_mfu() -> None:
    assert asked("model=llama3_8b prefill=2048").mfu == pytest.approx(0.69, abs=0.01)
    assert asked("model=llama3_70b tp=4 prefill=2048").mfu == pytest.approx(0.56, abs=0.01)


def test_only_what_no_gpu_holds_is_extrapolated() -> None:
    for setup, step, _ in POINTS:
        shown = asked(f"{setup} {step}")
        assert shown.extrapolated == ((setup, step) == ("model=llama3_8b tp=1", "decode=256x4096")), (setup, step)
    shown = asked("model=llama3_8b decode=256x4096")
    assert shown.extrapolation > 1.5
    assert shown.beyond_what == "256 decodes of 4,096 tokens"


# --- figures --------------------------------------------------------------------------------------------------------


def test_flops_and_bytes_of_a_prefill() -> None:
    model = load("model", "llama3_8b")
    weights = 32 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14336 + 2 * 4096) + 4096
    step = Step((Chunk(1000, prefix=3000),))
    assert flops(model, step) == 2 * weights * 1000 + 4 * 32 * 32 * 128 * (4000**2 - 3000**2) / 2
    kv = 2 * 32 * 8 * 128 * 2
    assert moved_bytes(model, Parallelism(tp=4), step) == 2 * (weights + 128256 * 4096) + kv * (4000 + 1000)


def test_flops_and_bytes_of_a_decode() -> None:
    model = load("model", "llama3_8b")
    step = Step(batch=8, context=500)
    assert flops(model, step) == 2 * model.active_parameters * 8 + model.attention_flops_per_pair * 4000
    plain = moved_bytes(model, Parallelism(), step)
    assert plain == 2 * (model.shared_parameters + model.output_parameters) + model.kv_bytes_per_token * 4008
    copied = moved_bytes(model, Parallelism(dp=2), step)
    assert copied - plain == 2 * (model.shared_parameters + model.output_parameters)


def test_only_experts_that_are_chosen_are_read() -> None:
    model = load("model", "mixtral_8x7b")
    assert model.experts == Experts(count=8, per_token=2, intermediate=14336)
    one, many = (moved_bytes(model, Parallelism(), Step(batch=batch, context=1)) for batch in (1, 1000))
    kv = 2 * 1000 * model.kv_bytes_per_token - 2 * model.kv_bytes_per_token
    assert many - one - kv == pytest.approx(2 * model.expert_parameters * 3 / 4)


def test_windows_bound_what_is_read() -> None:
    model = load("model", "gpt_oss_120b")
    short, long = (moved_bytes(model, Parallelism(), Step(batch=1, context=context)) for context in (1000, 2000))
    assert long - short == 1000 * model.kv_bytes_per_token  # of the layers without a window alone


def made(step: Step, **more: Any) -> StepFigures:
    model, gpu = load("model", "llama3_8b"), load("gpu", "h100")
    return step_figures(model, gpu, Parallelism(), Roofline(**more), step)


def test_figures_follow_from_their_definitions() -> None:
    shown = made(Step(batch=64, context=4096))
    seconds = shown.step_ms / 1e3
    assert shown.mfu == pytest.approx(shown.flops / seconds / 989e12)
    assert shown.mbu == pytest.approx(shown.moved_bytes / seconds / 3.35e12)
    assert shown.intensity == pytest.approx(shown.flops / shown.moved_bytes)
    assert shown.ridge == pytest.approx(989e12 / 3.35e12)
    assert shown.attainable_flops == pytest.approx(3.35e12 * shown.intensity)
    assert shown.bound == "memory"
    assert sum(shown.parts_ms.values()) == shown.step_ms
    assert made(Step((Chunk(4096),))).bound == "compute"


def test_a_roofline_without_losses_is_fully_used() -> None:
    ideal: dict[str, Any] = {"mfu": 1.0, "mbu": 1.0, "overhead_s": 0.0}
    assert made(Step((Chunk(8192),)), **ideal).mfu == pytest.approx(1.0, abs=0.02)
    assert made(Step(batch=1, context=2), **ideal).mbu == pytest.approx(1.0, abs=0.01)


def test_calibrated_times_are_named_and_asked_for(tmp_path: Any) -> None:
    put(tmp_path, "llama3_8b", "h100", "own", made_up())
    write_calibrations(calibration_path(tmp_path, "h100", "own"), [Fit(Calibration(kernel=0.5, step_s=1e-3))])
    arguments = f"backend=own timing.profiles={tmp_path} prefill=2048"
    plain, calibrated = asked(arguments), asked(f"{arguments} calibrated=true")
    assert plain.step_ms == plain.kernels_ms == calibrated.kernels_ms
    assert calibrated.step_ms == calibrated.calibrated_ms == plain.calibrated_ms
    assert plain.source == "measured (h100, own 0.1)"
    assert calibrated.source == "measured (h100, own 0.1, calibrated)"
    communication = plain.parts_ms["communication"]
    expected = 0.5 * (plain.step_ms - communication) + communication + 1.0
    assert calibrated.step_ms == pytest.approx(expected, rel=1e-9)


def test_parts_and_step_are_what_the_engine_reads() -> None:
    shown = asked("model=llama3_8b prefill=2x700@300 decode=20x900")
    row = Measured(calibrated=False).row(load("model", "llama3_8b"), load("gpu", "h100"), Parallelism())
    expected = step_s(stack([row]), 0, [300, 300], [700, 700], 20, 18_000)
    assert shown.step_ms == pytest.approx(1e3 * expected, rel=1e-12)


def test_waste_of_short_chunks_is_in_the_parts() -> None:
    """A step of any source takes what the engine reads, the ratio of its short chunks included."""
    timing = WaveQuantization(Roofline(), 64, {"a100": 216})
    instance = load("model", "llama3_8b"), load("gpu", "a100"), Parallelism()
    figures = step_figures(*instance, timing, Step((Chunk(600, prefix=1200),)))
    expected = step_s(stack([timing.row(*instance)]), 0, [1200], [600], 0, 0)
    assert figures.step_ms == pytest.approx(1e3 * expected, rel=1e-12)
    plain = step_figures(*instance, Roofline(), Step((Chunk(600, prefix=1200),)))
    assert figures.parts_ms["prefill_attention"] > 1.05 * plain.parts_ms["prefill_attention"]


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefill", "decode", "step"),
    [
        ("2048", None, Step((Chunk(2048),))),
        ("2_048@6,144", None, Step((Chunk(2048, 6144),))),
        ("3x100@0", None, Step((Chunk(100),) * 3)),
        (None, "64x4096", Step((), 64, 4096)),
        ("512", "8x10", Step((Chunk(512),), 8, 10)),
    ],
)
def test_steps_are_understood(prefill: str | None, decode: str | None, step: Step) -> None:
    understood = parse_step(prefill, decode)
    assert (tuple(understood.chunks), understood.batch, understood.context) == (
        tuple(step.chunks),
        step.batch,
        step.context,
    )


MISTAKES = {
    "": "which step?",
    "prefill=0": "prefill must be a whole number from 1",
    "prefill=many": "'many'",
    "prefill=1@x": "prefix must be",
    "prefill=99999999999999999999": "1,000,000,000",
    "prefill=1000000x1": "count must be a whole number from 1 to 100,000",
    "decode=64": "BATCHxCONTEXT, as in 64x4096",
    "decode=0x5": "decode: batch",
    "prefil=3": "prefil=3: not understood; give any of model=, gpu=",
    "prefill=1 prefill=2": "given twice",
    "prefill": "written prefill=VALUE",
    "prefill=1 model=absent": "model=absent: there is no model of that name; choose one of",
    "prefill=1 gpu=gtx": "gpu=gtx: there is no gpu",
    "prefill=1 dtype=fp7": "model.dtype must be one of",
    "prefill=1 tp=3": "tp = 3 does not divide the 32 heads of llama3_8b",
    "prefill=1 tp=16": "python -m framework.timing.kernels.build model=llama3_8b gpu=h100 backend=vllm tp=16",
    "prefill=1 backend=absent": "no measured times for llama3_8b on h100, absent",
    "prefill=1 calibrated=maybe": "calibrated must be true or false",
    "decode=1x1 tp=2 ep=3": "ep = 3 does not divide",
    "prefill=1 model.layers=16": "layers = 32, this one has 16",
    "prefill=1 timing.profiles=/absent": "no such directory",
    "prefill=1 timing=roofline timing.mfu=3": "timing.mfu",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("timing")(arguments.split()) == USER_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert MISTAKES[arguments] in err


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    typed("timing")(["model=llama3_8b", "prefill=2048", "json=true"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["step_ms"] == pytest.approx(sum(shown["parts_ms"].values()))
    assert isinstance(shown["parts_ms"], dict)
    assert shown["extrapolated"] is False
    for key in ("mfu", "mbu", "intensity"):
        assert isinstance(shown[key], float)
    assert shown["source"] == "measured (h100, vllm 0.24.0)"
    assert shown["prefill"] == [{"tokens": 2048, "prefix": 0}]


def test_help_is_the_module_s(capsys: pytest.CaptureFixture[str]) -> None:
    typed("timing")(["--help"])
    assert "prefill=  " in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize(
    "arguments",
    [
        "prefill=2048",
        "decode=1x1",
        "prefill=512@8000 decode=64x4096 dtype=fp8",
        "gpu=l20 decode=256x4096",
        "timing=roofline prefill=1",
        "model=deepseek_v3 gpu=h200 tp=8 backend=sglang decode=64x1000",
        "model=gpt_oss_120b tp=2 prefill=100000",
    ],
)
def test_the_table_fits_and_marks_the_step(arguments: str, width: int) -> None:
    shown = run(command.main.read(arguments.split()))
    console = Console(width=width, record=True, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(step_table(shown))
    text = console.export_text()
    assert text.count("●") == 1
    assert ("extrapolated" in text) == shown.extrapolated
    assert ("not measured on l20: scaled from l40s" in text.replace("\n", " ")) == (shown.gpu == "l20")
    assert f"{shown.bound}-bound" in text
    assert "nan" not in text
