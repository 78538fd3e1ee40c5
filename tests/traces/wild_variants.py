"""The same files as people have them otherwise: other containers, units, clocks and names, and with damage.

Everything here is written by hand; no row is one of the source's.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import polars as pl

from tests.traces.wild_cases import BENCH, Case, aiperf, columns, dynamo, lines, parquet, wildchat

MOONCAKE: list[dict[str, Any]] = [
    {"timestamp": 1000 * k, "input_length": 600, "output_length": 5, "hash_ids": [1, 2 + k]} for k in range(3)
]
MOONCAKE_ROWS = ((0.0, 600, 5), (1.0, 600, 5), (2.0, 600, 5))
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
CHAT = {"created": 1_800_000_000, "usage": {"prompt_tokens": 100, "completion_tokens": 20}}
BASETEN = pl.DataFrame(
    {
        "timestamp_start_unix_ms": [1_800_000_000_000, 1_800_000_004_000, 1_800_000_005_000],
        "provided_session_id": ["a", "a", None],
        "prompt": ["x", "y", "z"],
        "input_tokens": [100, 200, 50],
        "output_tokens": [10, 20, 0],
        "duration_e2e_ms": [1500.0, 900.0, 1.0],
        "total_hashes": [["f0", "f1"], ["f0", "f2"], ["f3"]],
    }
)
INFO = {"request_metrics": {"text": {"input_tokens": 10}}, "response_metrics": {"output_tokens": 4}}
TWO = ((0.0, 10, 4), (1.5, 11, 4))


def inference_perf(start: float, **changes: object) -> dict[str, object]:
    return {"start_time": start, "end_time": start + 1, "request": "{}", "info": INFO, "error": None, **changes}


CONTAINERS = (
    Case("mooncake-array", "kvcache-ai/Mooncake, a trace saved by pandas as one JSON array", json.dumps(MOONCAKE),
         {}, MOONCAKE_ROWS),
    Case("mooncake-indented", "kvcache-ai/Mooncake, rows indented by jq, one after another",
         "\n".join(json.dumps(row, indent=2) for row in MOONCAKE), {}, MOONCAKE_ROWS),
    Case("mooncake-windows", "kvcache-ai/Mooncake, saved by an editor of Windows: byte order mark, CRLF",
         b"\xef\xbb\xbf" + lines(*MOONCAKE).replace("\n", "\r\n").encode(), {}, MOONCAKE_ROWS),
    Case("mooncake-gzip", "ai-dynamo/dynamo, its sink writes trace.000000.jsonl.gz",
         gzip.compress(lines(*MOONCAKE).encode()), {}, MOONCAKE_ROWS),
    Case("bailian-array", "alibaba-edu/qwen-bailian-usagetraces-anon as one JSON array",
         json.dumps([row | {"chat_id": 1, "timestamp": row["timestamp"] / 1000, "hash_ids": []} for row in MOONCAKE]),
         {}, MOONCAKE_ROWS),
    Case("azure-parquet", "Azure/AzurePublicDataset converted to Parquet: advice on its columns",
         parquet(pl.DataFrame({"TIMESTAMP": ["2024-05-10 00:00:00"], "ContextTokens": [5], "GeneratedTokens": [4]})),
         refused="{arrival_s: TIMESTAMP, input_tokens: ContextTokens, output_tokens: GeneratedTokens}"),
    Case("azure-semicolons", "Azure/AzurePublicDataset saved by a spreadsheet in Europe",
         AZURE.replace(",", ";") + "2024-05-10 00:00:00;5;4\n2024-05-10 00:00:02;6;4\n",
         {}, ((0.0, 5, 4), (2.0, 6, 4))),
    Case("table-decimal-commas", "tables saved by a spreadsheet in Europe", "t;i;o\n0,5;10;4\n2,0;11;4\n",
         columns("t", "i", "o"), TWO),
    Case("table-quoted", "the R function write.csv: quoted header",
         '"TIMESTAMP","ContextTokens","GeneratedTokens"\n"2024-05-10 00:00:00",5,4\n', {}, ((0.0, 5, 4),)),
    Case("table-two-indexes", "pandas, an index written twice",
         ",,arrived_at,num_prefill_tokens,num_decode_tokens\n0,0,0,5,4\n1,1,2,6,4\n", {}, ((0.0, 5, 4), (2.0, 6, 4)),
         note="columns left out: (column 1, no name), (column 2, no name)"),
    Case("utf-16", "tables saved by PowerShell", (AZURE + "2024-05-10 00:00:00,5,4\n").encode("utf-16"),
         refused="is text in UTF-16; save it in UTF-8"),
    Case("list-in-an-object", "openshift-psap/llm-load-test, results in one object",
         json.dumps({"results": [{"start": 5.0, "in": 10, "out": 4}, {"start": 6.5, "in": 11, "out": 4}]}),
         columns("results.start", "results.in", "results.out"), TWO),
    Case("parquet-lists", "Parquet with a list of structs, a session a row",
         parquet(pl.DataFrame({"id": ["a", "b"], "requests": [[{"t": 0.0, "in": 10, "out": 4}],
                                                              [{"t": 1.5, "in": 11, "out": 4}]]})),
         columns("requests.t", "requests.in", "requests.out"), TWO),
    Case("baseten", "ai-dynamo/aiperf, docs/tutorials/baseten-trace.md", parquet(BASETEN),
         columns("timestamp_start_unix_ms", "input_tokens", "output_tokens", "ms", session_id="provided_session_id",
                 duration_ms="duration_e2e_ms"),
         ((0.0, 100, 10), (4.0, 200, 20)), think_s=(0.0, 2.5), note="1 of 3 requests have 0 tokens"),
    Case("baseten-hashes", "ai-dynamo/aiperf, docs/tutorials/baseten-trace.md: total_hashes",
         parquet(BASETEN), columns("timestamp_start_unix_ms", "input_tokens", "output_tokens", "ms",
                                   hash_ids="total_hashes") | {"block_tokens": 64, "limit": 1, "bad_records": 0.4},
         ((0.0, 100, 10),), note="1 of 3 records cannot be read; they are left out (first: row 2: hash_ids do not fit"),
)  # fmt: skip

CLOCKS = (
    Case("azure-no-fraction", "Azure/AzurePublicDataset, AzureLLMInferenceTrace_code_1week.csv: whole seconds",
         AZURE + "2024-05-12 00:00:10+00:00,200,20\n2024-05-12 00:00:20.5+00:00,300,30\n",
         {}, ((0.0, 200, 20), (10.5, 300, 30))),
    Case("azure-zones", "Azure's columns written in another time zone",
         AZURE + "2024-05-12 02:00:00+02:00,200,20\n2024-05-12T00:00:20Z,300,30\n",
         {}, ((0.0, 200, 20), (20.0, 300, 30))),
    Case("http-dates", "logs with dates as HTTP has them",
         't,i,o\n"Thu, 01 Jan 2026 00:00:00 GMT",10,4\n"Thu, 01 Jan 2026 00:00:01 GMT",11,4\n',
         columns("t", "i", "o"), ((0.0, 10, 4), (1.0, 11, 4))),
    Case("python-logging", "logs of Python: a comma before the milliseconds",
         't,i,o\n"2026-01-01 00:00:00,250",10,4\n"2026-01-01 00:00:01,750",11,4\n', columns("t", "i", "o"), TWO),
    Case("mixed-precision", "logs that leave out a fraction of 0",
         "t,i,o\n2026-01-01T00:00:00Z,10,4\n2026-01-01T00:00:01.500Z,11,4\n", columns("t", "i", "o"), TWO),
    Case("us-dates", "tables saved by a spreadsheet in the USA: day or month first, nobody knows",
         "t,i,o\n01/02/2026 10:00:00,10,4\n", columns("t", "i", "o"),
         refused="01/02/2026 10:00:00 (dates and times are read as 2026-01-31T13:00:00.5Z)"),
    Case("mooncake-dates", "rows in Mooncake's shape with dates",
         lines(*(row | {"timestamp": f"2026-01-01T00:00:0{k}+01:00"} for k, row in enumerate(MOONCAKE))),
         {}, MOONCAKE_ROWS),
    Case("guidellm-mooncake", "vllm-project/guidellm pull request 948: Mooncake's rows in seconds",
         lines(*({"timestamp": k / 5, "input_length": 10, "output_length": 5, "hash_ids": [k]} for k in range(9))),
         {"limit": 1}, ((0.0, 10, 5),), note="as s it would be 5 requests/s: set trace.unit=s"),
    Case("created-us", "a log of chat completions in microseconds",
         lines(*(CHAT | {"created": 1_800_000_000_000_000 + 500_000 * k} for k in range(4))),
         {"unit": "us", "limit": 2}, ((0.0, 100, 20), (0.5, 100, 20))),
    Case("created-ns", "a log of chat completions in nanoseconds",
         lines(*(CHAT | {"created": 1_800_000_000_000_000_000 + 10**9 * k} for k in range(4))),
         refused="if it is not in s, set trace.unit=ns"),
    Case("table-ns", "LLMServingSim and others: nanoseconds since 1970, taken for seconds",
         "t,i,o\n" + "".join(f"{1_800_000_000 + k}000000000,10,4\n" for k in range(4)), columns("t", "i", "o"),
         refused="if it is not in s, name it as arrival_ns"),
    Case("one-clock-wrong", "a log whose first request has the time 0",
         "t,i,o\n0,10,4\n" + "".join(f"{1_800_000_000 + k},10,4\n" for k in range(30)),
         columns("t", "i", "o") | {"limit": 2}, ((0.0, 10, 4), (1.0, 10, 4)),
         note="1 of 31 records cannot be read; they are left out (first: line 2: t is 0, more than 5e+08 s"),
    Case("one-start-0", "ai-dynamo/aiperf, a record with request_start_ns 0",
         lines(*(aiperf(k, k + 0.5, (100, 10)) for k in range(30)),
               aiperf(3, 4, (9, 9), request_start_ns=0)), {"limit": 2}, ((0.0, 100, 10), (1.0, 100, 10)),
         note="first: a request was sent at 0, more than 5e+08 s from the median of all"),
)  # fmt: skip

VALUES = (
    Case("numbers-as-texts", "logs of JavaScript, numbers as texts",
         lines(*(row | {"timestamp": str(row["timestamp"]), "input_length": "600"} for row in MOONCAKE)),
         {}, MOONCAKE_ROWS),
    Case("usage-as-texts", "logs of gateways that write all values as texts",
         lines({"created": "1800000000", "usage": {"prompt_tokens": "12", "completion_tokens": "3"}}),
         {}, ((0.0, 12, 3),)),
    Case("named-blocks", "block hashes as texts in hexadecimal, as vLLM's KV events have them",
         lines(*(row | {"hash_ids": ["a0", f"b{k}"]} for k, row in enumerate(MOONCAKE))), {}, MOONCAKE_ROWS),
    Case("u64-columns", "ai-dynamo/dynamo pull request 12046: ids of 64 bits without a sign, by trace.columns",
         lines(*({"t": k, "i": 32, "o": 4, "h": [2**63 + 1, 2**63 + 2 + k]} for k in range(2))),
         columns("t", "i", "o", hash_ids="h") | {"block_tokens": 16}, ((0.0, 32, 4), (1.0, 32, 4))),
    Case("blocks-of-16", "Mooncake's rows with blocks of 16 tokens",
         lines(*({"timestamp": k, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]} for k in range(3))),
         refused="hash_ids do not fit the length: 40 tokens in blocks of 512 need ceil(40 / 512) ids"
         " (set trace.block_tokens=16)"),
    Case("no-number", "Python's json writes NaN where pandas had none",
         '{"t": 0, "i": 10, "o": 4}\n{"t": 1, "i": 5, "o": NaN}\n{"t": 1.5, "i": 11, "o": 4}\n',
         columns("t", "i", "o") | {"bad_records": 0.4}, TWO, note="first: line 2: output_tokens is nan"),
    Case("values-of-two-types", "logs whose usage is a text where it failed",
         lines({"t": 0, "u": {"i": 10, "o": 4}}, {"t": 1, "u": "none"}, {"t": 1.5, "u": {"i": 11, "o": 4}}),
         columns("t", "u.i", "u.o") | {"bad_records": 0.4}, TWO, note="1 of 3 records cannot be read"),
    Case("array-cut-short", "a download of an array that was broken off",
         json.dumps([{"t": k, "i": 10, "o": 4} for k in range(30)])[:-9], columns("t", "i", "o") | {"limit": 2},
         ((0.0, 10, 4), (1.0, 10, 4)), note="1 of 30 records cannot be read; they are left out (first: not JSON"),
    Case("burstgpt-names", "HPMLL/BurstGPT, BurstGPT_3.csv: sessions have names",
         BURST + "10.0,1722-a,4,GPT-4,100,10,110,Conversation log\n15.0,d598-b,1,GPT-4,50,0,50,Conversation log\n"
         "20.0,1722-a,2,GPT-4,130,5,135,Conversation log\n",
         columns("Timestamp", "Request tokens", "Response tokens", session_id="Session ID", duration_s="Elapsed time"),
         ((0.0, 100, 10), (10.0, 130, 5)), think_s=(0.0, 6.0), note="1 of 3 requests have 0 tokens"),
    Case("names-like-numbers", "sessions 7 and 007 are two",
         "t,i,o,s,d\n0,10,4,7,1\n1.5,11,4,007,1\n", columns("t", "i", "o", session_id="s", duration_s="d"), TWO,
         think_s=(0.0, 0.0)),
    Case("ends", "logs with the ends of requests in place of durations",
         "t,i,o,s,e\n1000,10,4,a,1500\n2500,11,4,a,2600\n", columns("t", "i", "o", "ms", session_id="s", end_ms="e"),
         TWO, think_s=(0.0, 1.0)),
    Case("an-end-unknown", "logs in which an interrupted request has no duration",
         "t,i,o,s,d\n0,10,4,a,\n1.5,11,4,a,1\n", columns("t", "i", "o", session_id="s", duration_s="d"), TWO,
         think_s=(0.0, 0.0), note="1 turns follow one whose end is not known; each opens a session of its own"),
    Case("a-negative-duration", "logs whose clock was set back",
         "t,i,o,s,d\n0,10,4,a,1\n1,9,9,b,-3\n1.5,11,4,c,1\n",
         columns("t", "i", "o", session_id="s", duration_s="d") | {"bad_records": 0.4}, TWO, think_s=(0.0, 0.0),
         note="first: line 3: d is negative, or before the arrival"),
    Case("cached-columns", "Anthropic's usage in a table: cached tokens next to input_tokens",
         "t,input_tokens,cache_read,cache_write,o\n0,5,5,,4\n1.5,1,0,10,4\n",
         columns("t", "input_tokens + cache_read + cache_write", "o"), TWO),
    Case("priorities", "vllm-project/vllm, the smaller priority is served first",
         "t,i,o,priority\n0,10,4,0\n1.5,11,4,10\n", columns("t", "i", "o"), TWO,
         note="reads priority where it is named, larger first; priority_low_first: smaller first, as vLLM"),
)  # fmt: skip

TOOLS = (
    Case("aiperf-replays", "ai-dynamo/aiperf: entries of the data set without x_correlation_id and turn_index",
         lines(aiperf(0, 1, (10, 4), conversation_id="e"), aiperf(1.5, 2, (11, 4), conversation_id="e")), {}, TWO),
    Case("aiperf-failed-null", "ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md: metrics are null",
         lines(aiperf(0, 1, (10, 4)) | {"metrics": None, "error": {"code": 499}}, aiperf(1, 2, (10, 4)),
               aiperf(2.5, 3, (11, 4))), {}, TWO, note="1 of 3 requests failed"),
    Case("aiperf-server-counts", "ai-dynamo/aiperf, docs/reference: usage fields of the server",
         lines(aiperf(0, 1, (1, 1)) | {"metrics": {"usage_prompt_tokens": {"value": 10},
                                                   "usage_completion_tokens": {"value": 4}}}), {}, ((0.0, 10, 4),)),
    Case("aiperf-reasoning", "ai-dynamo/aiperf: reasoning tokens next to output_token_count",
         lines(aiperf(0, 1, (1, 1)) | {"metrics": {"input_sequence_length": {"value": 10}, "output_token_count":
                                                   {"value": 3}, "reasoning_token_count": {"value": 1}}}),
         {}, ((0.0, 10, 4),)),
    Case("aiperf-no-ends", "ai-dynamo/aiperf: turns without an end",
         lines(*({"metadata": {"request_start_ns": 10**18 + k * 15 * 10**8, "x_correlation_id": "s", "turn_index": k},
                  "metrics": {"input_sequence_length": 10 + k, "output_sequence_length": 4}} for k in range(2))),
         {}, TWO, think_s=(0.0, 0.0), note="1 turns follow one whose end is not known"),
    Case("dynamo-some-hashes", "ai-dynamo/dynamo, DYN_AGENT_TRACE_REPLAY_HASHES off for a while",
         lines(dynamo(0, 500, (10, 4), trace_block_size=16, input_sequence_hashes=[2**63]),
               dynamo(1500, 1600, (11, 4))),
         {}, TWO, note="1 of 2 requests have no hash ids: their prompts are taken as unrelated"),
    Case("dynamo-otel", "ai-dynamo/dynamo, its otel sink", lines({"resourceLogs": [{"scopeLogs": []}]}),
         refused="logs of OpenTelemetry are not read"),
    Case("sessions-later", "ai-dynamo/dynamo, docs/dynosim/trace-formats.md: single rows before those of a session",
         lines({"timestamp": 0, "input_length": 10, "output_length": 4},
               {"timestamp": 1500, "session_id": "a", "input_length": 11, "output_length": 4}), {}, TWO),
    Case("sessions-grow", "ai-dynamo/dynamo, docs/dynosim/trace-formats.md: sessions without hash_ids",
         lines({"timestamp": 0, "session_id": "a", "input_length": 100, "output_length": 10},
               {"delay": 500, "session_id": "a", "input_length": 160, "output_length": 5}),
         {}, ((0.0, 100, 10), (0.5, 160, 5)), think_s=(0.0, 0.5), note="1 of 1 later turns carry what was said before"),
    Case("inference-perf-first-failed", "kubernetes-sigs/inference-perf, inference_perf/reportgen/base.py: no info",
         json.dumps([inference_perf(0, info=None, error={"error_type": "TimeoutError"}), inference_perf(1),
                     inference_perf(3)]), {}, ((0.0, 10, 4), (2.0, 10, 4)), note="1 of 3 requests failed"),
    Case("inference-perf-summary", "kubernetes-sigs/inference-perf, summary_lifecycle_metrics.json",
         json.dumps({"load_summary": {"count": 3}, "successes": {"count": 3}}), refused="a summary of a benchmark"),
    Case("llmperf-first-failed", "ray-project/llmperf, the first request met a limit of the rate",
         json.dumps([{"error_code": 429, "error_msg": "slow down"},
                     {"error_code": None, "number_input_tokens": 10, "number_output_tokens": 4}]),
         {}, ((0.0, 10, 4),), note="1 of 2 requests failed"),
    Case("guidellm-yaml", "vllm-project/guidellm, benchmarks.yaml", "metadata:\n  version: 1\nbenchmarks: []\n",
         refused="YAML is not read; have GuideLLM write its report as JSON"),
    Case("guidellm-failed", "vllm-project/guidellm, a run of which nothing came back",
         json.dumps({"benchmarks": [{"requests": {"successful": [], "errored": [{}], "incomplete": None}}]}),
         refused="no request has finished (1 of 1 requests failed"),
    Case("guidellm-old", "neuralmagic/guidellm 0.2, start_time next to the tokens",
         json.dumps({"benchmarks": [{"requests": {"successful": [
             {"prompt_tokens": 10 + k, "output_tokens": 4, "start_time": 7 + 1.5 * k} for k in range(2)]}}]}), {}, TWO),
    Case("vllm-first-a-summary", "vllm-project/vllm, --append-result to a result that was not detailed",
         json.dumps({"backend": "vllm", "request_throughput": 1.0}) + "\n" + json.dumps(BENCH), {"result": 2},
         ((0.0, 10, 3), (1.0, 30, 4)), note="1 of 3 requests failed"),
    Case("vllm-throughput", "vllm-project/vllm, bench throughput --output-json",
         json.dumps({"elapsed_time": 3.0, "num_requests": 9, "total_num_tokens": 99, "requests_per_second": 3.0}),
         refused="a summary of a benchmark has no requests"),
    Case("vllm-latency", "vllm-project/vllm, bench latency --output-json",
         json.dumps({"avg_latency": 3.0, "latencies": [3.0], "percentiles": {}}), refused="a summary of a benchmark"),
    Case("genai-perf-csv", "triton-inference-server/perf_analyzer, profile_export_genai_perf.csv",
         "Metric,avg,min,max\nRequest Latency (ms),1,1,1\n", refused="a summary of a benchmark has no requests"),
    Case("anthropic-no-times", "responses of Anthropic's API, which have no time",
         lines(*({"type": "message", "usage": {"input_tokens": 10 + k, "output_tokens": 4}} for k in range(2))),
         {}, ((0.0, 10, 4), (1.0, 11, 4)), note="they are drawn, Poisson at 1 requests/s"),
    Case("gateway-cached", "BerriAI/litellm: prompt_tokens that cannot hold the cached ones",
         lines({"created": 1_800_000_000, "usage": {"prompt_tokens": 5, "cache_read_input_tokens": 50,
                "completion_tokens": 7}}), {}, ((0.0, 55, 7),)),
    Case("embeddings", "BerriAI/litellm: embeddings among chats",
         lines(CHAT, CHAT | {"usage": {"prompt_tokens": 8, "total_tokens": 8}}), {}, ((0.0, 100, 20),),
         note="1 of 2 requests have 0 tokens"),
    Case("gemini", "responses of Google's API: advice on their names",
         lines({"createTime": "2026-01-01T00:00:00Z", "usageMetadata": {"promptTokenCount": 9,
                "candidatesTokenCount": 2}}),
         refused="{arrival_s: createTime, input_tokens: usageMetadata.promptTokenCount, output_tokens:"
         " usageMetadata.candidatesTokenCount}"),
    Case("bedrock", "model invocation logs of Amazon Bedrock",
         lines(*({"timestamp": f"2026-01-01T00:00:0{1.5 * k}Z", "input": {"inputTokenCount": 10 + k},
                  "output": {"outputTokenCount": 4}} for k in range(2))),
         columns("timestamp", "input.inputTokenCount", "output.outputTokenCount"), TWO),
    Case("sagemaker", "ai-dynamo/aiperf, docs/tutorials/sagemaker-data-capture.md", lines({"captureData": {}}),
         refused="captures of SageMaker are not read"),
    Case("messages", "data sets for fine-tuning by OpenAI's API: messages, some in parts",
         lines({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text",
                "text": "x" * 40}, {"type": "image_url"}]}, {"role": "assistant", "content": "y" * 16}]}),
         {}, ((0.0, 10, 4),)),
    Case("sharegpt-first-empty", "ShareGPT, conversations without turns",
         json.dumps([{"id": "a", "conversations": []}, {"id": "b", "conversations": [
             {"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 16}]}]),
         {}, ((0.0, 10, 4),), note="1 of 2 requests have 0 tokens"),
    Case("wildchat-gzip", "allenai/WildChat in packed JSON lines",
         gzip.compress(lines(wildchat("x" * 40, "y" * 16)).encode()), {}, ((0.0, 10, 4),)),
)  # fmt: skip

VARIANTS = (*CONTAINERS, *CLOCKS, *VALUES, *TOOLS)
