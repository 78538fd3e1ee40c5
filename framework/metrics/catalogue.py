"""What each key of summary.json means, in one line. TIER stands for the name of a prefix store, such as dram."""

from __future__ import annotations

from collections.abc import Mapping

_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "std": "standard deviation",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
_LATENCIES = {
    "ttft": "time to first token, of completed requests",
    "tpot": "time per output token after the first, of completed requests of more than one token",
    "itl": "gap between two output tokens of a request (TBT), over all gaps",
    "message_itl": "the same as a client sees it to whom the tokens that a drafted step accepts come in one message",
    "e2el": "time from arrival to last token (E2E), of completed requests",
}

METRICS: Mapping[str, str] = {
    "request_goodput": "requests/s that completed and kept their SLOs",
    "slo_attainment": "share of the offered requests that completed and kept their SLOs",
    "goodput_per_gpu": "requests/s that kept their SLOs, for each GPU that was on, on average",
    "goodput_bound": "requests/s: no schedule on this cluster could reach a higher goodput",
    "share_of_bound": "goodput / goodput_bound",
    "bound_limit": "what goodput_bound comes from",
    "request_throughput": "completed requests/s",
    "output_throughput": "output tokens/s of completed requests",
    "total_token_throughput": "input and output tokens/s of completed requests",
    **{
        f"{statistic}_{latency}_ms": f"ms: {words}, {meaning}"
        for latency, meaning in _LATENCIES.items()
        for statistic, words in _STATISTICS.items()
    },
    "duration": "s: first arrival to last completion",
    "offered": "requests of the trace",
    "completed": "requests that emitted all their tokens",
    "rejected": "requests turned away",
    "failed": "requests that could not be completed",
    "preemptions": "how often a request lost its KV and was computed again, or was swapped out",
    "migrations": "how often a decoding request moved to another instance",
    "total_input_tokens": "prompt tokens of completed requests",
    "total_output_tokens": "output tokens of completed requests",
    "gpus": "GPUs of the cluster",
    "gpus_on": "GPUs that were on, averaged over the duration",
    "mfu": "share of the peak FLOP/s that the model's own arithmetic used",
    "mbu": "share of the peak memory bandwidth that weights and KV used",
    "kv_utilization": "share of the KV memory in use, over time",
    "cache_hit_rate": "share of the prompt tokens found in a prefix cache",
    "cache_hit_rate_gpu": "share of the prompt tokens found in GPU memory",
    "cache_hit_rate_TIER": "share of the prompt tokens found in that prefix store",
    "loaded_bytes_TIER": "bytes of KV read from that prefix store",
    "bubble_share": "share of the time in steps that pipeline stages wait",
    "accepted_per_step": "drafted tokens accepted, for each decode in a step",
    "speculation_acceptance": "share of the drafted tokens that were accepted",
    "energy_j": "J: energy of the GPUs",
    "energy_per_token_j": "J for each output token of completed requests",
    "cost_usd": "USD: price of the GPUs for the duration",
    "usd_per_million_good_tokens": "USD for each million output tokens of requests that kept their SLOs",
    "buckets": "figures by length of the prompt",
    "classes": "figures by class of requests, where the trace has classes",
    "capacity": "requests/s: the highest rate at which a share of the requests keeps the SLOs for good",
    "capacity_per_gpu": "requests/s: capacity for each GPU",
    "capacity_low": "requests/s: the highest rate that was seen to be sustained",
    "capacity_high": "requests/s: the lowest rate that was seen not to be",
    "capacity_half_width": "requests/s: half of the confidence interval over replicates",
    "capacity_replicates": "requests/s: capacity on each other sample of the trace",
    "capacity_replicates_of": "what the other samples are",
    "capacity_attainment": "share of the requests that had to keep the SLOs",
    "capacity_runs": "runs that the search took",
    "capacity_requests": "requests of the run that is shown",
    "capacity_seconds": "s: simulated time of the run that is shown",
    "capacity_settled": "whether each rate could be told to be sustained or not",
    "policy": "the scheduling policy",
    "predictor": "the predictor of output lengths",
    "trace": "name of the requests that were played",
    "trace_source": "where they came from: a recording, a twin, a law",
    "trace_sha256": "hash of the file that was read",
    "timing_source": "where the step times came from",
    "extrapolated": "share of the busy time in steps beyond what was measured",
    "extrapolation": "how far the farthest step lay beyond what was measured; 1: none did",
    "load": "open or closed",
    "seed": "of random draws",
    "versions": "of servelab, Python and packages",
    "git_revision": "commit of the checkout",
}
