"""The summary of a run computed a second time, in plain Python, from the files that the run has written.

Definitions are those of docs/columns.md, `framework.metrics` (docstrings) and `framework/engine/SEMANTICS.md`. What
follows takes no number from `framework.metrics`, and from the engine only what `Unreported` holds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from framework.load import Open
from framework.metrics.slo import Slo
from tests.helpers.recomputed_clock import Clock, allowed_s, clock
from tests.helpers.recomputed_crashes import crash_figures
from tests.helpers.recomputed_load import load
from tests.helpers.recomputed_tenants import fairness, reader_wait_s
from tests.helpers.recomputed_work import fleet, hardware, mechanisms, work_of
from tests.helpers.reported import Row, Run, Summary, percentile, share
from tests.helpers.scenarios import Scenario

_STATISTICS: Mapping[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "std": statistics.pstdev,
    "p90": lambda values: percentile(values, 90),
    "p95": lambda values: percentile(values, 95),
    "p99": lambda values: percentile(values, 99),
}


def _of_messages(run: Run) -> Summary:
    """Gaps between messages: an accepted draft comes with the token before it, after no time."""
    if run.scenario.engine.speculation.most == 0:
        return {}
    accepted = run.unreported.accepted
    every = sorted(gap_s for token_s in run.unreported.token_s for gap_s in gaps_s(token_s))
    assert not any(every[:accepted])
    return _of_values("message_itl", every[accepted:])


def _given_up(run: Run, over: Clock) -> Summary:
    """Clients that gave up and came back."""
    if run.scenario.load.patience.wait_s is None:
        return {}
    return {
        "gave_up": sum(row["reason"] == "gave up" for row in over.rows),
        "sent_again": sum(max(row["attempts"], 1) - 1 for row in over.rows),
    }


def _of_values(name: str, values_s: Iterable[float | None], wanted: Iterable[str] = tuple(_STATISTICS)) -> Summary:
    values_ms = [1e3 * value_s for value_s in values_s if value_s is not None]
    return {f"{key}_{name}_ms": _STATISTICS[key](values_ms) if values_ms else None for key in wanted}


def gaps_s(token_s: list[float]) -> list[float]:
    """Between consecutive tokens of a request."""
    return [later_s - earlier_s for earlier_s, later_s in pairwise(token_s)]


def limit_s(slo: Slo, name: str, slo_class: str | None) -> float:
    """Of a request of that class; inf: none."""
    own = (slo.classes or {}).get(slo_class, {}) if slo_class is not None else {}
    limit = own[name] if name in own else getattr(slo, name)
    return math.inf if limit is None else float(limit)


def verdicts(run: Run) -> list[tuple[bool, bool, bool]]:
    """`ttft_ok`, `tpot_ok` and `good` of each request."""
    found = []
    for row, token_s in zip(run.requests, run.unreported.token_s, strict=True):
        limits = {
            name: limit_s(run.slo, name, row.get("slo_class"))
            for name in ("ttft_s", "tpot_s", "tbt_p99_s", "tbt_tail_s", "normalized_s")
        }
        is_finished = row["state"] == "finished"
        ttft_ok = row["ttft_s"] is not None and row["ttft_s"] <= limits["ttft_s"]
        tpot_ok = is_finished and (row["tpot_s"] is None or row["tpot_s"] <= limits["tpot_s"])
        good = is_finished and ttft_ok and tpot_ok
        if good:
            gaps = sorted(gaps_s(token_s))
            slowest = gaps[-math.ceil(len(gaps) / 10) :]
            good &= row["tbt_p99_s"] is None or row["tbt_p99_s"] <= limits["tbt_p99_s"]
            good &= not gaps or statistics.fmean(slowest) <= limits["tbt_tail_s"]
            good &= row["e2e_s"] / row["output_tokens"] <= limits["normalized_s"]
            good &= _keeps_slowdown(run, row)
            good &= reader_wait_s(token_s, run.slo) <= limit_s(run.slo, "reader_wait_s", row.get("slo_class"))
            good &= late_s(run, row["request_id"]) <= 0
        found.append((ttft_ok, tpot_ok, good))
    return found


def late_s(run: Run, number: int) -> float:
    """How much later a call of an open load was sent than if what it waits for had taken twice what the SLO allows, and
    had been sent as late as that, too; 0 for one that waits for none.
    """
    workload = run.scenario.workload
    if workload.previous is None or not isinstance(run.scenario.load, Open) or workload.previous[number] < 0:
        return 0.0
    joins = [] if workload.joins is None else workload.joins.tolist()
    awaited = [int(workload.previous[number]), *(other for call, other in joins if call == number)]
    ended_s = [run.unreported.end_s[other] for other in awaited]
    rows = [run.requests[other] for other in awaited]
    late = [
        late_s(run, other) + end_s - row["arrival_s"] - 2 * allowed_s(run, row)
        for other, end_s, row in zip(awaited, ended_s, rows, strict=True)
    ]
    if len(awaited) == 1:
        return late[0]
    return max(ended_s) - max(end_s - late_by_s for end_s, late_by_s in zip(ended_s, late, strict=True))


def _keeps_slowdown(run: Run, row: Row) -> bool:
    limits = run.slo.slowdown
    if limits is None:
        return True
    first_s, later_s = run.alone.times_s(row["input_tokens"], row["output_tokens"])
    kept = limits.ttft is None or row["ttft_s"] / first_s <= limits.ttft
    if row["output_tokens"] > 1:
        kept &= limits.tpot is None or (row["e2e_s"] - row["ttft_s"]) / later_s <= limits.tpot
    return kept and (limits.e2e is None or row["e2e_s"] / (first_s + later_s) <= limits.e2e)


def _served(rows: Sequence[Row], good: list[Row], over: Clock) -> Summary:
    """What is said of all requests and of those of a bucket alike, but for the statistics of latencies."""
    duration_s = over.duration_s
    completed = [row for row in rows if row["state"] == "finished"]
    prompts, outputs = (sum(row[name] for row in completed) for name in ("input_tokens", "output_tokens"))
    amounts = {
        "request_throughput": len(completed),
        "request_goodput": len(good),
        "output_throughput": outputs,
        "total_token_throughput": prompts + outputs,
    }
    rates = {name: amount / duration_s if duration_s > 0 else 0.0 for name, amount in amounts.items()}
    return {
        "completed": len(completed),
        "offered": len(rows),
        "slo_attainment": share(len(good), len(rows)),
        "goodput_rps": share(len(good), over.window_s) or 0.0,
        **rates,
    }


def _of_those_not_counted(run: Run, good: list[bool], over: Clock) -> Summary:
    """How those fared that a warm-up or a cool-down leaves out; nothing where it leaves out none."""
    counted = set(over.numbers)
    others = [good[k] for k in range(len(run.requests)) if k not in counted]
    if not others:
        return {}
    of_others, own = statistics.fmean(others), statistics.fmean(good[k] for k in counted)
    variance = statistics.pvariance([float(each) for each in good]) * (1 / len(others) + 1 / len(counted))
    is_worse = own > of_others and (own - of_others) ** 2 > 1.96**2 * variance
    return {"uncounted_attainment": of_others, "uncounted_is_worse": is_worse}


def _classes(run: Run, good: list[Row], over: Clock) -> Summary:
    """Figures of each class; nothing where the trace has none."""
    if run.scenario.workload.slo_class is None:
        return {}
    found: Summary = {}
    for name in {row["slo_class"] for row in over.rows}:
        rows = [row for row in over.rows if row["slo_class"] == name]
        completed = [row for row in rows if row["state"] == "finished"]
        found[name] = {
            **_served(rows, [row for row in good if row["slo_class"] == name], over),
            "out_of_memory": sum(row["reason"] == "kv" for row in rows),
            **_of_values("ttft", [row["ttft_s"] for row in completed]),
            **_of_values("tpot", [row["tpot_s"] for row in completed]),
            **_of_values("e2el", [row["e2e_s"] for row in completed]),
            **_of_values("queue", [row["queue_s"] for row in completed]),
        }
    return {"classes": found}


def _of_readers(run: Run, over: Clock) -> Summary:
    """How long readers wait; nothing where the SLO does not limit it."""
    if all("reader_wait_s" not in row for row in run.requests):
        return {}
    numbers = [k for k in over.numbers if run.requests[k]["state"] == "finished"]
    return _of_values("reader_wait", [reader_wait_s(run.unreported.token_s[k], run.slo) for k in numbers])


def _tail(run: Run) -> Summary:
    """Of runs that send all their requests at one time."""
    sent = {row["arrival_s"] for row in run.requests}
    if len(run.requests) < 2 or len(sent) > 1 or None in sent:
        return {}
    ends_s = sorted(run.unreported.end_s[k] for k, row in enumerate(run.requests) if row["state"] == "finished")
    within = sum(10 * (k + 1) < 9 * len(ends_s) for k in range(len(ends_s)))  # that end before nine tenths have
    return {"tail_s": ends_s[-1] - ends_s[within] if ends_s else None}


def _of_gateway(run: Run, over: Clock) -> Summary:
    """Waits at the gateway, and refusals; nothing without one."""
    if run.scenario.engine.gateway.saturation == "none":
        return {}
    rows = []
    for column, called in (("slo_class", "class"), ("tenant", "tenant"), ("priority", "priority")):
        for name in sorted({row[column] for row in over.rows if column in row}):
            own = [row for row in over.rows if row[column] == name]
            rows.append({"by": called, "name": name, "offered": len(own), **_at_gateway(own, ("mean", "p99"))})
    return {**_at_gateway(over.rows), "gateway": rows}


def _at_gateway(rows: Sequence[Row], wanted: Iterable[str] = tuple(_STATISTICS)) -> Summary:
    waits_s = [row["gateway_s"] for row in rows if row["state"] == "finished"]
    refused = {reason: sum(row["reason"] == reason for row in rows) for reason in ("shed", "expired")}
    return {**refused, **_of_values("gateway", waits_s, wanted)}


def _tenants(run: Run, good: list[Row], over: Clock) -> Summary:
    """Figures of each tenant, and of how evenly they were served; nothing where the trace has none."""
    if run.scenario.workload.tenant is None:
        return {}
    found: Summary = {}
    of_all, of_each = fairness(run)
    for name in {row["tenant"] for row in over.rows}:
        rows = [row for row in over.rows if row["tenant"] == name]
        completed, wanted = [row for row in rows if row["state"] == "finished"], ("mean", "median", "p99")
        found[name] = {
            **_served(rows, [row for row in good if row["tenant"] == name], over),
            "out_of_memory": sum(row["reason"] == "kv" for row in rows),
            **_of_values("ttft", [row["ttft_s"] for row in completed], wanted),
            **_of_values("tpot", [row["tpot_s"] for row in completed], wanted),
            **_of_values("e2el", [row["e2e_s"] for row in completed], wanted),
            **_of_values("queue", [row["queue_s"] for row in completed], wanted),
            **of_each[name],
        }
    return {"tenants": found, **of_all}


def _buckets(run: Run, good: list[Row], over: Clock) -> list[Summary]:
    found = []
    for low, high in pairwise([0, *run.edges, None]):
        assert low is not None
        rows = [row for row in over.rows if low <= row["input_tokens"] < (math.inf if high is None else high)]
        completed, wanted = [row for row in rows if row["state"] == "finished"], ("median", "p95", "p99")
        found.append(
            {
                "from_tokens": low,
                "to_tokens": high,
                **_served(rows, [row for row in good if row in rows], over),
                "out_of_memory": sum(row["reason"] == "kv" for row in rows),
                **_of_values("ttft", [row["ttft_s"] for row in completed], wanted),
                **_of_values("tpot", [row["tpot_s"] for row in completed], wanted),
                **_of_values("e2el", [row["e2e_s"] for row in completed], wanted),
                **_of_values("queue", [row["queue_s"] for row in completed], wanted),
            }
        )
    return found


def _kernel_chosen(scenario: Scenario) -> str:
    """What follows the source of step times where they, and not the engine's setting, put decodes into tiles."""
    rows = [scenario.timing.rows[pool.gpu.name] for pool in scenario.cluster.pools]
    is_chosen = scenario.engine.attention.decode_rows is None and any(row.decode_rows > 0 for row in rows)
    return ", attention of chunks and decodes in one kernel" if is_chosen else ""


