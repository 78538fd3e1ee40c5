"""From a Result to the reported numbers: the tables of requests and pools, and a summary."""

from __future__ import annotations

import functools
import math
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.clock import Clock, Shortest, allowed_latency_s, clock_of
from framework.metrics.load_state import load_state
from framework.metrics.paper_scores import gaps_of
from framework.metrics.parts import Seconds, by_class, named_ms, out_of_memory, rate, statistics_ms, too_large
from framework.metrics.request_table import counted, request_table
from framework.metrics.service.cancellations import cancellations
from framework.metrics.service.crashes import crash_figures
from framework.metrics.service.gateway import gateway_figures
from framework.metrics.service.left_out import left_out
from framework.metrics.service.programs import program_figures
from framework.metrics.service.slowdowns import slowdown_figures
from framework.metrics.service.static_batches import idle_seats
from framework.metrics.service.tail import tail_figures
from framework.metrics.slo import Slo
from framework.metrics.usage import (
    bubbles,
    costs,
    drafted,
    gpus_on,
    loaded,
    pool_table,
    prefill_batch_tokens,
    usage,
)
from framework.result import Gaps, Result, Spread
from framework.version import VERSION

Floats = NDArray[np.float64]
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Evaluation:
    """What is reported of one run: docs/columns.md has every key and column.

    Attributes:
        requests: One row a request, (N rows); times in seconds, null if undefined.
        summary: The figures of the run; latencies in ms, rates per second.
        pools: One row a pool.
        allowed_s: Mean latency in seconds, from sending to last token, that the SLO allows; inf without an SLO.

    Raises:
        KeyError: For a key that the summary lacks.

    Example:
        >>> run.evaluation.summary["goodput_rps"] == run.summary["goodput_rps"]
        True
    """

    requests: pl.DataFrame
    summary: dict[str, Any]
    pools: pl.DataFrame
    allowed_s: float = math.inf


def evaluate(result: Result, slo: Slo, shortest_s: Shortest = lambda chosen: 0.0) -> Evaluation:
    """The request table, the summary and the pool table of a run, computed together.

    Args:
        result: Of `simulate`.
        slo: What a good request keeps.
        shortest_s: For a set of requests, the least time in which any schedule could serve them. If trace and load do
            not fix a window, goodput is over at least this time for all requests (`framework.metrics.clock`).

    Returns:
        All that is reported of the run.

    Raises:
        InputError: For a limit on what the run has not kept.

    Example:
        >>> servelab.evaluate(run.result, servelab.Slo()).summary["completed"]
        60
    """
    gaps, clock = gaps_of(result), clock_of(result, slo, shortest_s)
    requests = request_table(result, slo, gaps, clock)
    summary = _summary(result, requests, gaps, clock)
    return Evaluation(requests, summary, pool_table(result, clock), allowed_latency_s(result.workload, slo))


def summarize(result: Result, slo: Slo, shortest_s: Shortest = lambda chosen: 0.0) -> dict[str, Any]:
    """The summary of a run: the keys of `vllm bench serve`, then those of a cluster, then the origin of the run.

    A key is None if it is undefined.

    1. Tokens, throughputs and latencies are those of completed requests. `itl` covers all gaps between tokens. `queue`
       is the time from arrival to the first step of the prefill.
    2. `duration` runs from the first request sent to the last answer of any kind, rejections included. Throughputs and
       `request_goodput` are over it.
    3. `goodput_rps`, the headline, is good requests per second of `window_s`, which `window` names
       (`framework.metrics.clock`). `slo_attainment` is good / offered, in a closed load times the share of the
       clients' time that was not overdue (1 - `overdue_share`). `goodput_per_gpu` is goodput over `gpus_on`.
    4. With a warm-up or a cool-down, requests outside the window are served, but no count, rate or latency includes
       them, except those of `framework.metrics.service.left_out`. Neglected requests
       (`framework.metrics.service.overdue`) count.
    5. Of the offered requests `out_of_memory_rate` were not served for lack of KV memory, and `preempted_rate` were
       preempted.
    6. `cache_hit_rate` is prompt tokens found in a cache / prompt tokens of requests that began their prefill; with
       stores below GPU memory also by tier (`framework.metrics.usage.loaded`).
    7. Speculation: `accepted_per_step` is drafts accepted / decodes of all steps (a step emits one token more),
       `speculation_acceptance` is drafts accepted / drafts.
    8. `bubble_share` is the share of the time in steps that pipeline stages wait, or that ranks in lockstep wait for
       the slowest. `idle_seat_share` is the idle share of the time of seats in static batches.
    9. Energy is per output token of completed requests, money per million output tokens of good ones. `good_per_usd`
       is good requests per dollar. Both use `usd_per_hour`, the price of the GPUs that were on (`gpus_on`).
    10. `load_state` and `latency_growth` say whether the run kept up (`framework.metrics.load_state`).
    11. `classes` has the figures of each class of requests, if the trace has classes
        (`framework.metrics.parts.figures`).
    12. If a policy scales the fleet: `framework.metrics.usage.fleet`.
    13. If the trace says what sets calls off: `framework.metrics.service.programs.program_figures`. If all requests
        are sent at once: `framework.metrics.service.tail.tail_figures`.
    14. If something may fail: `framework.metrics.service.crashes.crash_figures`, and `slowdown_figures`.
    """
    return evaluate(result, slo, shortest_s).summary


