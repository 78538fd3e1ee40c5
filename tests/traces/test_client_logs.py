"""What clients and servers wrote down, as traces: vLLM's benchmark, AIPerf, logs of an OpenAI API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.cli.terminal import warn_once
from framework.errors import InputError
from traces import formats

VLLM: dict[str, Any] = {
    "model_id": "m",
    "input_lens": [100, 200, 300],
    "output_lens": [3, 0, 1],
    "ttfts": [0.05, 0.0, 0.25],
    "start_times": [1000.5, 0.0, 1000.0],
    "errors": ["", "Internal Server Error", ""],
}


def aiperf(start_ns: int, end_ns: int, tokens: tuple[int, int], **about: Any) -> dict[str, Any]:
    metrics = {
        "input_sequence_length": {"value": tokens[0], "unit": "tokens"},
        "output_sequence_length": {"value": tokens[1], "unit": "tokens"},
    }
    metadata = {"request_start_ns": start_ns, "request_end_ns": end_ns, "benchmark_phase": "profiling", **about}
    return {"metadata": metadata, "metrics": metrics, "error": None}


def chat(created: int, prompt: int, completion: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": created, "usage": usage}


def written(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, name: str) -> Any:
    trace = formats.read(path)
    assert trace.frame.equals(formats.read(path, name).frame)
    return trace


def test_vllm_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warn_once.cache_clear()
    trace = read(written(tmp_path, VLLM), "vllm")
    assert trace.frame.rows() == [(0.0, 300, 1), (0.5, 100, 3)]
    assert "1 of 3 requests failed; they are left out" in trace.notes
    assert f"note: trace {trace.name}: 1 of 3 requests failed; they are left out\n" in capsys.readouterr().err
    (tmp_path / "log.jsonl").write_text(json.dumps(VLLM, indent=2))
    assert formats.sniff(tmp_path / "log.jsonl") == "vllm"


def test_aiperf_leaves_out_warm_up_and_failures_and_keeps_conversations(tmp_path: Path) -> None:
    second = 10**9
    start = 1_700_000_000 * second
    rows = [
        aiperf(start - second, start, (5, 5), benchmark_phase="warmup"),
        aiperf(start, start + 2 * second, (10, 2), conversation_id="a", turn_index=0),
        aiperf(start + second, start + 3 * second, (20, 3), conversation_id="b", turn_index=0),
        aiperf(start + 5 * second // 2, start + 4 * second, (15, 4), conversation_id="a", turn_index=1),
        aiperf(start + second, start + second, (20, 3)) | {"error": {"code": 500}},
    ]
    trace = read(written(tmp_path, *rows), "aiperf")
    assert trace.frame.rows() == [
        (0.0, 10, 2, [1], 0, 0, 0.0),
        (1.0, 20, 3, [0, 2], 1, 0, 0.0),
        (2.5, 15, 4, [3], 0, 1, 0.5),
    ]
    assert trace.notes[-1] == "1 of 4 requests failed; they are left out"
    assert trace.clock.unit == "ns"


def test_logs_of_an_openai_api(tmp_path: Path) -> None:
    response = {"created_at": 1003, "usage": {"input_tokens": 7, "output_tokens": 9}}
    batch = {"custom_id": "1", "response": {"status_code": 200, "body": chat(1001, 5, 6)}, "error": None}
    refused = {"custom_id": "2", "response": {"status_code": 400, "body": {"error": {"message": "no"}}}}
    trace = read(written(tmp_path, chat(1000, 3, 4), response, batch, refused), "openai")
    assert trace.frame.rows() == [(0.0, 3, 4), (1.0, 5, 6), (3.0, 7, 9)]
    assert trace.notes[-1] == "1 of 4 requests failed; they are left out"


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("vllm", {key: value for key, value in VLLM.items() if key != "input_lens"}, "no list input_lens; vllm"),
        ("vllm", VLLM | {"input_lens": [1]}, "input_lens has 1"),
        ("vllm", VLLM | {"start_times": [0, 0, "x"]}, 'request 3: start_times is "x"'),
        ("aiperf", aiperf(0, 1, (0, 1)), "no request has finished .1 of 1 requests have 0 tokens"),
        ("aiperf", {"created": 1}, "no metadata, as profile_export"),
        ("openai", chat(1, 1, 1) | {"created": "soon"}, 'line 1: created is "soon"'),
        ("openai", chat(1, 1, 1) | {"usage": "much"}, 'usage is "much", must be an object'),
        ("openai", {"created": 1}, "no request has finished .1 of 1 records have no usage"),
        ("openai", aiperf(0, 1, (1, 1)), "looks like trace.format=aiperf"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(name: str, row: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        formats.read(written(tmp_path, row), name)
    assert "\n" not in str(caught.value)
