"""The formats by name, and by the beginning of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from traces.formats.agents import SCHEMA, read_dynamo
from traces.formats.aiperf import read_aiperf
from traces.formats.api_logs import body, read_openai
from traces.formats.benchmarks import read_guidellm, read_inference_perf, read_llmperf, read_vllm
from traces.formats.otel import read_otel
from traces.formats.own import read_parquet
from traces.formats.published import (
    AZURE_COLUMNS,
    BURSTGPT_COLUMNS,
    VIDUR_COLUMNS,
    read_azure,
    read_bailian,
    read_burstgpt,
    read_mooncake,
    read_vidur,
)
from traces.formats.rounds import read_tracelab
from traces.formats.tables import column_names
from traces.formats.texts import CONVERSATIONS, read_sharegpt, read_wildchat
from traces.formats.weka import read_weka
from traces.frame import Trace
from traces.parsing.csv_rows import header_names
from traces.parsing.how import How
from traces.parsing.json_records import first_records

PARQUET_MAGIC = b"PAR1"


def read_servegen(path: Path, how: How) -> Trace:
    """A folder of ServeGen clients (Xiang et al., 2025): requests drawn from their busy period."""
    from traces.drawn.servegen import busy_requests

    how.without_unit("ServeGen draws arrivals in seconds")
    return busy_requests(path, how.seed)


@dataclass(frozen=True)
class Format:
    """A file format: its reader, and its tokens per hash block."""

    read: Callable[[Path, How], Trace]
    block_tokens: int | None = None  # None: no blocks, or as the file states


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "mooncake": Format(read_mooncake, 512),
        "azure": Format(read_azure),
        "burstgpt": Format(read_burstgpt),
        "bailian": Format(read_bailian, 16),
        "vidur": Format(read_vidur),
        "servegen": Format(read_servegen),
        "parquet": Format(read_parquet),
        "vllm": Format(read_vllm),
        "guidellm": Format(read_guidellm),
        "inference_perf": Format(read_inference_perf),
        "llmperf": Format(read_llmperf),
        "aiperf": Format(read_aiperf),
        "openai": Format(read_openai),
        "dynamo": Format(read_dynamo),
        "tracelab": Format(read_tracelab, 512),
        "weka": Format(read_weka),
        "otel": Format(read_otel),
        "sharegpt": Format(read_sharegpt),
        "wildchat": Format(read_wildchat),
    }
)


def guess(data: bytes) -> str | None:
    """The format of a file by its beginning: Parquet's magic, the keys of its first JSON objects, or a CSV header."""
    names = {name.split(".")[0] for name in column_names(data)}
    if data.startswith(PARQUET_MAGIC):
        if "conversation" in names:
            return "wildchat"
        return "parquet" if not names or "arrival_s" in names else None
    if records := first_records(data):
        return next((name for record in records if (name := _of_record(record)) is not None), None)
    return guess_csv(data)


def guess_csv(data: bytes) -> str | None:
    """The format of a CSV file by its header; the rest of the file is not needed."""
    names = set(header_names(data))
    headers = {"azure": AZURE_COLUMNS, "burstgpt": BURSTGPT_COLUMNS, "vidur": VIDUR_COLUMNS}
    return next((name for name, columns in headers.items() if names.issuperset(columns)), None)