def _summary(result: Result, requests: pl.DataFrame, gaps: Gaps, clock: Clock) -> dict[str, Any]:
    others, requests = left_out(requests), counted(requests)
    finished = requests.filter(pl.col("state") == "finished")
    offered, good, completed = len(requests), int(requests["good"].sum()), len(finished)
    seconds = Seconds(_duration_s(result, clock), clock.window_s)
    duration_s, goodput_rps = seconds.duration, rate(good, clock.window_s)
    input_tokens, output_tokens = int(finished["input_tokens"].sum()), int(finished["output_tokens"].sum())
    used, on, state = usage(result, clock), gpus_on(result, clock), load_state(result, clock)
    return {
        "duration": duration_s,
        "completed": completed,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": rate(completed, duration_s),
        "request_goodput": rate(good, duration_s),
        "output_throughput": rate(output_tokens, duration_s),
        "total_token_throughput": rate(input_tokens + output_tokens, duration_s),
        **statistics_ms("ttft", finished["ttft_s"].to_numpy()),
        **statistics_ms("tpot", finished["tpot_s"].to_numpy()),
        **_gap_statistics_ms("itl", gaps.tokens),
        **statistics_ms("e2el", finished["e2e_s"].to_numpy()),
        **statistics_ms("queue", finished["queue_s"].to_numpy()),
        "goodput_rps": goodput_rps,
        "window_s": clock.window_s,
        "window": clock.name,
        "window_is_short": clock.is_short,
        "load_state": state.name,
        "latency_growth": None if np.isnan(state.growth) else state.growth,
        "offered": offered,
        **{state: len(requests.filter(pl.col("state") == state)) for state in ("rejected", "failed")},
        **cancellations(requests) | gateway_figures(requests),
        "preemptions": int(requests["preemptions"].sum()),
        "migrations": int(requests["migrations"].sum()),
        "out_of_memory_rate": out_of_memory(requests) / offered,
        "preempted_rate": int((requests["preemptions"] > 0).sum()) / offered,
        "slo_attainment": clock.attainment(good, offered),
        **({} if clock.overdue is None else {"overdue_share": clock.overdue}),
        **others | too_large(result, requests),
        "goodput_per_gpu": goodput_rps / on if on else 0.0,
        "gpus": result.cluster.gpus,
        "gpus_on": on,
        "gpu_hours": used["gpu_hours"],
        "mfu": used["mfu"],
        "mbu": used["mbu"],
        "kv_utilization": used["kv_utilization"],
        "mean_prefill_batch_tokens": prefill_batch_tokens(result),
        "cache_hit_rate": _cache_hit_rate(result),
        **loaded(result),
        **drafted(result),
        **(_gap_statistics_ms("message_itl", gaps.messages) if result.engine.speculation.most > 0 else {}),
        **(statistics_ms("reader_wait", finished["reader_wait_s"].to_numpy()) if "reader_wait_s" in finished else {}),
        **bubbles(result),
        **idle_seats(result),
        **program_figures(result, clock.counted) | tail_figures(result),
        **crash_figures(result, clock),
        **slowdown_figures(result, clock),
        **costs(result, requests, used, clock),
        **({"classes": by_class(requests, seconds)} if "slo_class" in requests.columns else {}),
        **_provenance(result),
    }


def _provenance(result: Result) -> dict[str, Any]:
    workload = result.workload
    return {
        "policy": result.policy,
        "predictor": result.predictor,
        "trace": workload.name,
        "trace_source": workload.source,
        "trace_sha256": workload.sha256 or None,
        **({"trace_caveat": workload.caveat} if workload.caveat else {}),
        "timing_source": result.timing_source,
        "extrapolated": result.extrapolated,
        "extrapolation": result.extrapolation,
        "prefix_cache": bool(result.engine.prefix_cache),
        "load": result.load,
        "seed": result.seed,
        **_software(),
    }


@functools.cache  # the code that a process has loaded does not change
def _software() -> dict[str, Any]:
    packages = {name: version(name) for name in ("numpy", "polars", "numba")}
    versions = {"servelab": VERSION, "python": platform.python_version(), **packages}
    return {"versions": versions, "git_revision": git_revision(_ROOT)}


def git_revision(root: Path) -> str | None:
    """The commit checked out in `root`, plus "-dirty" if tracked files were changed; None outside a repository."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _duration_s(result: Result, clock: Clock) -> float:
    """Seconds from the first request sent to the last answer of any kind."""
    end_s, arrival_s = (result.requests[name][clock.counted] for name in ("end_s", "arrival_s"))
    return float(np.nanmax(end_s) - np.nanmin(arrival_s))


def _gap_statistics_ms(name: str, gaps: Spread) -> dict[str, float | None]:
    values_s = (gaps.mean_s, gaps.median_s, gaps.std_s, gaps.p90_s, gaps.p95_s, gaps.p99_s)
    return named_ms(name, [value_s * 1e3 for value_s in values_s])


def _cache_hit_rate(result: Result) -> float | None:
    admitted = ~np.isnan(result.requests["start_s"])
    held, asked = result.requests["cached_tokens"][admitted], result.workload.input_tokens[admitted]
    return int(held.sum()) / int(asked.sum()) if len(asked) else None
