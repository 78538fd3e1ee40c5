"""The figures of a run: the meaning of each key of summary.json, its names, its unit, which way is better.

A row of METRICS describes a key; tables, pages, pictures and searches read it with `metric`. TIER in a key is the name
of a prefix store, such as dram.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from framework.cli.suggest import nearest
from framework.errors import InputError

_LONG_MS = 1000.0  # milliseconds from which a latency reads better in seconds
_IN_WORDS = {"req/s": "requests/s", "tok/s": "tokens/s"}
_OF_TIER = re.compile(r"(cache_hit_rate|loaded_bytes)_(\w+)")


class Better(IntEnum):
    """Which way a figure is better; as a number, the sign of a change for the better, 0 if no change is."""

    HIGHER = 1
    NEITHER = 0
    LOWER = -1


@dataclass(frozen=True)
class Metric:
    """A key of summary.json, or of one class of requests as KEY@CLASS. Its value times `scale` is in `unit`.

    `meaning` states it in one line. `name` is for tables (P99 TTFT), `short` for pages (TTFT P99), `spoken` for
    readers who know no abbreviation (P99 time to first token); `heading` stands over a narrow column, in lines.
    """

    key: str
    meaning: str
    name: str
    unit: str
    scale: float
    better: Better
    short: str
    spoken: str
    heading: str
    is_latency: bool = False

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """The value in its unit, None if the summary has none."""
        value = summary.get(self.key)
        return None if value is None else float(value) * self.scale

    @property
    def in_table(self) -> str:
        """The heading of a column: `P99 TTFT, s`."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def on_page(self) -> str:
        """The name of a row: `TTFT P99 (s)`."""
        return f"{self.short}{self._behind}"

    @property
    def on_axis(self) -> str:
        """The name of an axis: `P99 time to first token (s)`."""
        return f"{self.spoken}{self._behind}"

    @property
    def _behind(self) -> str:
        return f" ({_IN_WORDS.get(self.unit, self.unit)})" if self.unit else ""

    def readable(self, value_ms: float) -> Metric:
        """The metric, a latency, in the unit in which `value_ms` reads well: seconds or milliseconds."""
        if not self.is_latency:
            return self
        unit, scale = ("s", 1e-3) if value_ms >= _LONG_MS else ("ms", 1.0)
        return replace(self, unit=unit, scale=scale)


def metric(key: str) -> Metric:
    """The metric of a key; an unknown key gets only its name."""
    of_all, is_of_class, slo_class = key.partition("@")
    if is_of_class:
        found = metric(of_all)
        return replace(_renamed(found, key, lambda name: f"{name} of {slo_class}"), heading=found.heading)
    if key not in METRICS and (tier := _OF_TIER.fullmatch(key)):
        return _renamed(METRICS[f"{tier[1]}_TIER"], key, lambda name: name.replace("TIER", tier[2]))
    return METRICS.get(key) or _row(key, "")


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


# --- how rows are made ------------------------------------------------------------------------------------------------


def _row(
    key: str,
    meaning: str,
    name: str = "",
    unit: str = "",
    better: Better = Better.NEITHER,
    *,
    short: str = "",
    spoken: str = "",
    heading: str = "",
) -> Metric:
    """A row. Names that are not given equal `name`; a share is shown in %."""
    name = name or key
    folded = "\n".join([*re.split(r"[ _]", name), *([unit] if unit else [])])
    scale = 100.0 if unit == "%" else 1.0
    return Metric(key, meaning, name, unit, scale, better, short or spoken or name, spoken or name, heading or folded)


@dataclass(frozen=True)
class Latency:
    """A latency with statistics in the summary, in ms; tables and pages of fixed columns show it in `unit`."""

    meaning: str
    unit: str
    short: str
    name: str
    spoken: str

    def rows(self, key: str) -> Iterator[Metric]:
        """One row for each statistic: its meaning, its name, and its name after that of the latency."""
        scale = 1e-3 if self.unit == "s" else 1.0
        for statistic, (meaning, name, behind) in _STATISTICS.items():
            yield Metric(
                *(f"{statistic}_{key}_ms", f"ms: {meaning}, {self.meaning}", f"{name} {self.name}", self.unit, scale),
                *(Better.LOWER, f"{self.short} {behind}", f"{name} {self.spoken}"),
                *(f"{self.short} {self.unit}\n{behind}", True),
            )