def _of_record(record: Mapping[str, Any]) -> str | None:
    names = set(record)
    about, info = record.get("metadata"), record.get("info")
    event = record["event"] if isinstance(record.get("event"), dict) else record
    shapes = {
        "vllm": names.issuperset(("input_lens", "output_lens")),
        "aiperf": isinstance(about, dict) and bool({"request_start_ns", "timestamp_ns"} & set(about)),
        "guidellm": isinstance(record.get("benchmarks"), list),
        "inference_perf": "start_time" in names
        and "prompt_tokens" not in names
        and (isinstance(info, dict) or names.issuperset(("info", "error", "end_time"))),
        "llmperf": "number_input_tokens" in names,
        "dynamo": str(event.get("schema", "")).startswith(SCHEMA),
        "tracelab": names.issuperset(("timing_events", "input_tokens_total")),
        "weka": _has_calls(record.get("requests")),
        "otel": isinstance(record.get("spans"), list)
        or "resourceSpans" in names
        or ("attributes" in names and bool(names & {"start_time", "startTimeUnixNano", "start_time_unix_nano"})),
        "sharegpt": any(_has_turns(record.get(key)) for key in CONVERSATIONS),
        "wildchat": isinstance(record.get("conversation"), list),
        "bailian": names.issuperset(("timestamp", "input_length", "output_length", "chat_id")),
        "mooncake": names.issuperset(("input_length", "output_length"))
        and bool(names & {"timestamp", "wait_for", "session_id"}),
        "openai": "usage" in body(record),
    }
    return next((name for name, is_shape in shapes.items() if is_shape), None)


def _has_turns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turn, dict) and {"from", "role"} & set(turn) for turn in value)


def _has_calls(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) and {"in", "out"} <= set(one) for one in value)


_NO_TEXT: Mapping[bytes, str] = MappingProxyType(
    {
        b"\xff\xfe": "is text in UTF-16; save it in UTF-8",
        b"\xfe\xff": "is text in UTF-16; save it in UTF-8",
        b"PK\x03\x04": "is a zip archive or a spreadsheet; give the file in it, or save the sheet as CSV",
        b"BZh": "is packed by bzip2; unpack it, or pack it by gzip or zstd",
        b"\xfd7zXZ": "is packed by xz; unpack it, or pack it by gzip or zstd",
        b"7z\xbc\xaf": "is an archive of 7-Zip; give the file in it",
        b"version https://git-lfs": "is a pointer of Git LFS, not the file; fetch it by git lfs pull",
        b"<": "is a page of HTML or XML, not a trace; was the download refused?",
    }
)


def refusal(data: bytes) -> str | None:
    """Why a file of a known shape is no trace of requests; None if unknown."""
    if (why := next((why for magic, why in _NO_TEXT.items() if data.lstrip().startswith(magic)), None)) is not None:
        return why
    record = next(iter(first_records(data)), {})
    names = set(record)
    if isinstance(record.get("requests"), list) or isinstance(record.get("sub_requests"), list):
        return "requests stand within an object: nested sessions are not read; write one request a line"
    if names.issuperset(("num_turns", "assistant_response_length")):
        return "sessions without times of arrival, a line each, are not read; write one request a line"
    if isinstance(record.get("experiments"), list):
        return (
            "perf_analyzer's profile_export.json has texts and no numbers of tokens; use AIPerf's profile_export.jsonl"
        )
    if "captureData" in names:
        return "captures of SageMaker are not read; write one request a line, with its time and its usage"
    if "resourceLogs" in names:
        return "logs of OpenTelemetry are not read; export spans, or write one request a line"
    if data.startswith((b"metadata:", b"args:", b"benchmarks:")):
        return "YAML is not read; have GuideLLM write its report as JSON"
    return _SUMMARY if _is_summary(record, data) else None


_SUMMARY = "a summary of a benchmark has no requests; give the file with one record a request"


def _is_summary(record: Mapping[str, Any], data: bytes) -> bool:
    """Whether a file has only the figures of a benchmark: vLLM's, LLMPerf, inference-perf, genai-perf, AIPerf."""
    names = set(record)
    results = record.get("results")
    return (
        (isinstance(record.get("request_throughput"), dict | int | float) and not names & {"input_lens", "usage"})
        or (isinstance(results, dict) and "results_number_input_tokens_mean" in results)
        or names.issuperset(("requests_per_second", "total_num_tokens"))
        or names.issuperset(("avg_latency", "latencies"))
        or names.issuperset(("load_summary", "successes"))
        or data.startswith(b"Metric,avg")
    )
