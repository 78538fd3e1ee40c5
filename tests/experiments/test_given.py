"""The command that puts measured rows of files next to runs with default settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.validation.fidelity.online import Figures, read_stages, replayed
from experiments.validation.given.command import judge, main, read
from experiments.validation.given.offline_file import Offline, read_offline_file
from experiments.validation.given.replay import Judged, judge_offline
from experiments.validation.given.report import mean_error
from experiments.validation.given.stage_file import known_model, read_stage_file
from framework.errors import InputError

FIRST = read_stages()[0]
QUANTILES = {"p10": 20.0, "mean": 25.0, "median": 24.0, "p90": 28.0, "p95": 31.0, "p99": 46.0}
ENTRY: Mapping[str, Any] = {
    "run": "20260217-155451",
    "stage": 0,
    "model": "llama-2-7b",
    "gpu": "H100 SXM 80GB",
    "tp": 1,
    "engine": "vLLM 0.15.1 default arguments",
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "rate_per_s": 5,
    "requests": 60,
    "system_prompts": 11,
    "users_per_system_prompt": 4,
    "system_prompt_tokens": 100,
    "prompt_tokens": {"p10": 585.0, "median": 591.0, "p90": 600.0},
    "output_tokens_asked": 247,
    "ttft_s": {name: value / 1e3 for name, value in QUANTILES.items()},
    "e2e_s": {name: value / 10 for name, value in QUANTILES.items()},
}
OFFLINE = """# measured by nobody
server,model,gpu,tp,settings,input_tokens,output_tokens,requests,figure,measured
vllm,llama3_8b,h100,1,model.dtype=fp8 engine.max_batch=64,128,64,64,e2e_s,0.5
trtllm,llama3_70b,h200,2,model.dtype=fp8 model.kv_dtype=fp8,128,64,200,tokens_per_s_gpu,2000
"""
MEASURED = os.environ.get("MEASURED_DIR")
at_hand = pytest.mark.skipif(MEASURED is None, reason="MEASURED_DIR is not set: no measured stages at hand")


def written(tmp_path: Path, **changes: Any) -> Path:
    """A file of one stage, with changes; a value of None drops the key."""
    entry = {key: value for key, value in {**ENTRY, **changes}.items() if value is not None}
    (tmp_path / "stages.json").write_text(json.dumps({"source": "nobody", "stages": [entry]}))
    return tmp_path / "stages.json"


def test_a_stage_of_a_file_is_the_one_of_the_table(tmp_path: Path) -> None:
    lengths = {"p10": 584.9, "median": 591.0, "p90": 600.0, "p99": 603.01}
    (stage,) = read_stage_file(written(tmp_path, requests=3000, prompt_tokens=lengths), {})
    of_server = ("model", "gpu", "tp", "backend", "version", "max_batch", "token_budget", "rate_rps", "requests")
    of_prompts = ("system_prompts", "users", "system_tokens", "prompt_tokens_p10", "prompt_tokens_p90", "output_tokens")
    for name in (*of_server, *of_prompts):
        assert getattr(stage, name) == getattr(FIRST, name), name
    figures = Figures.measured(stage)
    assert (figures.ttft_ms_mean, figures.ttft_ms_p50) == pytest.approx((25.0, 24.0))
    assert (figures.ttft_ms_p90, figures.ttft_ms_p99) == pytest.approx((28.0, 46.0))
    assert figures.tpot_ms_mean == pytest.approx((2500.0 - 25.0) / 246)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("mixtral-8x7b-v0.1", "mixtral_8x7b"),
        ("CodeLlama-34b-hf", "codellama_34b"),
        ("llama-2-70b", "llama2_70b"),
        ("Qwen3_32B", "qwen3_32b"),
    ],
)
def test_models_are_known_by_their_letters(theirs: str, ours: str) -> None:
    assert known_model(theirs) == ours


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "grok-2"}, "grok-2"),
        ({"rate_per_s": 0}, "rate_per_s must be a positive number"),
        ({"requests": 2.5}, "requests must be a whole number"),
        ({"tp": True}, "tp must be a whole number"),
        ({"engine": "llama.cpp b1"}, "llama.cpp"),
        ({"ttft_s": None}, "'ttft_s' is missing"),
        ({"ttft_s": [1]}, "no file of stages"),
        ({"e2e_s": {"mean": 1.0}}, "'median' is missing"),
    ],
)
def test_a_file_that_is_no_file_of_stages_is_refused_in_a_line(
    tmp_path: Path, changes: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, **changes)
    assert main.finish([str(path)], "given") == 2
    said = capsys.readouterr().err
    assert words in said
    assert "stages.json" in said
    assert said.count("\n") == 1


def test_a_model_of_another_name_is_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path, model="the-old-one")
    with pytest.raises(InputError, match="models=the-old-one:NAME"):
        read([str(path)], {})
    ((stage,), _) = read([str(path)], {"the-old-one": "llama2_7b"})
    assert stage.model == "llama2_7b"


def test_offline_rows_become_settings_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "offline.csv").write_text(OFFLINE)
    first, second = read_offline_file(tmp_path / "offline.csv")
    assert first.overrides == (
        *("policy=vllm_v1", "timing.backend=vllm", "model=llama3_8b", "gpu=h100", "cluster.tp=1"),
        *("model.dtype=fp8", "engine.max_batch=64"),
    )
    assert "server=trtllm" in second.overrides
    assert (second.input_tokens, second.requests, second.measured) == (128, 200, 2000.0)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("trtllm,", "triton,", "row 2: server"),
        (",64,e2e_s", ",0,e2e_s", "row 1: requests"),
        ("e2e_s,0.5", "e2e_s,-1", "row 1: measured"),
        ("figure,measured", "figure,of_it", "no table of offline rows"),
        ("e2e_s,0.5", "seconds,0.5", "row 1: figure"),
    ],
)
def test_a_table_that_is_none_of_offline_rows_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in OFFLINE
    (tmp_path / "offline.csv").write_text(OFFLINE.replace(old, new))
    with pytest.raises(InputError, match=words):
        read_offline_file(tmp_path / "offline.csv")


def test_requests_sent_at_once_take_their_steps_and_tokens_are_counted_by_gpu() -> None:
    by_time = Offline("vllm", "llama3_8b", "h100", 2, "", 16, 5, 8, "e2e_s", 1.0)
    by_tokens = Offline("vllm", "llama3_8b", "h100", 2, "", 16, 5, 8, "tokens_per_s_gpu", 1.0)
    seconds, tokens = judge_offline(by_time, ()), judge_offline(by_tokens, ())
    assert tokens.predicted == pytest.approx(8 * 5 / seconds.predicted / 2)  # all end at once, on two GPUs
    one_by_one = judge_offline(by_time, ("engine.max_batch=1",))
    assert one_by_one.predicted > seconds.predicted


def test_errors_are_signed_and_their_mean_is_not() -> None:
    rows = [Judged("a", "e2e_s", 12.0, 10.0, 12.0, 12.0), Judged("b", "e2e_s", 6.0, 10.0, 6.0, 6.0)]
    assert [one.error for one in rows] == pytest.approx([20.0, -40.0])
    assert mean_error(rows) == pytest.approx(30.0)


def test_the_command_prints_and_writes_what_a_replay_of_the_defaults_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = written(tmp_path)
    (tmp_path / "offline.csv").write_text(OFFLINE)
    out = tmp_path / "out" / "figures.csv"
    out.parent.mkdir()
    assert main.finish([str(path), str(tmp_path / "offline.csv"), f"out={out}", "draws=3"], "given") == 0
    printed = capsys.readouterr().out
    assert "llama2_7b tp1 5/s" in printed
    assert "trtllm llama3_70b h200 tp2 128/64" in printed
    (stage,) = read_stage_file(path, {})
    lines = [line.split(",") for line in out.read_text().splitlines()]
    assert lines[0] == ["row", "figure", "predicted", "measured", "error_percent", "least", "most"]
    assert len(lines) == 1 + 5 + 2
    least, middle, most = sorted(
        replayed(stage, None, ("server.jitter=1",), draw=draw).ttft_ms_p99 for draw in range(3)
    )
    assert float(lines[4][2]) == pytest.approx(middle, rel=1e-5)
    assert float(lines[4][3]) == pytest.approx(46.0)
    assert [float(word) for word in lines[4][5:]] == pytest.approx([least, most], rel=1e-5)
    assert least < middle < most


def test_settings_of_the_command_line_hold_for_every_row(tmp_path: Path) -> None:
    ((stage,), _) = read([str(written(tmp_path))], {})
    ((slow, *_),) = judge([stage], [], ("server.request_s=1.0", "timing.calibrated=false"), draws=1)
    assert slow.predicted > 1000


def test_a_directory_is_read_whole_and_an_empty_one_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        read([str(tmp_path)], {})
    written(tmp_path)
    (tmp_path / "offline.csv").write_text(OFFLINE)
    (tmp_path / "README.md").write_text("nothing")
    stages, rows = read([str(tmp_path)], {})
    assert (len(stages), len(rows)) == (1, 2)
    with pytest.raises(InputError, match="neither"):
        read([str(tmp_path / "README.md")], {})


@at_hand
def test_measured_stages_are_met_in_the_median_and_the_mean() -> None:
    stages, _ = read([str(MEASURED)], {})
    judged = judge(stages, [], (), draws=1)
    by_figure = {column[0].figure: mean_error(column) for column in zip(*judged, strict=True)}
    assert by_figure["ttft_ms_p50"] < 5
    assert by_figure["tpot_ms_mean"] < 5
