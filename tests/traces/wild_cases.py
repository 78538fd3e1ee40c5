"""Files as people have them, a few rows each: where the shape is from, how it is read, and what it must give.

Everything here is written by hand; no row is one of the source's.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Case:
    """`rows` are (arrival_s, input_tokens, output_tokens); `note` and `refused` are parts of what is said."""

    name: str
    source: str
    content: str | bytes
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[tuple[float, int, int]] = ()
    note: str = ""
    refused: str = ""
    think_s: Sequence[float] = ()


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def columns(arrival: str, inputs: str, outputs: str, unit: str = "s", **others: str) -> dict[str, Any]:
    return {"columns": {f"arrival_{unit}": arrival, "input_tokens": inputs, "output_tokens": outputs, **others}}


def aiperf(start_s: float, end_s: float, tokens: tuple[int, int], **about: Any) -> dict[str, Any]:
    ns = 10**9
    times = {"request_start_ns": int((1.8e9 + start_s) * ns), "request_end_ns": int((1.8e9 + end_s) * ns)}
    lengths = {
        f"{side}_sequence_length": {"value": value, "unit": "tokens"}
        for side, value in zip(("input", "output"), tokens, strict=True)
    }
    return {"metadata": {"benchmark_phase": "profiling", **times, **about}, "metrics": lengths, "error": None}


def dynamo(at_ms: int, end_ms: int, tokens: tuple[int, int], session: str | None = None, **replay: Any) -> Any:
    request = {"request_id": f"r{at_ms}", "request_received_ms": at_ms, "input_tokens": tokens[0]}
    request |= {"output_tokens": tokens[1], "cached_tokens": 16}
    if replay:
        request["replay"] = {"input_length": tokens[0], **replay}
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": end_ms}
    return event | {"request": request} | ({} if session is None else {"agent_context": {"session_id": session}})


def agent_round(number: int, tokens: tuple[int, int], *events: tuple[str, int]) -> dict[str, Any]:
    timed = [{"event_type": kind, "timestamp": f"2026-06-01T05:40:{second:02}.000Z"} for kind, second in events]
    about = {"provider": "codex", "model": "m", "session_id": "s", "round_index": number, "timing_events": timed}
    return about | {"input_tokens_total": tokens[0], "prefix_tokens": 512, "output_tokens": tokens[1]}


def guidellm(start: float, tokens: tuple[int, int]) -> dict[str, Any]:
    info = {"status": "completed", "timings": {"request_start": start, "request_end": start + 1}}
    metrics = {"input_metrics": {"text_tokens": tokens[0]}, "output_metrics": {"text_tokens": tokens[1]}}
    return {"request_id": "r", "info": info, "prompt_tokens": tokens[0], "output_tokens": tokens[1], **metrics}


def sharegpt(*said: str) -> dict[str, Any]:
    turns = [{"from": ("human", "gpt")[place % 2], "value": text} for place, text in enumerate(said)]
    return {"id": "c", "conversations": turns}


def wildchat(*said: str) -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
    return {"conversation_hash": "h", "turn": len(said) // 2, "conversation": turns}


def parquet(frame: pl.DataFrame, write: str = "write_parquet") -> bytes:
    content = io.BytesIO()
    getattr(frame, write)(content)
    return content.getvalue()


SPLIT = pl.DataFrame({"when": [5_000, 5_500], "usage": [{"in": 10, "out": 2}, {"in": 20, "out": 3}]})
SPLIT_ROWS = ((0.0, 10, 2), (0.5, 20, 3))
BENCH = {
    "backend": "vllm",
    "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 4],
    "errors": ["", "timed out", ""],
    "start_times": [7.0, 7.5, 8.0],
}
UNTIMED = {key: value for key, value in BENCH.items() if key != "start_times"}
SERVINGSIM = lines(
    *(
        {"input_toks": 10 + k, "output_toks": 7, "arrival_time_ns": 46_000_000 + 300_000_000 * k, "input_tok_ids": [1]}
        for k in range(4)
    )
)
AGENT_ROW = {"hash_ids": [1, 2], "input_length": 600, "output_length": 5, "session_id": "run:root"}
CLAUDE = {"type": "assistant", "timestamp": "2026-05-01T10:00:00.000Z"}
CLAUDE_USAGE = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 40}

TABLES = (
    Case(
        "servingsim", "casys-kaist/LLMServingSim, dataset/example_trace.jsonl", SERVINGSIM,
        columns("arrival_time_ns", "input_toks", "output_toks", "ns"),
        ((0.0, 10, 7), (0.3, 11, 7), (0.6, 12, 7), (0.9, 13, 7)),
    ),
    Case(
        "servingsim-bare", "casys-kaist/LLMServingSim, dataset/example_trace.jsonl", SERVINGSIM,
        refused="arrival_ns: arrival_time_ns, input_tokens: input_toks, output_tokens: output_toks",
    ),
    Case(
        "servingsim-agents", "casys-kaist/LLMServingSim, documentation of agentic workloads",
        lines({"session_id": "s", "arrival_time_ns": 4, "sub_requests": [{"input_toks": 9, "output_toks": 1}]}),
        refused="nested sessions are not read",
    ),
    Case(
        "splitwise-sim", "Mutinifni/splitwise-sim, traces/test_trace.csv",
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,1,1,4000,30\n1,2,0,2,1,2000,8\n",
        columns("arrival_timestamp", "prompt_size", "token_size"), ((0.0, 4000, 30), (1.0, 2000, 8)),
    ),
    Case(
        "aibrix", "vllm-project/aibrix, benchmarks/client/output.jsonl",
        lines({"prompt_tokens": 9, "output_tokens": 2}, {"prompt_tokens": 8, "output_tokens": 2, "start_time": 10.0}),
        columns("start_time", "prompt_tokens", "output_tokens"),
        refused="line 1: start_time is missing or not a number (1 of 2 records cannot be read",
    ),
    Case(
        "aibrix-half", "vllm-project/aibrix, benchmarks/client/output.jsonl",
        lines({"prompt_tokens": 9, "output_tokens": 2}, {"prompt_tokens": 8, "output_tokens": 2, "start_time": 10.0}),
        columns("start_time", "prompt_tokens", "output_tokens") | {"bad_records": 0.5}, ((0.0, 8, 2),),
        note="1 of 2 records cannot be read; they are left out (first: line 1: start_time is missing",
    ),
    Case(
        "lmcache", "LMCache/LMCache pull request 1797, summary of its trace replayer",
        "req_id,ttft,input_token_len,output_token_len,launch_time,finish_time\n0,0.1,50,5,3.5,4\n1,0.2,60,6,4,5\n",
        columns("launch_time", "input_token_len", "output_token_len"), ((0.0, 50, 5), (0.5, 60, 6)),
    ),
    Case(
        "parquet-nested", "Parquet with structs, as tables of observability tools are exported", parquet(SPLIT),
        columns("when", "usage.in", "usage.out", "ms"), SPLIT_ROWS,
    ),
    Case(
        "arrow-file", "AIPerf, documentation of Arrow IPC files next to Parquet", parquet(SPLIT, "write_ipc"),
        columns("when", "usage.in", "usage.out", "ms"), SPLIT_ROWS,
    ),
    Case(
        "arrow-stream", "Arrow IPC streams, as pyarrow's stream writer makes them", parquet(SPLIT, "write_ipc_stream"),
        columns("when", "usage.in", "usage.out", "ms"), SPLIT_ROWS,
    ),
    Case(
        "parquet-duration", "Parquet with times and durations of pandas",
        parquet(
            pl.DataFrame({"at": [0, 3000], "took": [1000, 500], "in": [100, 200], "out": [10, 5], "user": ["a", "a"]})
            .with_columns(pl.col("at").cast(pl.Datetime("ms")), pl.col("took").cast(pl.Duration("ms")))
        ),
        columns("at", "in", "out", session_id="user", duration_s="took"), ((0.0, 100, 10), (3.0, 200, 5)),
        think_s=(0.0, 2.0),
    ),
    Case(
        "web-log", "access logs of web servers turned into CSV",
        "time,in,out\n10/Oct/2026:13:55:36 +0200,5,6\n10/Oct/2026:13:55:38 +0200,7,8\n",
        columns("time", "in", "out"), ((0.0, 5, 6), (2.0, 7, 8)),
    ),
    Case(
        "spend-log", "BerriAI/litellm, table of spend logs exported to CSV",
        "request_id,startTime,prompt_tokens,completion_tokens\na,2026-03-01 10:00:00.250,12,3\n"
        "b,2026-03-01 10:00:01.500,14,0\nc,2026-03-01 10:00:02.250,16,4\n",
        columns("startTime", "prompt_tokens", "completion_tokens"), ((0.0, 12, 3), (2.0, 16, 4)),
        note="1 of 3 requests have 0 tokens",
    ),
)  # fmt: skip

PUBLISHED = (
    Case(
        "burstgpt-1", "HPMLL/BurstGPT, data/BurstGPT_1.csv, and its README on failures",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,400,20,420,Conversation log\n"
        "45,ChatGPT,300,0,300,Conversation log\n118,GPT-4,500,90,590,API log\n",
        {}, ((0.0, 400, 20), (113.0, 500, 90)), note="1 of 3 requests have 0 tokens; they are left out",
    ),
    Case(
        "burstgpt-2-sessions", "HPMLL/BurstGPT, columns Session ID and Elapsed time of the second release",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,7,2,M,100,10,110,Conversation log\n1,8,1,M,50,5,55,Conversation log\n9,7,3,M,120,8,128,Conversation log\n",
        columns("Timestamp", "Request tokens", "Response tokens", session_id="Session ID", duration_s="Elapsed time"),
        ((0.0, 100, 10), (1.0, 50, 5), (9.0, 120, 8)), think_s=(0.0, 0.0, 7.0),
    ),
    Case(
        "azure-2024", "Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv_1week.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2100,390\n"
        "2024-05-10 00:00:00.509930+00:00,900,0\n2024-05-10 00:00:02.009930+00:00,700,80\n",
        {}, ((0.0, 2100, 390), (2.0, 700, 80)), note="1 of 3 requests have 0 tokens",
    ),
    Case(
        "azure-window", "Azure/AzurePublicDataset, AzureLLMInferenceTrace_code_1week.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2024-05-10 00:00:{k:02d}.000000+00:00,{100 + k},5\n" for k in range(30)),
        {"window_s": [10, 12]}, ((0.0, 110, 5), (1.0, 111, 5)),
    ),
    Case(
        "azure-images", "Azure/AzurePublicDataset, AzureLMMInferenceTrace_multimodal.csv",
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 12:00:00.0,2,3000,60\n"
        "2024-10-15 12:00:01.0,0,400,70\n",
        {}, ((0.0, 3000, 60), (1.0, 400, 70)), note="columns left out: NumImages",
    ),
    Case(
        "vidur", "microsoft/vidur, data/processed_traces/splitwise_code.csv",
        ",arrived_at,num_prefill_tokens,num_decode_tokens,pd_ratio\n0,0.0,4800,10,480\n1,0.25,110,20,5\n",
        {}, ((0.0, 4800, 10), (0.25, 110, 20)), note="columns left out: (column 1, no name), pd_ratio",
    ),
    Case(
        "vidur-lengths", "microsoft/vidur, data/processed_traces/arxiv_summarization_stats_llama2_tokenizer.csv",
        "num_prefill_tokens,num_decode_tokens,total_tokens,pd_ratio\n900,100,1000,9\n",
        {}, refused="{input_tokens: num_prefill_tokens, output_tokens: num_decode_tokens}' (arrivals, which no column",
    ),
    Case(
        "frontier", "Frontier, CSV of five columns for its trace replay",
        "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n0.0,32,8,7,11|22\n0.5,48,8,7,11\n",
        {}, ((0.0, 32, 8), (0.5, 48, 8)), note="columns left out: session_id, block_hash_ids",
    ),
    Case(
        "bailian", "alibaba-edu/qwen-bailian-usagetraces-anon, qwen_traceA_blksz_16.jsonl",
        lines(
            {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 9,
             "type": "text", "turn": 1, "hash_ids": [7, 8, 9]},
            {"chat_id": 160, "parent_chat_id": 159, "timestamp": 63.114, "input_length": 48, "output_length": 3,
             "type": "text", "turn": 2, "hash_ids": [7, 8, 10]},
        ),
        {}, ((0.0, 33, 9), (2.0, 48, 3)), note="columns left out: chat_id, parent_chat_id, type, turn",
    ),
    Case(
        "mooncake-seconds", "vllm-project/vllm pull request 39795: timestamps in seconds or milliseconds",
        lines(*({"timestamp": k / 16, "input_length": 600, "output_length": 5, "hash_ids": [k]} for k in range(200)))
        .replace('"input_length": 600', '"input_length": 500'),
        {"limit": 1}, ((0.0, 500, 5),), note="as s it would be 16 requests/s: set trace.unit=s",
    ),
    Case(
        "mooncake-unit", "vllm-project/vllm pull request 39795: timestamps in seconds or milliseconds",
        lines(*({"timestamp": 2 * k, "input_length": 500, "output_length": 5, "hash_ids": [k]} for k in range(3))),
        {"unit": "s"}, ((0.0, 500, 5), (2.0, 500, 5), (4.0, 500, 5)),
    ),
    Case(
        "mooncake-extra", "ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md, rows with extra",
        lines(
            {"timestamp": 0, "input_length": 100, "output_length": 50, "extra": {"nvext": {"priority": 9}}},
            {"timestamp": 500, "input_length": 200, "output_length": 30},
        ),
        {}, ((0.0, 100, 50), (0.5, 200, 30)), note="columns left out: extra",
    ),
    Case(
        "mooncake-cut-short", "a download of a trace that was broken off in its last line",
        lines(*({"timestamp": k * 1000, "input_length": 9, "output_length": 1} for k in range(30)))
        + '{"timestamp": 30000, "input_le',
        {"limit": 2}, ((0.0, 9, 1), (1.0, 9, 1)),
        note="1 of 31 records cannot be read; they are left out (first: line 31",
    ),
)  # fmt: skip

AGENTS = (
    Case(
        "sessions", "ai-dynamo/dynamo, docs/dynosim/trace-formats.md: later rows with delay",
        lines(
            AGENT_ROW | {"timestamp": 1000},
            {"session_id": "b", "timestamp": 1500, "input_length": 500, "output_length": 2, "hash_ids": [9]},
            AGENT_ROW | {"delay": 2500, "input_length": 1000, "hash_ids": [1, 2]},
        ),
        {}, ((0.0, 600, 5), (0.5, 500, 2), (2.5, 1000, 5)), think_s=(0.0, 0.0, 2.5),
    ),
    Case(
        "sessions-timed", "ai-dynamo/dynamo, docs/dynosim/trace-formats.md: rows of a session with timestamps",
        lines(AGENT_ROW | {"timestamp": 1000}, AGENT_ROW | {"timestamp": 3000}),
        {}, ((0.0, 600, 5), (2.0, 600, 5)),
    ),
    Case(
        "agentic-chain", "ai-dynamo/dynamo, agentic Mooncake rows with wait_for",
        lines(
            AGENT_ROW | {"request_id": "a", "timestamp": 0.0, "wait_for": [], "prefix_reset": False},
            AGENT_ROW
            | {"request_id": "b", "timestamp": 9000.0, "wait_for": ["a"], "delay": 10.0, "tool_wait_ms": 500.0},
        ),
        {}, ((0.0, 600, 5), (0.51, 600, 5)), think_s=(0.0, 0.51),
    ),
    Case(
        "agentic-graph", "ai-dynamo/dynamo, agentic Mooncake rows that join children",
        lines(
            AGENT_ROW | {"request_id": "a", "timestamp": 0.0, "branches": ["c"]},
            AGENT_ROW | {"request_id": "b", "wait_for": ["a", "c"], "delay": 10.0},
        ),
        {},
        refused="line 2: it waits for c, which is the request_id of no row",
    ),
    Case(
        "dynamo-sessions", "ai-dynamo/aiperf, tests of its converter of dynamo.request.trace.v1",
        lines(
            dynamo(1000, 2000, (32, 8), "s", trace_block_size=16, input_sequence_hashes=[2**63 + 5, 6]),
            {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 2500},
            dynamo(3000, 3500, (48, 4), "s", trace_block_size=16, input_sequence_hashes=[2**63 + 5, 6, 7]),
        ),
        {}, ((0.0, 32, 8), (2.0, 48, 4)), think_s=(0.0, 1.0),
    ),
    Case(
        "dynamo-wrapped", "ai-dynamo/dynamo, request traces within an envelope `event`",
        lines({"timestamp": 1, "event": dynamo(1000, 2000, (32, 8))},
              {"timestamp": 2, "event": dynamo(1500, 2000, (9, 1))}),
        {}, ((0.0, 32, 8), (0.5, 9, 1)),
    ),
    Case(
        "applied-compute", "Applied-Compute/trie, README: one session a line",
        lines({"num_turns": 1, "input_prompt_length": 40, "assistant_response_length": [8]}),
        refused="sessions without times of arrival",
    ),
    Case(
        "weka", "ai-dynamo/dynamo, tests of its loader of Weka traces",
        lines({"id": "t", "block_size": 64, "requests": [{"t": 0.0, "type": "n", "in": 9, "out": 2, "hash_ids": [1]}]}),
        {}, ((0.0, 9, 2),),
    ),
    Case(
        "tracelab", "uw-syfi/TraceLab, rounds of coding agents",
        lines(agent_round(0, (600, 5), ("user_message", 0), ("text", 4)),
              agent_round(1, (700, 9), ("tool_result", 6), ("text", 7))),
        {}, ((0.0, 600, 5), (6.0, 700, 9)), think_s=(0.0, 2.0),
    ),
    Case(
        "otel", "inference-sim/inference-sim issue 1477, spans of OpenTelemetry",
        lines({"resourceSpans": [{"scopeSpans": []}]}), refused="no record is a request",
    ),
    Case(
        "claude-code", "logs of Claude Code: a line for each part of a message, all with its usage",
        lines(
            {"type": "user", "timestamp": "2026-05-01T09:59:59.000Z", "message": {"role": "user", "content": "x"}},
            CLAUDE | {"message": {"id": "m1", "usage": CLAUDE_USAGE | {"output_tokens": 5}}},
            CLAUDE | {"message": {"id": "m1", "usage": CLAUDE_USAGE | {"output_tokens": 5}}},
            CLAUDE | {"timestamp": "2026-05-01T10:00:04Z", "message": {"id": "m2", "usage": {"input_tokens": 7,
                      "cache_read_input_tokens": None, "output_tokens": 6}}},
        ),
        {"format": "openai"}, ((0.0, 250, 5), (4.0, 7, 6)), note="1 of 3 records have no usage",
    ),
)  # fmt: skip

CLIENTS = (
    Case(
        "aiperf-first", "ai-dynamo/aiperf, examples/artifacts/run1/profile_export.jsonl",
        lines(
            {"metadata": {"x_correlation_id": "a", "turn_index": 0, "timestamp_ns": 10**18,
                          "credit_phase": "profiling"},
             "metrics": {"error_request_count": {"value": 1}}, "error": {"code": 499, "message": "cancelled"}},
            {"metadata": {"x_correlation_id": "b", "turn_index": 0, "timestamp_ns": 17 * 10**17,
                          "credit_phase": "profiling"},
             "metrics": {"input_sequence_length": {"value": 550}, "output_sequence_length": {"value": 193},
                         "request_latency": {"value": 7936.9, "unit": "ms"}}, "error": None},
        ),
        {}, ((0.0, 550, 193),), note="1 of 2 requests failed",
    ),
    Case(
        "aiperf-overlap", "ai-dynamo/aiperf, sessions whose sub-agents run next to their parent",
        lines(
            aiperf(0, 4, (100, 10), x_correlation_id="p", turn_index=0),
            aiperf(1, 2, (50, 5), x_correlation_id="p", turn_index=1),
            aiperf(5, 6, (120, 5), x_correlation_id="p", turn_index=2),
        ),
        {}, ((0.0, 100, 10), (1.0, 50, 5), (5.0, 120, 5)), think_s=(0.0, 0.0, 3.0),
        note="1 turns were sent before the turn before had ended; each opens a session of its own",
    ),
    Case(
        "aiperf-warm-up", "ai-dynamo/aiperf, benchmark_phase of its records",
        lines(aiperf(0, 1, (9, 9), benchmark_phase="warmup"), aiperf(2, 3, (10, 4)), aiperf(2.5, 3, (11, 4))),
        {}, ((0.0, 10, 4), (0.5, 11, 4)),
    ),
    Case(
        "aiperf-no-lengths", "records of AIPerf without a tokenizer: output_token_count alone",
        lines({"metadata": {"request_start_ns": 1, "request_end_ns": 2},
               "metrics": {"output_token_count": {"value": 4}}}),
        refused="line 1: input tokens are null, must be a whole number of at least 1 (1 of 1 records cannot be read",
    ),
    Case(
        "aiperf-summary", "ai-dynamo/aiperf, profile_export_aiperf.json",
        json.dumps({"schema_version": "1.0", "request_throughput": {"unit": "requests/sec", "avg": 3.5}}, indent=2),
        refused="a summary of a benchmark has no requests",
    ),
    Case(
        "genai-perf", "triton-inference-server/perf_analyzer, profile_export.json",
        json.dumps({"experiments": [{"requests": [{"timestamp": 1, "response_timestamps": []}]}]}),
        refused="has texts and no numbers of tokens",
    ),
    Case(
        "llmperf", "ray-project/llmperf, *_individual_responses.json",
        json.dumps(
            [{"error_code": None, "error_msg": "", "number_output_tokens": 150 + k, "number_input_tokens": 550}
             for k in range(2)] + [{"error_code": 429, "error_msg": "slow down"}], indent=4),
        {}, ((0.0, 550, 150), (1.0, 550, 151)), note="they are drawn, Poisson at 1 requests/s; set trace.rate",
    ),
    Case(
        "llmperf-summary", "ray-project/llmperf, *_summary.json",
        json.dumps({"version": "2023-08-31", "results": {"results_number_input_tokens_mean": 550.0}}, indent=4),
        refused="a summary of a benchmark has no requests",
    ),
    Case(
        "guidellm", "vllm-project/guidellm, src/guidellm/schemas/request_stats.py",
        json.dumps({"benchmarks": [{"requests": {
            "successful": [guidellm(100.0, (64, 8)), guidellm(101.5, (65, 9))],
            "errored": [{}], "incomplete": [{}]}}]}),
        {}, ((0.0, 64, 8), (1.5, 65, 9)), note="2 of 4 requests failed; they are left out",
    ),
    Case(
        "guidellm-sweep", "vllm-project/guidellm, a sweep of rates in one report",
        json.dumps({"benchmarks": [{"requests": {"successful": [guidellm(k, (64 + k, 8))]}} for k in (1, 2)]}),
        refused="holds 2 results (benchmarks, one a rate); choose one by trace.result=1 to 2",
    ),
    Case(
        "guidellm-chosen", "vllm-project/guidellm, a sweep of rates in one report",
        json.dumps({"benchmarks": [{"requests": {"successful": [guidellm(k, (64 + k, 8))]}} for k in (1, 2)]}),
        {"result": 2}, ((0.0, 66, 8),),
    ),
    Case(
        "inference-perf", "kubernetes-sigs/inference-perf, per_request_lifecycle_metrics.json",
        json.dumps([
            {"start_time": 50.0, "end_time": 51.0, "request": "{}", "response": "", "info": {"input_tokens": 10,
             "output_tokens": 4, "output_token_times": []}, "error": None},
            {"start_time": 50.5, "end_time": 51.0, "request": "{}", "response": "", "info": None,
             "error": {"error_type": "TimeoutError", "error_msg": ""}},
            {"start_time": 51.0, "end_time": 52.0, "info": {"input_tokens": 12, "output_tokens": 5}, "error": None},
        ], indent=2),
        {}, ((0.0, 10, 4), (1.0, 12, 5)), note="1 of 3 requests failed",
    ),
    Case(
        "sglang", "sgl-project/sglang, bench_serving --output-details: appended lines without start_times",
        lines(UNTIMED | {"request_rate": 4.0}, UNTIMED | {"request_rate": 8.0}),
        {"result": 1}, ((0.0, 10, 3), (0.25, 30, 4)), note="Poisson at 4 requests/s, its request_rate",
    ),
    Case(
        "sglang-inf", "sgl-project/sglang, bench_serving at an infinite rate",
        json.dumps(UNTIMED | {"request_rate": "inf", "request_throughput": 2.0}),
        {}, ((0.0, 10, 3), (0.5, 30, 4)), note="Poisson at 2 requests/s, its request_throughput",
    ),
    Case(
        "vllm-indented", "vllm-project/vllm, bench serve --save-result --save-detailed, indented by hand",
        json.dumps(BENCH, indent=2), {}, ((0.0, 10, 3), (1.0, 30, 4)), note="1 of 3 requests failed",
    ),
    Case(
        "vllm-summary", "vllm-project/vllm, bench serve --save-result alone",
        json.dumps({"backend": "vllm", "completed": 100, "request_throughput": 4.1}),
        refused="a summary of a benchmark has no requests",
    ),
    Case(
        "batch", "OpenAI Batch API, output file",
        lines(
            {"id": "b0", "response": {"status_code": 200, "body": {"created": 1_800_000_000, "usage": {
                "prompt_tokens": 2048, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1920}}}}},
            {"id": "b1", "response": None, "error": {"code": "batch_expired"}},
        ),
        {}, ((0.0, 2048, 3),), note="1 of 2 requests failed",
    ),
    Case(
        "responses-api", "OpenAI Responses API: cached tokens are part of input_tokens",
        lines({"created_at": 1_800_000_000.5, "usage": {"input_tokens": 300, "output_tokens": 45,
               "input_tokens_details": {"cached_tokens": 256}}}),
        {}, ((0.0, 300, 45),),
    ),
    Case(
        "sharegpt", "ShareGPT_V3_unfiltered_cleaned_split.json, as benchmarks of vLLM and SGLang take it",
        json.dumps([sharegpt("a" * 40, "b" * 9, "c"), sharegpt("a" * 8), sharegpt("d" * 5, "e" * 80)]),
        {}, ((0.0, 10, 3), (1.0, 2, 20)), note="Tokens are estimated from texts, 4 bytes each",
    ),
    Case(
        "wildchat", "allenai/WildChat, conversations of role and content", lines(wildchat("你" * 4, "x" * 12)),
        {}, ((0.0, 3, 3),), note="Poisson at 1 requests/s",
    ),
    Case(
        "lmsys", "lmsys/lmsys-chat-1m in Parquet", parquet(pl.DataFrame([wildchat("u" * 16, "v" * 4)])),
        {}, ((0.0, 4, 1),),
    ),
    Case(
        "another-format", "a file of BurstGPT, said to be one of Azure",
        "Timestamp,Request tokens,Response tokens\n5,4,3\n", {"format": "azure"},
        refused="the file looks like trace.format=burstgpt",
    ),
)  # fmt: skip

CASES = (*TABLES, *PUBLISHED, *AGENTS, *CLIENTS)
