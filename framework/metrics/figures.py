"""The figures of a run: the meaning of each key of summary.json, its names, its unit, which way is better.

A row of METRICS describes a key; tables, pages, pictures and searches read it with `metric`. TIER in a key is the name
of a prefix store, such as dram.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from framework.cli.suggest import nearest
from framework.errors import InputError
from framework.metrics.figure import Better, Latency, Metric, row

_OF_TIER = re.compile(r"(cache_hit_rate|loaded_bytes)_(\w+)")


def metric(key: str) -> Metric:
    """The metric of a key; an unknown key gets only its name."""
    of_all, is_of_class, slo_class = key.partition("@")
    if is_of_class:
        found = metric(of_all)
        return replace(_renamed(found, key, lambda name: f"{name} of {slo_class}"), heading=found.heading)
    if key not in METRICS and (tier := _OF_TIER.fullmatch(key)):
        return _renamed(METRICS[f"{tier[1]}_TIER"], key, lambda name: name.replace("TIER", tier[2]))
    return METRICS.get(key) or row(key, "")


def _renamed(found: Metric, key: str, rename: Callable[[str], str]) -> Metric:
    name, short, spoken, heading = map(rename, (found.name, found.short, found.spoken, found.heading))
    return replace(found, key=key, name=name, short=short, spoken=spoken, heading=heading)


def direction(key: str, where: str, advice: str) -> Better:
    """The better side of a key, HIGHER or LOWER.

    Raises InputError for a key without a better side, and for an unknown one. The message names `where` the key was
    given and ends with `advice` on what to give instead.
    """
    known = metric(key)
    if known.better is not Better.NEITHER:
        return known.better
    if known.meaning:
        raise InputError(f"{where}: neither more nor less of {key} is better; {advice}")
    directed = [one.key for one in METRICS.values() if one.better is not Better.NEITHER and not one.is_latency]
    raise InputError(
        f"{where}: nothing tells whether more or less of {key} is better; {advice}, or choose a latency, such as "
        f"p99_ttft_ms, or one of {', '.join(directed)}{nearest(key, METRICS)}"
    )


# --- the rows ---------------------------------------------------------------------------------------------------------

# fmt: off
LATENCIES: Mapping[str, Latency] = {
    "ttft": Latency("time to first token, of completed requests",
                    "s", "TTFT", "TTFT", "time to first token"),
    "tpot": Latency("time per output token after the first, of completed requests of more than one token",
                    "ms", "TPOT", "TPOT", "time per output token"),
    "itl": Latency("gap between two output tokens of a request (TBT), over all gaps",
                   "ms", "TBT", "TBT", "time between tokens"),
    "message_itl": Latency("the same for a client that receives the accepted tokens of a drafted step in one message",
                           "ms", "message TBT", "message TBT", "time between messages"),
    "reader_wait": Latency("time that a reader waits after the first token, of completed requests; if "
                           "slo.reader_wait_s is set", "s", "reader", "wait of readers", "wait of readers"),
    "e2el": Latency("time from arrival to last token (E2E), of completed requests",
                    "s", "E2E", "E2E", "end-to-end latency"),
    "queue": Latency("queue delay: time from arrival to the first step of the prefill, of completed requests",
                     "s", "queue", "queue delay", "queue delay"),
    "gateway": Latency("time at the gateway, of completed requests; only with a gateway",
                       "s", "gateway", "wait at the gateway", "wait at the gateway"),
}

_UP, _DOWN = Better.HIGHER, Better.LOWER

METRICS: Mapping[str, Metric] = {one.key: one for one in (
    row("goodput_rps", "requests/s of the window that kept their SLOs: the headline (see The clock)",
         "goodput", "req/s", _UP, heading="goodput\nreq/s"),
    row("request_goodput", "requests/s of the duration that completed and kept their SLOs, as vllm bench serve counts",
         "goodput over the duration", "req/s", _UP),
    row("slo_attainment", "share of the offered requests that completed and kept their SLOs",
         "SLO attainment", "%", _UP, short="SLO kept", spoken="requests within the SLO", heading="SLO\nmet %"),
    row("overdue_share", "share of the clients' time that their requests were under way beyond twice what the SLO "
         "allows; only in closed loads, whose goodput_rps and slo_attainment are less by it", "overdue", "%", _DOWN),
    row("uncounted_attainment", "that share of the requests that a warm-up or a cool-down leaves out; only if one "
         "does, like the next", "SLO attainment of requests not counted", "%"),
    row("uncounted_is_worse", "whether it is less than slo_attainment by more than chance: then what is counted was "
         "served at the expense of the rest"),
    row("goodput_per_gpu", "goodput_rps per GPU that was on (gpus_on)",
         "goodput per GPU", "req/s", _UP, heading="goodput\n/s/GPU"),
    row("goodput_bound", "requests/s: no schedule on this cluster could reach a higher goodput",
         "bound on goodput", "req/s"),
    row("share_of_bound", "goodput_rps / goodput_bound", "goodput / bound", "%", _UP, heading="of\nbound %"),
    row("bound_limit", "what limits goodput_bound"),
    row("request_throughput", "completed requests/s", "throughput", "req/s", _UP, heading="served\nreq/s"),
    row("output_throughput", "output tokens/s of completed requests",
         "output throughput", "tok/s", _UP, short="output", heading="out\ntok/s"),
    row("total_token_throughput", "input and output tokens/s of completed requests", "token throughput", "tok/s", _UP),
    *(one for key, latency in LATENCIES.items() for one in latency.rows(key)),
    row("window_s", "s: length of the window of goodput_rps, which no policy can shorten (see The clock)",
         "window", "s"),
    row("window", "definition of the window"),
    row("window_is_short", "whether the system spends much of the window filling up"),
    row("load_state", "stable, backlogged or overloaded: then latencies are functions of the run's length",
         "state of the load", heading="load"),
    row("latency_growth", "s/s: growth over the window of the time that requests spend in the system",
         "growth of latency", "s/s"),
    row("duration", "s: first request sent to last answer of any kind, rejections included", "duration", "s"),
    row("offered", "requests of the trace", "offered"),
    row("offered_rates", "with objective=offered: a row for each offered rate, what the lowest rate that failed lost "
         "requests to, and the measured CPU time of the runs and of the policy's Python hooks, which differs from run "
         "to run"),
    row("completed", "requests that emitted all their tokens", "completed", "", _UP),
    row("rejected", "requests refused on arrival", "rejected", "", _DOWN),
    row("failed", "requests that could not be completed", "failed", "", _DOWN),
    row("cancelled", "requests that the policy ended before their last token; only in runs that have some",
         "cancelled", "", _DOWN),
    row("gave_up", "cancelled requests whose clients gave up; only where clients give up", "given up", "", _DOWN),
    row("sent_again", "number of times that a client sent a request again after it gave up", "sent again", "", _DOWN),
    row("shed", "requests that the gateway refused because too many waited; only with a gateway, like the next two",
         "shed", "", _DOWN),
    row("expired", "requests that the gateway refused because they had waited for too long", "expired", "", _DOWN),
    row("gateway", "a row for each class, tenant and priority that the trace has: offered, these two, and the mean and "
         "the 99th percentile of the wait at the gateway of completed requests, in ms"),
    row("preemptions", "number of times that a request lost its KV and was computed again, or was swapped out",
         "preemptions", "", _DOWN, heading="pre-\nempted"),
    row("migrations", "number of times that a decoding request moved to another instance",
         "migrations", heading="mig-\nrated"),
    row("out_of_memory_rate", "share of the offered requests that were not served because KV memory was full",
         "out of memory", "%", _DOWN, heading="OOM\n%"),
    row("refused_kv_tokens", "KV tokens of the largest request that no instance could hold; only if there is one, like "
         "the next", "largest refused", "tok"),
    row("largest_kv_tokens", "KV tokens that one request could have on an instance", "largest served", "tok"),
    row("preempted_rate", "share of the offered requests that were preempted at least once", "preempted", "%", _DOWN),
    row("total_input_tokens", "prompt tokens of completed requests", "input tokens"),
    row("total_output_tokens", "output tokens of completed requests", "output tokens"),
    row("gpus", "GPUs of the cluster", "GPUs"),
    row("gpus_on", "GPUs that were on: their time up to the last answer over the window, or the run if that is "
         "shorter; at most all", "GPUs on"),
    row("gpu_hours", "hours that GPUs were on, up to the last answer", "GPU hours", "h", _DOWN),
    row("mfu", "share of the peak FLOP/s that the model's own arithmetic used",
         "MFU", "%", _UP, spoken="peak FLOP/s used"),
    row("mbu", "share of the peak memory bandwidth that weights and KV used",
         "MBU", "%", _UP, spoken="peak bandwidth used"),
    row("kv_utilization", "share of the KV memory in use, over time", "KV in use", "%"),
    row("mean_prefill_batch_tokens", "prompt tokens per step that computes any, on average; needs engine.log=full",
         "mean prefill batch", "tokens"),
    row("cache_hit_rate", "share of the prompt tokens found in a prefix cache", "cache hits", "%", _UP),
    row("cache_hit_rate_gpu", "share of the prompt tokens found in GPU memory", "cache hits in GPU memory", "%", _UP),
    row("cache_hit_rate_TIER", "share of the prompt tokens found in that prefix store", "cache hits in TIER", "%"),
    row("loaded_bytes_TIER", "bytes of KV read from that prefix store", "KV read from TIER", "bytes"),
    row("bubble_share", "share of the time in steps that pipeline stages wait, or that ranks in lockstep wait for the "
         "slowest", "bubbles", "%", _DOWN),
    row("idle_seat_share", "share of the time of seats in static batches after their request ended; needs "
         "engine.log=full", "idle seats", "%", _DOWN),
    row("accepted_per_step", "drafted tokens accepted per decode in a step", "drafts accepted per step", "", _UP),
    row("speculation_acceptance", "share of the drafted tokens that were accepted", "drafts accepted", "%", _UP),
    row("programs", "programs (sessions) that count; only if the trace says what sets calls off, like the next ten",
         "programs"),
    row("programs_completed", "programs all of whose calls completed",
         "programs completed", "", _UP),
    row("mean_program_s", "s: mean time of completed programs: first call sent to end of the last, tools and users too",
         "mean time of programs", "s", _DOWN),
    row("median_program_s", "s: median of that time",
         "median time of programs", "s", _DOWN),
    row("p99_program_s", "s: its 99th percentile",
         "P99 time of programs", "s", _DOWN),
    row("mean_program_slowdown", "mean of that time over the least that any schedule could take the program",
         "mean slowdown of programs", "", _DOWN),
    row("p99_program_slowdown", "its 99th percentile",
         "P99 slowdown of programs", "", _DOWN),
    row("recomputed_tokens", "prompt tokens of calls that the call before had, too, and that no cache held any more",
         "recomputed prompt tokens", "tokens", _DOWN),
    row("tool_kv_tokens", "KV tokens that caches held while tools ran, of those that the next call found, on average "
         "over the time from the first request to the last answer", "KV held for tools", "tokens"),
    row("user_hit_rate", "share of the prompt tokens found in a prefix cache, of calls that a user sets off",
         "cache hits of users' calls", "%", _UP),
    row("tool_hit_rate", "share of the prompt tokens found in a prefix cache, of calls that a tool's result sets off",
         "cache hits of tools' calls", "%", _UP),
    row("tail_s", "s: after 90 % of the completed requests had ended, until the last one did; only if all are sent at "
         "once; their makespan is `duration`", "tail", "s", _DOWN),
    row("availability", "share of the time of all instances, first request to last answer, for which they were up and "
         "made progress; only if something may fail, like the next nine", "availability", "%", _UP),
    row("dropped", "number of times that a crash took a request off its instance", "dropped by crashes", "", _DOWN),
    row("lost_tokens", "KV tokens of these requests that were lost", "KV lost in crashes", "tokens", _DOWN),
    row("dropped_recomputed", "number of times that such a request was then computed again", "recomputed after crashes",
         ""),
    row("dropped_restored", "number of times that it was restored from a backup of its KV instead",
         "restored after crashes", ""),
    row("dropped_failed", "number of times that it failed", "failed in crashes", "", _DOWN),
    row("restored_tokens", "KV tokens that were read from backups", "KV restored", "tokens"),
    row("median_recovery_s", "s: median time from a crash to the next token of a request that it dropped; needs "
         "engine.log=full", "median recovery", "s", _DOWN),
    row("p99_recovery_s", "s: its 99th percentile", "P99 recovery", "s", _DOWN),
    row("crashes", "a row for each crash: time, seconds until it was noticed if any, instance, instances that were "
         "down with it, what it dropped, and the time until each of these requests had a token or had ended"),
    row("slowed_share", "share of the time of all instances, first request to last answer, for which they were slowed "
         "down; only if some were", "slowed down", "%", _DOWN),
    row("slowdowns", "a row for each slow-down that began before the last answer: time, instance, seconds, factor"),
    row("link_faults", "a row for each fault of a network that began before the last answer: time, instance, seconds, "
         "share of the bandwidth that is left"),
    row("starts", "times that an instance was switched on; only if one was switched on or off, or changed role and a "
         "phase so grew and shrank, like the next four"),
    row("stops", "times that an instance went off"),
    row("reversals", "changes after which a phase has fewer instances while their number last grew, or more while it "
         "last shrank: how a fleet oscillates"),
    row("mean_instances_on", "mean over the run of the instances that are on: from the order to start until off"),
    row("fleet", "a row for each pool: these four, gpu_hours, energy_j and cost_usd"),
    row("energy_j", "J: energy of the GPUs", "energy", "J", _DOWN),
    row("energy_per_token_j", "J per output token of completed requests", "energy per token", "J", _DOWN),
    row("cost_usd", "USD: price of the GPUs for gpu_hours", "cost", "USD", _DOWN, heading="cost\n$"),
    row("usd_per_hour", "USD/hour: price of gpus_on", "price of the GPUs", "USD/hour", _DOWN, heading="price\n$/h"),
    row("usd_per_million_good_tokens", "USD for gpus_on over the window, per million output tokens of requests that "
         "kept their SLOs",
         "cost per million good tokens", "USD", _DOWN),
    row("good_per_usd", "requests that kept their SLOs per USD for gpus_on over the window",
         "good requests per USD", "", _UP),
    row("buckets", "figures by length of the prompt"),
    row("classes", "figures by class of requests, if the trace has classes"),
    row("tenants", "figures by tenant, if the trace has tenants; also its mean slowdown, and the service (prompt "
         "tokens + 2 x output tokens) that it asked for and received up to the last arrival; "
         "this and the next two spread accepted drafts evenly over the steps in which an instance decodes a request"),
    row("service_difference", "largest difference of the service of two tenants (prompt tokens + 2 x output tokens) "
         "in a window in which both wait; needs engine.log=full", "service difference", "tokens", _DOWN),
    row("jain_index", "Jain's index of the service of tenants up to the last arrival, relative to their max-min fair "
         "shares of it; 1: even; needs engine.log=full", "Jain's index", "", _UP),
    row("worst_slowdown", "highest mean slowdown of a tenant: latency of its completed requests over that of each "
         "alone on an instance, whole prompt in one step", "worst slowdown", "×", _DOWN),
    row("split", "how cluster.prefill=auto divided the instances, and the demand of a request on each pool"),
    row("capacity", "requests/s: the highest rate at which a share of the requests keeps the SLOs in the long run",
         "capacity", "req/s", _UP, heading="capacity\nreq/s"),
    row("capacity_per_gpu", "requests/s: capacity per GPU",
         "capacity per GPU", "req/s", _UP, heading="capacity\n/s/GPU"),
    row("capacity_low", "requests/s: the highest rate that was found to be sustained",
         "highest rate sustained", "req/s"),
    row("capacity_high", "requests/s: the lowest rate that was found not to be sustained",
         "lowest rate not sustained", "req/s"),
    row("capacity_half_width", "requests/s: half of the confidence interval over replicates",
         "half width of the capacity", "req/s"),
    row("capacity_replicates", "requests/s: capacity on each other sample of the trace"),
    row("capacity_replicates_of", "kind of the other samples"),
    row("capacity_attainment", "share of the requests that had to keep the SLOs", "attainment asked for", "%"),
    row("capacity_runs", "number of runs of the search", "runs of the search"),
    row("capacity_requests", "requests of the run that is shown", "requests at capacity"),
    row("capacity_seconds", "s: simulated time of the run that is shown", "time at capacity", "s"),
    row("capacity_settled", "whether each search, replicates included, decided if its last rates are sustained or "
         "not"),
    row("capacity_bound", "requests/s: no schedule on GPUs that may all do anything sustains as much; null: no rate "
         "is too high",
         "bound on the capacity", "req/s"),
    row("capacity_share_of_bound", "capacity / capacity_bound",
         "share of the bound on capacity", "%", _UP, heading="of the\nbound %"),
    row("capacity_bound_limit", "what limits capacity_bound"),
    row("offered_capacity", "requests/s at which a share of the requests keeps its SLO, read off a few offered rates",
         "capacity (read off)", "req/s", _UP),
    row("slo_tightness", "factor by which all limits could be divided while a share of the requests still keeps them",
         "tightness of the SLO", "×", _UP),
    row("policy", "the scheduling policy"),
    row("predictor", "the predictor of output lengths"),
    row("trace", "name of the trace"),
    row("trace_source", "origin of the requests: a recording (real), a fitted trace (twin), distributions (synthetic)",
         ),
    row("trace_sha256", "hash of the file that was read"),
    row("trace_caveat", "how the requests that trace.limit kept differ from the rest"),
    row("timing_source", "source of the step times"),
    row("extrapolated", "share of the busy time in steps beyond what was measured", "extrapolated", "%"),
    row("extrapolation", "how far the farthest step lay beyond what was measured; 1: none did", "extrapolation", "×"),
    row("prefix_cache", "whether equal prefixes shared their KV"),
    row("load", "open or closed"),
    row("seed", "of random draws"),
    row("versions", "of servelab, Python and packages"),
    row("git_revision", "commit of the checkout"),
)}
# fmt: on

HEADLINE = "goodput_rps"  # key by which runs are ranked
HEADLINE_PER_GPU = "goodput_per_gpu"  # key that ranks runs on different numbers of GPUs
