"""Records of benchmark clients: vLLM's and SGLang's, GuideLLM, inference-perf and LLMPerf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.checks import is_number
from framework.errors import InputError, shown
from traces.formats.sent import DrawnArrivals, Sent, is_empty, lengths, time, time_if, trace_of
from traces.frame import Trace
from traces.parsing.how import How
from traces.parsing.json_records import records, value_at, values
from traces.parsing.left_out import Left

_LISTS = ("input_lens", "output_lens", "start_times")


def read_vllm(path: Path, how: How) -> Trace:
    """JSON of `vllm bench serve --save-result --save-detailed`, and of SGLang's bench_serving with --output-details.

    input_lens, output_lens, errors, and start_times in s. Without these (SGLang, older vLLM) arrivals are drawn at the
    requested request_rate, or at the achieved rate if all were sent as fast as possible.
    """
    result = how.chosen(path, values(path), "--append-result")
    columns = _columns(path, result)

    def one(where: str, k: int) -> Sent | Left:
        if columns["errors"][k]:
            return Left.FAILED
        tokens = columns["input_lens"][k], columns["output_lens"][k]
        if is_empty(*tokens):
            return Left.FAILED  # a request without a token has failed, even if its record says otherwise
        start = None if columns["start_times"] is None else time(where, "start_times", columns["start_times"][k])
        return Sent(start, *lengths(where, *tokens))

    places = ((f"{path}, request {k + 1}", k) for k in range(len(columns["input_lens"])))
    return trace_of(path, how, "s", places, one, _rate(result))


def _columns(path: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """The lists with an entry for each request; `start_times` None and `errors` empty texts if there are none."""
    lists = {name: result.get(name) for name in _LISTS if name != "start_times" or result.get(name)}
    for name, value in lists.items():
        if not isinstance(value, list) or not value:
            raise InputError(
                f"{path}: no list {name}; vllm bench serve writes it with --save-result --save-detailed, SGLang's"
                " bench_serving with --output-details"
            )
    errors = result.get("errors") or []
    if not isinstance(errors, list):
        raise InputError(f"{path}: errors is {shown(errors)}, must be a list")
    counts = {name: len(value) for name, value in lists.items() if value is not None}
    if len(set(counts.values())) > 1:
        raise InputError(f"{path}: {', '.join(f'{name} has {count}' for name, count in counts.items())} entries")
    total = counts["input_lens"]
    return {"start_times": None, **lists, "errors": (errors + [""] * total)[:total]}


def _rate(result: Mapping[str, Any]) -> DrawnArrivals:
    """The rate at which to draw arrivals, and its origin."""
    for name in ("request_rate", "request_throughput"):
        value = result.get(name)
        if is_number(value) and value is not None and value > 0:
            return DrawnArrivals(float(value), f", its {name}")
    return DrawnArrivals()


def read_guidellm(path: Path, how: How) -> Trace:
    """GuideLLM's benchmarks.json: the successful requests of one of its benchmarks, each a rate of a sweep."""
    results = [
        benchmark
        for report in values(path)
        for benchmark in report.get("benchmarks") or ()
        if isinstance(benchmark, dict) and isinstance(benchmark.get("requests"), dict)
    ]
    if not results:
        raise InputError(f"{path}: no benchmark with its requests; GuideLLM writes them into benchmarks.json")
    requests = how.chosen(path, results, "benchmarks, one a rate")["requests"]
    listed = {name: requests.get(name) or [] for name in ("successful", "errored", "incomplete")}
    if not all(isinstance(rows, list) for rows in listed.values()):
        raise InputError(f"{path}: requests must hold lists, successful, errored and incomplete")
    places = [(f"{path}, successful request {k + 1}", row) for k, row in enumerate(listed["successful"])]
    failed = [(str(path), Left.FAILED)] * (len(listed["errored"]) + len(listed["incomplete"]))
    return trace_of(path, how, "s", [*places, *failed], _of_guidellm)


def _of_guidellm(where: str, row: Any) -> Sent | Left:
    if isinstance(row, Left):
        return row
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    tokens = [
        value_at(row, *places)
        for places in (
            ("prompt_tokens", "input_metrics.total_tokens", "input_metrics.text_tokens"),
            ("output_tokens", "output_metrics.total_tokens", "output_metrics.text_tokens"),
        )
    ]
    if is_empty(*tokens):
        return Left.EMPTY
    start = value_at(
        row,
        "request_start_time",
        "start_time",
        "info.timings.request_start",
        "scheduler_info.request_timings.request_start",
    )
    return Sent(time(where, "the start of the request", start), *lengths(where, *tokens))


def read_inference_perf(path: Path, how: How) -> Trace:
    """inference-perf's per_request_lifecycle_metrics.json, an array or one object a line: start_time in s, info."""
    return trace_of(path, how, "s", records(path), _of_inference_perf)


def _of_inference_perf(where: str, row: Any) -> Sent | Left:
    if row.get("error"):
        return Left.FAILED
    tokens = [
        value_at(row, *(f"info.{within}{side}_tokens" for within in ("", "request_metrics.text.", "response_metrics.")))
        for side in ("input", "output")
    ]
    if is_empty(*tokens):
        return Left.EMPTY
    return Sent(time(where, "start_time", row.get("start_time")), *lengths(where, *tokens))


def read_llmperf(path: Path, how: How) -> Trace:
    """LLMPerf's *_individual_responses.json: lengths without arrival times, since it sent with a fixed concurrency.

    Its descendants write start_time, in s.
    """
    return trace_of(path, how, "s", records(path), _of_llmperf)


def _of_llmperf(where: str, row: Any) -> Sent | Left:
    if row.get("error_code") is not None or row.get("error_msg"):
        return Left.FAILED
    tokens = row.get("number_input_tokens"), row.get("number_output_tokens")
    if is_empty(*tokens):
        return Left.EMPTY
    return Sent(time_if(where, "start_time", row.get("start_time")), *lengths(where, *tokens))
