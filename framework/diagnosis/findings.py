"""Why a run lost goodput, as sentences with their numbers; the cause that cost most comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.diagnosis.losses import CAUSES, Losses, losses_of
from framework.diagnosis.waiting import Waiting, decode_room, waiting_of
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation
from framework.result import Result

Flags = NDArray[np.bool_]
LEAST_SHARE, LEAST = 0.01, 3  # share of the offered requests, and count, that a cause must cost to be reported
_NORMAL = 0.05  # share of missed limits that counts as normal


@dataclass(frozen=True)
class Finding:
    """A cause: the `lost` requests that it cost, its `title`, the `evidence`, and settings that act on it."""

    cause: str
    lost: int
    share: float  # share of the offered requests
    title: str
    evidence: str
    settings: str


@dataclass(frozen=True)
class Diagnosis:
    """The losses of a run and their causes. `signature`: which limits were missed. No findings if hardly any
    was lost.
    """

    offered: int
    lost: int
    signature: str
    findings: tuple[Finding, ...]
    losses: Losses


def is_worth_telling(requests: int, lost: int) -> bool:
    """Whether `lost` requests are more than a few."""
    return lost >= max(LEAST, LEAST_SHARE * requests)


def diagnose(result: Result, evaluation: Evaluation, slo: Slo) -> Diagnosis:
    """The diagnosis of a run that `slo` has judged."""
    losses = losses_of(result, evaluation, slo)
    case = _Case(result, evaluation, slo, losses)
    found = []
    for name in CAUSES:
        lost = int(losses.of(name).sum())
        if is_worth_telling(losses.offered, lost):
            found.append(case.finding(name, lost))
    found.sort(key=lambda finding: -finding.lost)
    signature = _signature(losses) if found else ""
    return Diagnosis(losses.offered, losses.lost, signature, tuple(found), losses)


def _signature(losses: Losses) -> str:
    finished = max(1, losses.offered - int(losses.of("unserved").sum()))
    shares = {"TTFT": losses.ttft_missed.sum() / finished, "TPOT": losses.tpot_missed.sum() / finished}
    parts = [f"{name} {'high' if share > _NORMAL else 'normal'}" for name, share in shares.items()]
    missed = [f"{100 * share:.1f} % miss {name}" for name, share in shares.items()]
    return f"{', '.join(parts)} ({', '.join(missed)})"


@dataclass(frozen=True)
class _Case:
    """A run, and the sentences that report its causes."""

    result: Result
    evaluation: Evaluation
    slo: Slo
    losses: Losses

    def finding(self, cause: str, lost: int) -> Finding:
        tell: dict[str, Callable[[Flags], tuple[str, str, str]]] = {
            "unserved": self._unserved,
            "queue": self._queue,
            "prefill": self._prefill,
            "transfer": self._transfer,
            "join": self._join,
            "interference": self._interference,
            "displaced": self._displaced,
            "context": self._context,
            "decode": self._decode,
            "other": self._other,
        }
        title, evidence, settings = tell[cause](self.losses.of(cause))
        return Finding(cause, lost, lost / self.losses.offered, title, evidence, settings)

    def _unserved(self, chosen: Flags) -> tuple[str, str, str]:
        requests = self.result.requests[chosen]
        reasons, counts = np.unique(requests["reason"], return_counts=True)
        named = [f"{self.result.reasons[reason] or 'no reason'} {count:,}"
                 for reason, count in zip(reasons, counts, strict=True)]  # fmt: skip
        return "Requests were not served", f"Turned away or failed: {', '.join(named)}.", "engine.kv_tokens, cluster.tp"

    def _queue(self, chosen: Flags) -> tuple[str, str, str]:
        waited_s, took_s = self._mean("queue", chosen), self._mean("prefill", chosen)
        limit = self._limit("ttft_s", "TTFT")
        waited = f"They wait {as_time(waited_s)} for admission, then {as_time(took_s)} for their first token, {limit}"
        waiting = waiting_of(self.result)
        if waiting is None:
            return "Requests queue before their prefill", f"{waited}.", "cluster.prefill, cluster.instances"
        title, why, settings = _QUEUES[waiting.reason]
        return title, f"{waited}; meanwhile {why(waiting)}.", settings

    def _prefill(self, chosen: Flags) -> tuple[str, str, str]:
        tokens = self.result.workload.input_tokens
        every = tokens[self.losses.counted]
        evidence = (
            f"From first admission to first token they take {as_time(self._mean('prefill', chosen))}, "
            f"{self._limit('ttft_s', 'TTFT')}; their prompts have {tokens[chosen].mean():,.0f} tokens "
            f"on average, all prompts {every.mean():,.0f}."
        )
        return "Prefill itself is too slow", evidence, "cluster.tp, engine.token_budget, gpu"

    def _transfer(self, chosen: Flags) -> tuple[str, str, str]:
        evidence = f"That takes {self._of_decoding('transfer', chosen)}"
        if self.losses.steps is not None:
            outcome = self.result.requests[chosen]
            tokens = self.result.workload.input_tokens[chosen].astype(np.float64)
            room = decode_room(self.result, outcome["prefill_end_s"], outcome["transfer_end_s"], tokens)
            if room.memory_is_full or room.seats_are_full:
                evidence += f"; meanwhile {room.fullness}, and decodes take {as_percent(room.seats)} of its seats."
                title = "Prefilled requests wait for room to decode: decode capacity"
                return title, evidence, "cluster.decode, engine.max_batch, engine.kv_tokens"
        return "The transfer of KV is slow", f"{evidence}.", "cluster.link_bandwidth_bytes_s"

    def _join(self, chosen: Flags) -> tuple[str, str, str]:
        evidence = f"They wait {self._of_decoding('join', chosen)} before their first decode step."
        return "Decode instances take requests in late", evidence, "cluster.decode, engine.max_batch"

    def _interference(self, chosen: Flags) -> tuple[str, str, str]:
        steps = self.losses.steps
        assert steps is not None
        evidence = (
            f"Prefills of others add {self._of_decoding('interference', chosen)}: on each instance one comes every "
            f"{as_time(steps.stall_every_s)} and adds {as_time(steps.stall_s)} to a gap of {as_time(steps.step_s)}."
        )
        return "Prefills stall decodes, periodically", evidence, "engine.token_budget, cluster=disaggregated"

    def _displaced(self, chosen: Flags) -> tuple[str, str, str]:
        preempted = int(self.result.requests["preemptions"][chosen].sum())
        evidence = (
            f"They are out of the batch for {self._of_decoding('displaced', chosen)}, "
            f"preempted {preempted:,} times: the KV memory is full."
        )
        return "Preemptions interrupt decoding", evidence, "engine.kv_tokens, cluster.decode, engine.max_batch"

    def _context(self, chosen: Flags) -> tuple[str, str, str]:
        steps = self.losses.steps
        assert steps is not None
        evidence = (
            f"Reading {steps.batch:,.0f} contexts of {steps.context_tokens:,.0f} tokens is "
            f"{as_percent(steps.context_s / steps.step_s)} of a decode step of {as_time(steps.step_s)}, "
            f"{self._limit('tpot_s', 'TPOT')}{_growth(steps.growth)}."
        )
        return "Long contexts slow decoding", evidence, "engine.kv_compression, cluster.decode, engine.max_batch"

    def _decode(self, chosen: Flags) -> tuple[str, str, str]:
        tpot_s = self.evaluation.requests["tpot_s"].to_numpy()[chosen]
        evidence = f"Their tokens take {as_time(float(np.nanmean(tpot_s)))} each, {self._limit('tpot_s', 'TPOT')}"
        steps = self.losses.steps
        if steps is not None and not np.isnan(steps.step_s):
            evidence += (
                f"; a decode step of {steps.batch:,.0f} requests takes {as_time(steps.step_s)} without any prefill, "
                f"{as_percent(1 - steps.context_s / steps.step_s)} of it for other things than contexts"
            )
        return "Decode steps are too slow", f"{evidence}.", "cluster.decode, cluster.tp, engine.max_batch"

    def _other(self, chosen: Flags) -> tuple[str, str, str]:
        evidence = "They kept TTFT and TPOT and missed a further limit of the SLO."
        return "Further limits were missed", evidence, "slo"

    def _mean(self, cause: str, chosen: Flags) -> float:
        values = self.losses.seconds[cause][chosen]
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    def _limit(self, name: str, label: str) -> str:
        limit_s = getattr(self.slo, name)
        return f"{label} limit {as_time(limit_s)}" if limit_s is not None else f"{label} limit by class"

    def _of_decoding(self, cause: str, chosen: Flags) -> str:
        outcome = self.result.requests[chosen]
        decoding_s = float(np.nanmean(outcome["end_s"] - outcome["first_token_s"]))
        took_s = self._mean(cause, chosen)
        return (
            f"{as_time(took_s)} of the {as_time(decoding_s)} after the first token ({as_percent(took_s / decoding_s)})"
        )


_QUEUES: dict[str, tuple[str, Callable[[Waiting], str], str]] = {
    "memory": (
        "KV memory is full while requests wait: decode capacity",
        lambda waiting: f"{waiting.room.fullness}, and instances are {as_percent(waiting.busy)} busy",
        "engine.kv_tokens, cluster.decode, cluster.instances, engine.kv_compression",
    ),
    "seats": (
        "Batches are full while requests wait: decode capacity",
        lambda waiting: f"{as_percent(waiting.room.seats)} of the seats of batches are taken",
        "engine.max_batch, cluster.decode, cluster.instances",
    ),
    "routing": (
        "Requests queue while other instances are idle: routing",
        lambda waiting: (
            f"the instances that they wait at are {as_percent(waiting.busy)} busy, "
            f"the others {as_percent(waiting.others)}"
        ),
        "policy",
    ),
    "prefill": (
        "Requests queue before their prefill: prefill capacity",
        lambda waiting: f"the instances that they wait at are {as_percent(waiting.busy)} busy",
        "cluster.prefill, cluster.instances, engine.token_budget",
    ),
    "held": (
        "Requests queue though instances have room",
        lambda waiting: (
            f"the instances that they wait at are {as_percent(waiting.busy)} busy, "
            f"and decodes read {as_percent(waiting.room.kv)} of the KV memory of {waiting.room.pool}"
        ),
        "policy, engine.max_batch, engine.watermark",
    ),
}


def _growth(ratio: float) -> str:
    if not ratio > 1.02:
        return ""
    return f"; long outputs slow down as they grow: their last steps take {ratio:.2f} times as long as their first"


def as_time(seconds: float) -> str:
    """Seconds or milliseconds, with three digits."""
    if seconds != seconds:
        return "unknown time"
    if seconds >= 0.9995:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms"


def as_percent(share: float) -> str:
    """In whole percent."""
    return "unknown" if share != share else f"{100 * share:.0f} %"