def _of_caches(run: Run) -> Summary:
    begun = [row for row in run.requests if row["queue_s"] is not None]
    asked, held = (sum(row[name] for row in begun) for name in ("input_tokens", "cached_tokens"))
    found: Summary = {"cache_hit_rate": share(held, asked)}
    hits, loaded = run.unreported.hit_tokens, run.unreported.loaded_bytes
    if hits:
        found["cache_hit_rate_gpu"] = share(held - sum(hits.values()), asked)
        found |= {f"cache_hit_rate_{name}": share(tokens, asked) for name, tokens in hits.items()}
        found |= {f"loaded_bytes_{name}": size for name, size in loaded.items()}
    return found


def _prefill_batch(run: Run) -> float | None:
    """Prompt tokens a step, of the steps that have some."""
    sizes = [row["prefill_tokens"] for row in run.steps for _ in range(row["steps"]) if row["prefill_tokens"]]
    return statistics.fmean(sizes) if sizes else None


def _idle_seats(run: Run) -> Summary:
    """Of static batches, which begin with a step that prefills: what their seats wait for the last request."""
    modes = [pool.batching or run.scenario.engine.batching for pool in run.pools]
    if "static" not in modes:
        return {}
    idle_s = whole_s = 0.0
    for instance in (i for i, mode in enumerate(modes) if mode == "static"):
        batch: list[tuple[int, float]] = []  # requests, and seconds, of each step
        for row in [*(row for row in run.steps if row["instance"] == instance), None]:
            if row is None or row["prefill_tokens"]:
                seats = max((requests for requests, _ in batch), default=0)
                whole_s += sum(seats * lasting_s for _, lasting_s in batch)
                idle_s += sum((seats - requests) * lasting_s for requests, lasting_s in batch)
                batch = []
            if row is not None and row["batch"]:
                batch += [(row["batch"], row["first_s"] + j * row["increment_s"]) for j in range(row["steps"])]
    return {"idle_seat_share": share(idle_s, whole_s)}


