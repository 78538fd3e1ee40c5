"""AIPerf's records of each request, `profile_export.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.errors import InputError
from traces.formats.sent import Sent, is_empty, lengths, time, time_if, trace_of
from traces.frame import Trace
from traces.parsing.how import How
from traces.parsing.json_records import number_of, records, value_at
from traces.parsing.left_out import Left

_MS = 1e6  # ns


def read_aiperf(path: Path, how: How) -> Trace:
    """AIPerf's profile_export.jsonl: metadata.request_start_ns, and sequence lengths among the metrics; no warm-up.

    A session is one `x_correlation_id`. `conversation_id` names an entry of the data set, which is played repeatedly;
    with a `turn_index` it replaces a missing x_correlation_id, until a turn comes that is not a later one. Files of the
    first versions have timestamp_ns in place of request_start_ns, and credit_phase in place of benchmark_phase. Lengths
    counted by the server alone are usage_prompt_tokens and usage_completion_tokens.
    """
    return trace_of(path, how, "ns", records(path), _sent)


def _sent(where: str, row: Any) -> Sent | Left:
    about = row.get("metadata")
    if not isinstance(about, dict):
        raise InputError(f"{where}: no metadata, as profile_export.jsonl has it")
    if "warmup" in (about.get("benchmark_phase"), about.get("credit_phase")):
        return Left.SILENT
    if row.get("error") or about.get("was_cancelled"):
        return Left.FAILED
    metrics = row.get("metrics")
    if not isinstance(metrics, dict):
        raise InputError(f"{where}: no metrics, as profile_export.jsonl has them")
    tokens = _tokens(metrics)
    if is_empty(*tokens):
        return Left.EMPTY
    start = time(where, "request_start_ns", value_at(about, "request_start_ns", "timestamp_ns"))
    latency_ms = time_if(where, "request_latency", _metric(metrics, "request_latency"))
    last = _metric(metrics, "max_response_timestamp") or (None if latency_ms is None else start + _MS * latency_ms)
    session, turn = value_at(about, "x_correlation_id"), about.get("turn_index")
    if session is None and turn is not None:
        session = about.get("conversation_id")
    return Sent(
        start,
        *lengths(where, *tokens),
        ended=time_if(where, "request_end_ns", value_at({"end": last, **about}, "request_end_ns", "end")),
        session=None if session is None else str(session),
        turn=turn if isinstance(turn, int) and not isinstance(turn, bool) else None,
    )


def _tokens(metrics: Mapping[str, Any]) -> tuple[Any, Any]:
    """Prompt and output tokens; those of reasoning are part of the output."""
    prompt, output = (
        next((one for name in names if (one := _metric(metrics, name)) is not None), None)
        for names in (
            ("input_sequence_length", "usage_prompt_tokens"),
            ("output_sequence_length", "usage_completion_tokens"),
        )
    )
    if output is None and (said := number_of(_metric(metrics, "output_token_count"))) is not None:
        output = said + (number_of(_metric(metrics, "reasoning_token_count")) or 0)
    return prompt, output


def _metric(metrics: Mapping[str, Any], name: str) -> Any:
    metric = metrics.get(name)
    return metric.get("value") if isinstance(metric, dict) else metric
