"""Shared parts of fleet planners: forecasts, the largest batch for a pace, and moves towards the wanted pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from framework.codes import DECODE, OFF, PREFILL
from framework.engine.setup.config import Batching
from framework.policy import Plan, SetRole
from framework.policy.view import Cluster, Finished, Instances, Request
from framework.system.cluster import ClusterSpec, Role

_BATCHING: dict[Role, Batching] = {"prefill": "prefill_first", "decode": "decode_first", "mixed": "decode_first"}


def forecast(history: Sequence[float]) -> float:
    """The next value of a series by ARIMA(1, 1, 0): its last change continues, times the factor that fits earlier
    changes best.

    The factor is of least squares, within -1 and 1. Values are at least 0.
    """
    if len(history) < 3:
        return float(history[-1]) if history else 0.0
    changes = np.diff(np.asarray(history, np.float64))
    square = float(changes[:-1] @ changes[:-1])
    factor = 0.0 if square == 0.0 else min(max(float(changes[1:] @ changes[:-1]) / square, -1.0), 1.0)
    return max(float(history[-1]) + factor * float(changes[-1]), 0.0)


def largest_batch(pool: Instances, tpot_s: float, context_tokens: float, most: int) -> int:
    """The most requests, each reading `context_tokens`, of which the pool's first instance decodes a step in
    `tpot_s`.
    """
    low, high = 1, max(most, 1)
    while low < high:
        middle = (low + high + 1) // 2
        if pool.estimate_s(0, middle, int(middle * context_tokens))[0] <= tpot_s:
            low = middle
        else:
            high = middle - 1
    return low


def corrections(cluster: Cluster, done: Finished, interval_s: float) -> tuple[float, float]:
    """Observed over expected TTFT and ITL of the requests that have ended in the interval; 1 where none has.

    Expected are the prefill of their mean prompt alone, and the step of as many requests as an instance of the decode
    pool had on average (Little's law), as NVIDIA Dynamo's SLA planner has it.
    """
    if not len(done.ids):
        return 1.0, 1.0
    pool, prompt = cluster.decode, max(int(done.input_tokens.mean()), 1)
    slow = float(np.nanmean(done.ttft_s) / cluster.prefill.estimate_s(prompt, 0, 0)[0])
    tpot_s = done.tpot_s[~np.isnan(done.tpot_s)]
    if not len(tpot_s):
        return slow, 1.0
    lasted_s = done.ttft_s + np.nan_to_num(done.tpot_s) * (done.output_tokens - 1)
    running = max(round(float(lasted_s.sum()) / interval_s / len(pool)), 1)
    context = prompt + float(done.output_tokens.mean()) / 2
    return slow, float(tpot_s.mean() / pool.estimate_s(0, running, int(running * context))[0])


def within(cluster: Cluster, prefill: int, decode: int) -> tuple[int, int]:
    """Both counts scaled down to the instances that there are, at least one of each."""
    fleet = len(cluster.instances)
    if prefill + decode > fleet:
        prefill = min(max(round(prefill * fleet / (prefill + decode)), 1), fleet - 1)
        decode = fleet - prefill
    return prefill, decode


def change(cluster: Cluster, instance: int, role: Role) -> SetRole:
    """Give an instance a role, and the batching for it."""
    plan = None if role == "off" else Plan(int(cluster.instances.token_budget[instance]), _BATCHING[role])
    return SetRole(instance, role, plan)


def resize(cluster: Cluster, prefill: int, decode: int, decode_role: Role, *, stop: bool) -> list[SetRole]:
    """Changes towards `prefill` instances that only prefill and `decode` that decode, in `decode_role`.

    Instances that are off are started first, then those with the least work change over; the rest is switched off if
    `stop`, else left as it is.
    """
    there = cluster.instances
    settled = ~there.changing()
    waiting, held = there.queued_tokens, there.kv_tokens + there.incoming_kv_tokens
    prefilling = np.flatnonzero(there.next_role == PREFILL)
    decoding = np.flatnonzero((there.next_role & DECODE) > 0)
    unused = [int(i) for i in np.flatnonzero(there.next_role == OFF) if settled[i]]
    spare_prefill = [int(i) for i in prefilling[np.argsort(waiting[prefilling], kind="stable")] if settled[i]]
    spare_decode = [int(i) for i in decoding[np.argsort(held[decoding], kind="stable")] if settled[i]]
    spare_prefill = spare_prefill[: max(len(prefilling) - max(prefill, 1), 0)]
    spare_decode = spare_decode[: max(len(decoding) - max(decode, 1), 0)]
    changes = []
    wanted: tuple[tuple[Role, int, list[int]], ...] = (
        ("prefill", prefill - len(prefilling), spare_decode),
        (decode_role, decode - len(decoding), spare_prefill),
    )
    for role, count, others in wanted:
        for _ in range(max(count, 0)):
            if unused or others:
                changes.append(change(cluster, (unused or others).pop(0), role))
    return changes + [change(cluster, i, "off") for i in spare_prefill + spare_decode if stop]


def with_local_prefills(spec: ClusterSpec) -> ClusterSpec:
    """The cluster with decode instances that can also prefill, in chunks with their decodes."""
    pools = [replace(p, role="mixed", batching="decode_first") if p.role == "decode" else p for p in spec.pools]
    return replace(spec, pools=tuple(pools))


def prefill_only(cluster: Cluster) -> np.ndarray:
    """Numbers of the instances that prefill for others."""
    return np.flatnonzero(cluster.instances.role == PREFILL)


def is_remote(cluster: Cluster, uncached_tokens: int, local_tokens: int, queue: float) -> bool:
    """Whether another instance prefills: the prompt is long, and fewer than `queue` wait there (NVIDIA Dynamo)."""
    workers = prefill_only(cluster)
    waiting = int(cluster.instances.queued[workers].sum())
    return len(workers) > 0 and uncached_tokens > local_tokens and waiting < queue


def decodes_where_it_is(request: Request, cluster: Cluster) -> int:
    """The instance that holds the request's KV, if it decodes; else -1."""
    here = int(cluster.requests.instance[request.id])
    return here if cluster.instances.role[here] & DECODE else -1