def summary(run: Run) -> Summary:
    """All keys that a run's figures and its configuration give."""
    over = clock(run)
    judged = verdicts(run)
    good = [run.requests[k] for k in over.numbers if judged[k][2]]
    finished = [row for row in over.rows if row["state"] == "finished"]
    works = [work_of(run, instance) for instance in range(len(run.pools))]
    served, used = _served(over.rows, good, over), hardware(run, works, over)
    if over.overdue is not None:
        served |= {"overdue_share": over.overdue, "slo_attainment": served["slo_attainment"] * (1 - over.overdue)}
    ends_s = [run.unreported.end_s[k] for k in over.numbers]
    kept_up = load(over.rows, ends_s, (over.from_s, over.to_s), over.is_short)
    paid_usd = used["usd_per_hour"] * over.window_s / 3600
    outputs, good_outputs = (sum(row["output_tokens"] for row in rows) for rows in (finished, good))
    workload, scenario = run.scenario.workload, run.scenario
    return {
        **served,
        **used,
        **mechanisms(run, works),
        **_of_caches(run),
        **_of_values("ttft", [row["ttft_s"] for row in finished]),
        **_of_values("tpot", [row["tpot_s"] for row in finished]),
        **_of_values("itl", [gap_s for token_s in run.unreported.token_s for gap_s in gaps_s(token_s)]),
        **_of_values("e2el", [row["e2e_s"] for row in finished]),
        **_of_values("queue", [row["queue_s"] for row in finished]),
        "out_of_memory_rate": share(sum(row["reason"] == "kv" for row in over.rows), len(over.rows)),
        "preempted_rate": share(sum(row["preemptions"] > 0 for row in over.rows), len(over.rows)),
        "duration": over.duration_s,
        "window_s": over.window_s,
        "window": over.name,
        "window_is_short": over.is_short,
        **_of_those_not_counted(run, [each[2] for each in judged], over),
        "load_state": kept_up.name,
        "latency_growth": kept_up.growth,
        "total_input_tokens": sum(row["input_tokens"] for row in finished),
        "total_output_tokens": outputs,
        "rejected": sum(row["state"] == "rejected" for row in over.rows),
        "failed": sum(row["state"] == "failed" for row in over.rows),
        **({"cancelled": cancelled} if (cancelled := sum(row["state"] == "cancelled" for row in over.rows)) else {}),
        **_given_up(run, over),
        "preemptions": sum(row["preemptions"] for row in over.rows),
        "migrations": sum(row["migrations"] for row in over.rows),
        **_of_messages(run),
        **_idle_seats(run),
        "goodput_per_gpu": share(served["goodput_rps"], used["gpus_on"]) or 0.0,
        "energy_per_token_j": share(used["energy_j"], sum(row["output_tokens"] for row in run.finished)),
        "usd_per_million_good_tokens": share(1e6 * paid_usd, good_outputs),
        "good_per_usd": share(len(good), paid_usd),
        "mean_prefill_batch_tokens": _prefill_batch(run),
        "buckets": _buckets(run, good, over),
        **_classes(run, good, over),
        **_tenants(run, good, over),
        **_of_readers(run, over),
        **_of_gateway(run, over),
        **_tail(run),
        **crash_figures(run),
        **fleet(run, works),
        "trace": workload.name,
        "trace_source": workload.source,
        "trace_sha256": workload.sha256 or None,
        **({"trace_caveat": workload.caveat} if workload.caveat else {}),
        "timing_source": scenario.timing.source + _kernel_chosen(scenario),
        "prefix_cache": scenario.engine.prefix_cache,
        "load": scenario.load.name,
        "seed": scenario.seed,
    }
