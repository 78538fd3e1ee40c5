"""The evidence for a cause in a run, as a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from framework.diagnosis.decode_steps import DecodeSteps
from framework.diagnosis.findings import Diagnosis, as_percent, as_time
from framework.diagnosis.waiting import Waiting
from framework.metrics.request_table import counted
from framework.metrics.service.programs import lost_tokens
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement
from framework.result import Result


def evidence(
    cause: str, experiment: Experiment, measurement: Measurement, seen: Diagnosis, waiting: Waiting | None
) -> str:
    """The sentence of a cause, one of `framework.diagnosis.removals.REMOVABLE`. `waiting`: why requests queued."""
    return _TELL[cause](_Case(experiment, measurement, seen, waiting))


@dataclass(frozen=True)
class _Case:
    experiment: Experiment
    measurement: Measurement
    seen: Diagnosis
    waiting: Waiting | None

    @property
    def result(self) -> Result:
        return self.measurement.result

    @property
    def requests(self) -> pl.DataFrame:
        return counted(self.measurement.evaluation.requests)

    @property
    def steps(self) -> DecodeSteps | None:
        """The parts of decode steps, if they are known."""
        steps = self.seen.losses.steps
        return None if steps is None or np.isnan(steps.step_s) else steps

    def mean_s(self, column: str) -> float:
        """The mean over the requests for which it is defined."""
        mean = self.requests[column].mean()
        return float(mean) if isinstance(mean, float) else float("nan")

    def pools(self, phase: str) -> list[Mapping[str, object]]:
        rows = self.measurement.evaluation.pools.iter_rows(named=True)
        return [row for row in rows if row["role"] in ("mixed", phase)]

    @property
    def crowded(self) -> str:
        """That KV memory is full, in a sentence; nothing if it is not. Who decodes faster frees it sooner."""
        waiting = self.waiting
        if waiting is None or not waiting.room.memory_is_full:
            return ""
        return f" KV memory is full while requests wait: {waiting.room.fullness}; faster decodes free it sooner."

    def limit(self, name: str) -> str:
        limit_s = getattr(self.experiment.slo, f"{name}_s")
        return f"{name.upper()} limit {as_time(limit_s)}" if limit_s is not None else f"no {name.upper()} limit for all"


def _prefill(case: _Case) -> str:
    busy = ", ".join(f"{row['pool']} {_share(row['utilization'])}" for row in case.pools("prefill"))
    waits = f"Requests wait {as_time(case.mean_s('queue_s'))} for a prefill of {as_time(case.mean_s('prefill_s'))}"
    return f"{waits} on average ({case.limit('ttft')}); instances are in steps for this share of the time: {busy}."


def _decode(case: _Case) -> str:
    steps = case.steps
    if steps is None:
        return f"Tokens take {as_time(case.mean_s('tpot_s'))} each on average ({case.limit('tpot')}).{case.crowded}"
    took = f"A decode step of {steps.batch:,.0f} requests takes {as_time(steps.step_s)} without any prefill"
    return f"{took}, tokens {as_time(case.mean_s('tpot_s'))} each on average ({case.limit('tpot')}).{case.crowded}"


def _context(case: _Case) -> str:
    steps = case.steps
    if steps is None:
        return _decode(case)
    share = as_percent(steps.context_s / steps.step_s)
    return f"Reading {steps.batch:,.0f} contexts of {steps.context_tokens:,.0f} tokens is {share} of a decode step."


def _host(case: _Case) -> str:
    return f"No step is shorter than what the host does for it; {_lower(_decode(case))}"


def _memory(case: _Case) -> str:
    summary = case.measurement.evaluation.summary
    used = ", ".join(f"{row['pool']} {_share(row['kv_utilization'])}" for row in case.pools("decode"))
    lost = as_percent(summary["out_of_memory_rate"])
    lacking = f"{summary['preemptions']:,} preemptions, {lost} not served for lack of it"
    return f"KV memory in use on average: {used}; {lacking}."


def _eviction(case: _Case) -> str:
    again, prompts = int(lost_tokens(case.result).sum()), int(case.result.workload.input_tokens.sum())
    said = f"Calls compute {again / 1e6:,.3g} million tokens again that the call before had"
    rates = ((name, case.measurement.evaluation.summary.get(f"{name}_hit_rate")) for name in ("user", "tool"))
    found = [f"{as_percent(rate)} of the prompts that a {name} sets off" for name, rate in rates if rate is not None]
    known = f"; found are {' and '.join(found)}" if found else ""
    return f"{said}, {as_percent(again / prompts)} of all tokens of prompts{known}."


def _seats(case: _Case) -> str:
    result = case.result
    most = {pool.name: result.engine.seats_of(pool) for pool in result.cluster.pools}
    rows = [row for row in case.pools("decode") if row["mean_batch"] is not None]
    batches = ", ".join(f"{row['pool']} {row['mean_batch']:.3g} of {most[str(row['pool'])]:,}" for row in rows)
    return f"Requests wait {as_time(case.mean_s('queue_s'))} on average, while steps decode so many: {batches}."


def _network(case: _Case) -> str:
    moved = float(np.nansum(case.result.instances["transferred_bytes"]))
    took = as_time(case.mean_s("transfer_s"))
    return f"{moved / 1e9:,.3g} GB cross the network; a transfer, with the wait for it, takes {took} on average."


def _interference(case: _Case) -> str:
    steps = case.steps
    if steps is None or np.isnan(steps.stall_s):
        return "Prefills and decodes share instances."
    return (
        f"On each instance a prefill comes every {as_time(steps.stall_every_s)} and adds {as_time(steps.stall_s)} to a "
        f"gap of {as_time(steps.step_s)} of those who decode with it."
    )


def _drafting(case: _Case) -> str:
    summary = case.measurement.evaluation.summary
    drafted = case.experiment.engine.speculation.most
    share = as_percent(summary.get("speculation_acceptance") or 0.0)
    return f"Steps draft up to {drafted} tokens for each decode; {share} of the drafts were right."


def _ranks(case: _Case) -> str:
    choices = {pool.rank_choice: pool.parallelism.dp for pool in case.result.cluster.pools if pool.has_ranks}
    named = ", ".join(f"{dp} ranks by {choice}" for choice, dp in choices.items())
    return f"A step lasts as long as that of its slowest rank; requests are spread over {named}."


def _routing(case: _Case) -> str:
    result, parts = case.result, []
    duration_s = case.measurement.evaluation.summary["duration"]
    for index, pool in enumerate(result.cluster.pools):
        busy = result.instances["busy_s"][result.instances["pool"] == index] / duration_s
        if len(busy) > 1:
            parts.append(f"of {pool.name} {as_percent(busy.max())} and {as_percent(busy.min())}")
    waits = f"Requests wait {as_time(case.mean_s('queue_s'))} for their prefill on average"
    shares = f"the busiest and the idlest instance are in steps for this share of the time: {', '.join(parts)}"
    return f"{waits}; {shares}." if parts else f"{waits}."


def _order(case: _Case) -> str:
    requests = case.requests
    if "slo_class" in requests.columns and requests["slo_class"].n_unique() > 1:
        classes = requests.group_by("slo_class").agg(pl.col("good").mean()).sort("slo_class").iter_rows()
        return f"The SLO is kept by class: {', '.join(f'{name} {as_percent(share)}' for name, share in classes)}."
    tokens, good = requests["input_tokens"].to_numpy(), requests["good"].to_numpy()
    middle = float(np.median(tokens))
    long = tokens > middle
    shares = [as_percent(float(good[own].mean())) if own.any() else "none" for own in (long, ~long)]
    return f"Of prompts longer than {middle:,.0f} tokens {shares[0]} kept the SLO, of the others {shares[1]}."


def _ticks(case: _Case) -> str:
    duration_s = case.measurement.evaluation.summary["duration"]
    return f"The policy acts every {as_time(case.experiment.policy.tick_s or 0.0)} of a run of {as_time(duration_s)}."


def _starts(case: _Case) -> str:
    setting = case.experiment.setting
    start_s = max(setting.start_s(pool) for pool in setting.cluster.pools)
    change_s = setting.engine.role_change_s
    return f"An instance takes {as_time(start_s)} to start and {as_time(change_s)} to change its role."


def _admission(case: _Case) -> str:
    summary = case.measurement.evaluation.summary
    return f"{summary['rejected']:,} of {summary['offered']:,} requests were rejected on arrival."


def _failures(case: _Case) -> str:
    summary = case.measurement.evaluation.summary
    crashes, dropped, lost = len(summary["crashes"]), summary["dropped"], summary["lost_tokens"]
    took = f"took requests off their instances {dropped:,} times, with {lost:,} KV tokens"
    said = f"Crashes ({crashes:,}) {took}; instances were up for {_share(summary['availability'])} of the time."
    if "slowdowns" not in summary:
        return said
    slow = f"Slow-downs ({len(summary['slowdowns']):,}) took {_share(summary['slowed_share'])} of their time."
    return f"{said} {slow}" if crashes else slow


def _share(value: object) -> str:
    return as_percent(value) if isinstance(value, float) else "unknown"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


_TELL: Mapping[str, Callable[[_Case], str]] = {
    "prefill": _prefill,
    "decode": _decode,
    "context": _context,
    "host": _host,
    "eviction": _eviction,
    "memory": _memory,
    "seats": _seats,
    "network": _network,
    "interference": _interference,
    "drafting": _drafting,
    "ranks": _ranks,
    "routing": _routing,
    "order": _order,
    "ticks": _ticks,
    "starts": _starts,
    "failures": _failures,
    "admission": _admission,
}