_STATISTICS = {
    "mean": ("mean", "mean", "mean"),
    "median": ("median", "median", "P50"),
    "std": ("standard deviation", "std", "std"),
    "p90": ("90th percentile", "P90", "P90"),
    "p95": ("95th percentile", "P95", "P95"),
    "p99": ("99th percentile", "P99", "P99"),
}


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
}

_UP, _DOWN = Better.HIGHER, Better.LOWER

METRICS: Mapping[str, Metric] = {row.key: row for row in (
    _row("goodput_rps", "requests/s of the window that kept their SLOs: the headline (see The clock)",
         "goodput", "req/s", _UP, heading="goodput\nreq/s"),
    _row("request_goodput", "requests/s of the duration that completed and kept their SLOs, as vllm bench serve counts",
         "goodput over the duration", "req/s", _UP),
    _row("slo_attainment", "share of the offered requests that completed and kept their SLOs",
         "SLO attainment", "%", _UP, short="SLO kept", spoken="requests within the SLO", heading="SLO\nmet %"),
    _row("overdue_share", "share of the clients' time that their requests were under way beyond twice what the SLO "
         "allows; only in closed loads, whose goodput_rps and slo_attainment are less by it", "overdue", "%", _DOWN),
    _row("uncounted_attainment", "that share of the requests that a warm-up or a cool-down leaves out; only if one "
         "does, like the next", "SLO attainment of requests not counted", "%"),
    _row("uncounted_is_worse", "whether it is less than slo_attainment by more than chance: then what is counted was "
         "served at the expense of the rest"),
    _row("goodput_per_gpu", "goodput_rps per GPU that was on (gpus_on)",
         "goodput per GPU", "req/s", _UP, heading="goodput\n/s/GPU"),
    _row("goodput_bound", "requests/s: no schedule on this cluster could reach a higher goodput",
         "bound on goodput", "req/s"),
    _row("share_of_bound", "goodput_rps / goodput_bound", "goodput / bound", "%", _UP, heading="of\nbound %"),
    _row("bound_limit", "what limits goodput_bound"),
    _row("request_throughput", "completed requests/s", "throughput", "req/s", _UP, heading="served\nreq/s"),
    _row("output_throughput", "output tokens/s of completed requests",
         "output throughput", "tok/s", _UP, short="output", heading="out\ntok/s"),
    _row("total_token_throughput", "input and output tokens/s of completed requests", "token throughput", "tok/s", _UP),
    *(row for key, latency in LATENCIES.items() for row in latency.rows(key)),
    _row("window_s", "s: length of the window of goodput_rps, which no policy can shorten (see The clock)",
         "window", "s"),
    _row("window", "definition of the window"),
    _row("window_is_short", "whether the system spends much of the window filling up"),
    _row("load_state", "stable, backlogged or overloaded: then latencies are functions of the run's length",
         "state of the load", heading="load"),
    _row("latency_growth", "s/s: growth over the window of the time that requests spend in the system",
         "growth of latency", "s/s"),
    _row("duration", "s: first request sent to last answer of any kind, rejections included", "duration", "s"),
    _row("offered", "requests of the trace", "offered"),
    _row("completed", "requests that emitted all their tokens", "completed", "", _UP),
    _row("rejected", "requests refused on arrival", "rejected", "", _DOWN),
    _row("failed", "requests that could not be completed", "failed", "", _DOWN),
    _row("cancelled", "requests that the policy ended before their last token; only in runs that have some",
         "cancelled", "", _DOWN),
    _row("gave_up", "cancelled requests whose clients gave up; only where clients give up", "given up", "", _DOWN),
    _row("sent_again", "number of times that a client sent a request again after it gave up", "sent again", "", _DOWN),
    _row("preemptions", "number of times that a request lost its KV and was computed again, or was swapped out",
         "preemptions", "", _DOWN, heading="pre-\nempted"),
    _row("migrations", "number of times that a decoding request moved to another instance",
         "migrations", heading="mig-\nrated"),
    _row("out_of_memory_rate", "share of the offered requests that were not served because KV memory was full",
         "out of memory", "%", _DOWN, heading="OOM\n%"),
    _row("preempted_rate", "share of the offered requests that were preempted at least once", "preempted", "%", _DOWN),
    _row("total_input_tokens", "prompt tokens of completed requests", "input tokens"),
    _row("total_output_tokens", "output tokens of completed requests", "output tokens"),
    _row("gpus", "GPUs of the cluster", "GPUs"),
    _row("gpus_on", "GPUs that were on: their time up to the last answer over the window, or the run if that is "
         "shorter; at most all", "GPUs on"),
    _row("gpu_hours", "hours that GPUs were on, up to the last answer", "GPU hours", "h", _DOWN),
    _row("mfu", "share of the peak FLOP/s that the model's own arithmetic used",
         "MFU", "%", _UP, spoken="peak FLOP/s used"),
    _row("mbu", "share of the peak memory bandwidth that weights and KV used",
         "MBU", "%", _UP, spoken="peak bandwidth used"),
    _row("kv_utilization", "share of the KV memory in use, over time", "KV in use", "%"),
    _row("mean_prefill_batch_tokens", "prompt tokens per step that computes any, on average; needs engine.log=full",
         "mean prefill batch", "tokens"),
    _row("cache_hit_rate", "share of the prompt tokens found in a prefix cache", "cache hits", "%", _UP),
    _row("cache_hit_rate_gpu", "share of the prompt tokens found in GPU memory", "cache hits in GPU memory", "%", _UP),
    _row("cache_hit_rate_TIER", "share of the prompt tokens found in that prefix store",
         "cache hits in TIER", "%"),
    _row("loaded_bytes_TIER", "bytes of KV read from that prefix store", "KV read from TIER", "bytes"),
    _row("bubble_share", "share of the time in steps that pipeline stages wait, or that ranks in lockstep wait for the "
         "slowest", "bubbles", "%", _DOWN),
    _row("idle_seat_share", "share of the time of seats in static batches after their request ended; needs "
         "engine.log=full", "idle seats", "%", _DOWN),
    _row("accepted_per_step", "drafted tokens accepted per decode in a step",
         "drafts accepted per step", "", _UP),
    _row("speculation_acceptance", "share of the drafted tokens that were accepted", "drafts accepted", "%", _UP),
    _row("availability", "share of the time of all instances, first request to last answer, for which they were up and "
         "made progress; only if something may fail, like the next five", "availability", "%", _UP),
    _row("dropped", "number of times that a crash took a request off its instance", "dropped by crashes", "", _DOWN),
    _row("lost_tokens", "KV tokens of these requests that were lost", "KV lost in crashes", "tokens", _DOWN),
    _row("median_recovery_s", "s: median time from a crash to the next token of a request that it dropped; needs "
         "engine.log=full", "median recovery", "s", _DOWN),
    _row("p99_recovery_s", "s: its 99th percentile", "P99 recovery", "s", _DOWN),
    _row("crashes", "a row for each crash: time, seconds until it was noticed if any, instance, instances that were "
         "down with it, what it dropped, and the time until each of these requests had a token or had ended"),
    _row("slowed_share", "share of the time of all instances, first request to last answer, for which they were slowed "
         "down; only if some were", "slowed down", "%", _DOWN),
    _row("slowdowns", "a row for each slow-down that began before the last answer: time, instance, seconds, factor"),
    _row("link_faults", "a row for each fault of a network that began before the last answer: time, instance, seconds, "
         "share of the bandwidth that is left"),
    _row("starts", "times that an instance was switched on; only if one was switched on or off, like the next three"),
    _row("stops", "times that an instance went off"),
    _row("mean_instances_on", "mean over the run of the instances that are on: from the order to start until off"),
    _row("fleet", "a row for each pool: these three, gpu_hours, energy_j and cost_usd"),
    _row("energy_j", "J: energy of the GPUs", "energy", "J", _DOWN),
    _row("energy_per_token_j", "J per output token of completed requests", "energy per token", "J", _DOWN),
    _row("cost_usd", "USD: price of the GPUs for gpu_hours", "cost", "USD", _DOWN, heading="cost\n$"),
    _row("usd_per_hour", "USD/hour: price of gpus_on", "price of the GPUs", "USD/hour", _DOWN, heading="price\n$/h"),
    _row("usd_per_million_good_tokens", "USD for gpus_on over the window, per million output tokens of requests that "
         "kept their SLOs",
         "cost per million good tokens", "USD", _DOWN),
    _row("good_per_usd", "requests that kept their SLOs per USD for gpus_on over the window",
         "good requests per USD", "", _UP),
    _row("buckets", "figures by length of the prompt"),
    _row("classes", "figures by class of requests, if the trace has classes"),
    _row("tenants", "figures by tenant, if the trace has tenants; also its mean slowdown, and the service (prompt "
         "tokens + 2 x output tokens) that it asked for and received up to the last arrival"),
    _row("service_difference", "largest difference of the service of two tenants (prompt tokens + 2 x output tokens) "
         "in a window in which both wait; needs engine.log=full", "service difference", "tokens", _DOWN),
    _row("jain_index", "Jain's index of the service of tenants up to the last arrival, relative to their max-min fair "
         "shares of it; 1: even; needs engine.log=full", "Jain's index", "", _UP),
    _row("worst_slowdown", "highest mean slowdown of a tenant: latency of its completed requests over that of each "
         "alone on an instance, whole prompt in one step", "worst slowdown", "×", _DOWN),
    _row("split", "how cluster.prefill=auto divided the instances, and the demand of a request on each pool"),
    _row("capacity", "requests/s: the highest rate at which a share of the requests keeps the SLOs in the long run",
         "capacity", "req/s", _UP, heading="capacity\nreq/s"),
    _row("capacity_per_gpu", "requests/s: capacity per GPU",
         "capacity per GPU", "req/s", _UP, heading="capacity\n/s/GPU"),
    _row("capacity_low", "requests/s: the highest rate that was found to be sustained",
         "highest rate sustained", "req/s"),
    _row("capacity_high", "requests/s: the lowest rate that was found not to be sustained",
         "lowest rate not sustained", "req/s"),
    _row("capacity_half_width", "requests/s: half of the confidence interval over replicates",
         "half width of the capacity", "req/s"),
    _row("capacity_replicates", "requests/s: capacity on each other sample of the trace"),
    _row("capacity_replicates_of", "kind of the other samples"),
    _row("capacity_attainment", "share of the requests that had to keep the SLOs", "attainment asked for", "%"),
    _row("capacity_runs", "number of runs of the search", "runs of the search"),
    _row("capacity_requests", "requests of the run that is shown", "requests at capacity"),
    _row("capacity_seconds", "s: simulated time of the run that is shown", "time at capacity", "s"),
    _row("capacity_settled", "whether each search, replicates included, decided if its last rates are sustained or "
         "not"),
    _row("capacity_bound", "requests/s: no schedule on GPUs that may all do anything sustains as much; null: no rate "
         "is too high",
         "bound on the capacity", "req/s"),
    _row("capacity_share_of_bound", "capacity / capacity_bound",
         "share of the bound on capacity", "%", _UP, heading="of the\nbound %"),
    _row("capacity_bound_limit", "what limits capacity_bound"),
    _row("slo_tightness", "factor by which all limits could be divided while a share of the requests still keeps them",
         "tightness of the SLO", "×", _UP),
    _row("policy", "the scheduling policy"),
    _row("predictor", "the predictor of output lengths"),
    _row("trace", "name of the trace"),
    _row("trace_source", "origin of the requests: a recording (real), a fitted trace (twin), distributions (synthetic)",
         ),
    _row("trace_sha256", "hash of the file that was read"),
    _row("trace_caveat", "how the requests that trace.limit kept differ from the rest"),
    _row("timing_source", "source of the step times"),
    _row("extrapolated", "share of the busy time in steps beyond what was measured", "extrapolated", "%"),
    _row("extrapolation", "how far the farthest step lay beyond what was measured; 1: none did", "extrapolation", "×"),
    _row("prefix_cache", "whether equal prefixes shared their KV"),
    _row("load", "open or closed"),
    _row("seed", "of random draws"),
    _row("versions", "of servelab, Python and packages"),
    _row("git_revision", "commit of the checkout"),
)}
# fmt: on

HEADLINE = "goodput_rps"  # key by which runs are ranked
HEADLINE_PER_GPU = "goodput_per_gpu"  # key that ranks runs on different numbers of GPUs
