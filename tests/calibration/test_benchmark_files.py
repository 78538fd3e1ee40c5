"""Files of measured requests: what is read from them, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.calibration.benchmark_files import read_benchmark
from framework.calibration.replay import sent_again
from framework.errors import InputError

# What `vllm bench serve --save-result --save-detailed` writes of three requests, the second of which failed.
VLLM: dict[str, Any] = {
    "date": "20260101-000000",
    "endpoint_type": "openai",
    "backend": "openai",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 3,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 2,
    "duration": 1.5,
    "completed": 2,
    "failed": 1,
    "input_lens": [100, 200, 300],
    "output_lens": [3, 0, 1],
    "ttfts": [0.05, 0.0, 0.25],
    "itls": [[0.01, 0.03], [], []],
    "start_times": [1000.5, 0.0, 1000.0],
    "generated_texts": ["a b c", "", "d"],
    "errors": ["", "Internal Server Error", ""],
}
HEADER = "start_s,input_tokens,output_tokens,ttft_s,e2e_s\n"


def written(tmp_path: Path, content: Any, name: str = "bench.json") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_vllm_file(tmp_path):
    benchmark = read_benchmark(written(tmp_path, VLLM))
    assert benchmark.input_tokens.tolist() == [300, 100]  # in the order of their sending
    assert benchmark.output_tokens.tolist() == [1, 3]
    assert benchmark.start_s is not None
    assert benchmark.start_s.tolist() == [0.0, 0.5]
    assert benchmark.ttft_s.tolist() == [0.25, 0.05]
    np.testing.assert_allclose(benchmark.tpot_s, [np.nan, 0.02])
    np.testing.assert_allclose(benchmark.e2e_s, [0.25, 0.09])
    assert (benchmark.concurrency, benchmark.rate, benchmark.duration_s) == (2, math.inf, 1.5)
    assert benchmark.failed == 1
    assert benchmark.notes == ("1 of 3 requests failed; they are left out",)
    assert benchmark.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert len(benchmark.sha256) == 64


def test_older_vllm_file_has_no_start_times(tmp_path):
    older = {key: value for key, value in VLLM.items() if key not in ("start_times", "errors", "failed")}
    benchmark = read_benchmark(written(tmp_path, older | {"request_rate": 4.0, "max_concurrency": None}))
    assert benchmark.start_s is None
    assert benchmark.input_tokens.tolist() == [100, 300]  # the second has no output, so it failed
    assert (benchmark.concurrency, benchmark.rate) == (None, 4.0)


def test_tokens_that_came_at_once_tell_no_tpot(tmp_path):
    benchmark = read_benchmark(written(tmp_path, VLLM | {"itls": [[], [], []]}))
    assert np.isnan(benchmark.tpot_s).all()
    assert "1 requests got all their tokens at once" in benchmark.notes[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input_lens": None}, "no list input_lens; run vllm bench serve with --save-result --save-detailed"),
        ({"ttfts": [0.05, 0.0]}, "ttfts has 2 entries, input_lens has 3"),
        ({"ttfts": [0.05, 0.0, 0.0]}, r"request 3: ttfts must be above 0, got 0.0"),
        ({"ttfts": [0.05, 0.0, math.nan]}, "request 3: ttfts must be a finite number, got nan"),
        ({"ttfts": ["soon", 0.0, 0.25]}, "request 1: ttfts must be a finite number, got 'soon'"),
        ({"itls": [[0.01, -1.0], [], []]}, "request 1: itls must be at least 0, got -1.0"),
        ({"itls": [0.01, [], []]}, "request 1: itls must be a list of seconds, got 0.01"),
        ({"input_lens": [100, 200, 0]}, "request 3: input_lens must be at least 1, got 0"),
        ({"output_lens": [2.5, 0, 1]}, "request 1: output_lens must be a whole number, got 2.5"),
        ({"output_lens": [True, 0, 1]}, "request 1: output_lens must be a finite number, got True"),
        ({"start_times": [1.0, 0.0, math.inf]}, "request 3: start_times must be a finite number, got inf"),
        ({"output_lens": [0, 0, 0]}, "none of its 3 requests was served"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1, got 0"),
        ({"request_rate": -1}, "request_rate must be above 0, got -1"),
        ({"burstiness": 0}, "burstiness must be above 0, got 0"),
        ({"duration": "long"}, "duration must be a finite number, got 'long'"),
    ],
)
def test_bad_vllm_files(tmp_path, change, reason):
    with pytest.raises(InputError, match=rf"bench.json.*{reason}"):
        read_benchmark(written(tmp_path, VLLM | change))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the file is empty"),
        ("{}", "no list input_lens, output_lens, ttfts, itls"),
        ("[1]", "must hold one JSON object"),
        ('{"a": 1,\n ?}', "line 2: is not JSON"),
        ('{"a": 1}\n{"a": 2}', "holds several results .* keep one a file"),
    ],
)
def test_what_is_no_result(tmp_path, content, reason):
    with pytest.raises(InputError, match=reason):
        read_benchmark(written(tmp_path, content))


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json: cannot be read"):
        read_benchmark(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a text file"):
        read_benchmark(tmp_path / "binary")


def test_csv(tmp_path):
    text = (
        "\ufeff"
        + HEADER.replace("e2e_s", "e2e_s,error")
        + "20, 300,1,0.25,0.25,\n10,100,3,0.05,0.09,\n12,5,1,,,timeout\n"
    )
    benchmark = read_benchmark(written(tmp_path, text, "log.csv"))
    assert benchmark.start_s is not None
    assert benchmark.start_s.tolist() == [0.0, 10.0]
    assert benchmark.input_tokens.tolist() == [100, 300]
    np.testing.assert_allclose(benchmark.tpot_s, [0.02, np.nan])
    np.testing.assert_allclose(benchmark.e2e_s, [0.09, 0.25])
    assert benchmark.failed == 1
    assert (benchmark.concurrency, benchmark.rate, benchmark.duration_s) == (None, None, None)


def test_csv_with_tpot_and_without_times(tmp_path):
    text = "input_tokens,output_tokens,ttft_s,tpot_s,colour\n100,3,0.05,0.02,red\n300,1,0.25,,blue\n"
    benchmark = read_benchmark(written(tmp_path, text, "log.csv"))
    assert benchmark.start_s is None
    np.testing.assert_allclose(benchmark.tpot_s, [0.02, np.nan])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("input_tokens,output_tokens,ttft_s\n", "no column e2e_s or tpot_s in its header"),
        ("start_s,output_tokens,e2e_s\n", "no column input_tokens, ttft_s in its header"),
        (HEADER, "none of its 0 requests was served"),
        (HEADER + "0,100,3,0.05,0.09\n0,100,3,0.05\n", "line 3: has another number of cells than the header's 5"),
        (HEADER + "0,100,3,0.05,0.09,1\n", "line 2: has another number of cells"),
        (HEADER + "0,100,3,0.05,0.04\n", "line 2: e2e_s must be at least 0.05, got '0.04'"),
        (HEADER + "0,100,3,,0.04\n", "line 2: ttft_s must be a finite number, got ''"),
        (HEADER + "0,100,3,-1,0.04\n", "line 2: ttft_s must be above 0, got '-1'"),
        (HEADER + "0,1e2,x,0.05,0.09\n", "line 2: output_tokens must be a finite number, got 'x'"),
        (HEADER + "now,100,3,0.05,0.09\n", "line 2: start_s must be a finite number, got 'now'"),
        (HEADER + "0,100.5,3,0.05,0.09\n", "line 2: input_tokens must be a whole number, got '100.5'"),
    ],
)
def test_bad_csv(tmp_path, text, reason):
    with pytest.raises(InputError, match=f"log.csv.*{reason}"):
        read_benchmark(written(tmp_path, text, "log.csv"))


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


ROW = {"input_tokens": 40, "output_tokens": 3, "ttft_s": 0.5, "e2e_s": 0.7}


def test_jsonl_has_the_names_of_a_csv_and_the_blocks_of_prompts(tmp_path: Path) -> None:
    later, gone = ROW | {"start_s": 9.0, "hash_ids": [1, 3]}, {"error": "gone"}
    file = jsonl(tmp_path / "own.jsonl", later, gone, ROW | {"start_s": 8.0, "hash_ids": [1, 2]})
    found = read_benchmark(file)
    assert found.start_s is not None
    assert found.start_s.tolist() == [0.0, 1.0]
    assert found.hash_ids == ((1, 2), (1, 3))  # in the order of sending
    assert found.failed == 1
    assert found.tpot_s == pytest.approx([0.1, 0.1])
    sent = sent_again(found, "recorded").workload
    assert [sent.hash_ids_of(r).tolist() for r in range(2)] == [[1, 2], [1, 3]]
    assert sent.hash_block_tokens == 16


def test_blocks_in_a_csv_stand_between_blanks(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("input_tokens,output_tokens,ttft_s,e2e_s,hash_ids\n40,3,0.5,0.7,4 5\n20,1,0.5,0.5,\n")
    assert read_benchmark(file).hash_ids == ((4, 5), ())


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([ROW, ROW | {"hash_ids": [1]}], "only 1 of 2 requests have hash_ids"),
        ([ROW | {"hash_ids": [1.5]}], "line 1: hash_ids must be whole numbers"),
        ([ROW | {"hash_ids": 7}], "line 1: hash_ids must be whole numbers, one for each block"),
        ([ROW, {"input_tokens": 3}], "line 2: no output_tokens, ttft_s, e2e_s or tpot_s"),
        ([ROW | {"ttft_s": 0}], "line 1: ttft_s must be above 0"),
    ],
)
def test_jsonl_that_cannot_be(tmp_path: Path, rows: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_benchmark(jsonl(tmp_path / "own.jsonl", *rows))


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "own.jsonl", ROW)
    file.write_text(file.read_text() + "{oops\n")
    with pytest.raises(InputError, match="line 2: is not JSON"):
        read_benchmark(file)
