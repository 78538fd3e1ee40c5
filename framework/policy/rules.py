"""Placement rules and queue orders that several policies offer by name, and shared layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from framework.codes import DECODE, PREFILL
from framework.errors import InputError, shown
from framework.policy.base import Policy, overrides
from framework.policy.decision import (
    decision,
    decode_least_kv,
    decode_round_robin,
    prefill_least_queued,
    prefill_round_robin,
)
from framework.policy.view import Cluster, View
from framework.system.cluster import ClusterSpec

T = TypeVar("T")
Keys = Callable[[NDArray[np.int64], Cluster], Any]


@decision(observes=False)
def prefill_least_waiting(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The prefill instance with the least 4 * waiting + running requests, as vLLM's front end chooses a data-parallel
    rank (vllm/v1/engine/core_client.py, DPLBAsyncMPClient). Requests on their way there count as waiting.
    """
    best, least = -1, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        load = 4 * (inst.queued + inst.incoming + inst.swapped) + inst.prefilling + inst.running
        if inst.role & PREFILL and (best < 0 or load < least):
            best, least = i, load
    return best


@decision(observes=False)
def decode_least_waiting(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The decode instance with the least 4 * waiting + running requests."""
    best, least = -1, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        load = 4 * (inst.queued + inst.incoming + inst.swapped) + inst.prefilling + inst.running
        if inst.role & DECODE and (best < 0 or load < least):
            best, least = i, load
    return best


PREFILL_RULES = {
    "round_robin": prefill_round_robin,
    "least_queued": prefill_least_queued,
    "least_waiting": prefill_least_waiting,
}
DECODE_RULES = {
    "round_robin": decode_round_robin,
    "least_kv": decode_least_kv,
    "least_waiting": decode_least_waiting,
}
_OF_RANKS = {  # the rules that route to ranks which are instances if the policy has none, by the roles of their pools
    "route_prefill": (prefill_least_waiting, ("mixed", "prefill")),
    "route_decode": (decode_least_waiting, ("mixed", "decode")),
}

AGING_TOKENS_PER_S = 15.0  # prompt tokens a second, as in Nexus (arXiv 2507.06608, section on prefill scheduling)


def shortest_prompt(queue: NDArray[np.int64], cluster: Cluster) -> Any:
    """Shortest prompt first (SPF)."""
    return cluster.requests.input_tokens[queue]


def shortest_prompt_aged(queue: NDArray[np.int64], cluster: Cluster) -> Any:
    """SPF with aging: prompt - gamma * age. All ages grow equally, so prompt + gamma * arrival gives the same order."""
    return cluster.requests.input_tokens[queue] + AGING_TOKENS_PER_S * cluster.requests.arrival_s[queue]


def shortest_predicted(queue: NDArray[np.int64], cluster: Cluster) -> Any:
    """Shortest job first, by the predicted output. Raises InputError without a predictor."""
    expected = cluster.remaining_tokens(queue)
    if np.isnan(expected).any():
        raise InputError("policy.order=shortest_predicted needs a predictor, such as predictor=oracle")
    return expected


def highest_priority(queue: NDArray[np.int64], cluster: Cluster) -> Any:
    """Larger values of the trace's priority column first."""
    return -cluster.requests.priority[queue]


ORDERS: dict[str, Keys | None] = {
    "fcfs": None,
    "shortest_prompt": shortest_prompt,
    "shortest_prompt_aged": shortest_prompt_aged,
    "shortest_predicted": shortest_predicted,
    "highest_priority": highest_priority,
}


def rule_of(policy: Policy, hook: str, cluster: ClusterSpec) -> Any:
    """What answers a hook: the policy's own method or rule, or the default, which differs for ranks."""
    if hook in _OF_RANKS and not overrides(policy, hook):
        of_ranks, roles = _OF_RANKS[hook]
        if any(pool.group > 1 and pool.role in roles for pool in cluster.pools):
            return of_ranks
    return getattr(policy, hook)


def rule(parameter: str, name: str, rules: Mapping[str, T]) -> T:
    """The rule of that name. Raises InputError, listing the names, if there is none."""
    if not isinstance(name, str) or name not in rules:
        raise InputError(f"{parameter} must be one of {', '.join(rules)}; got {shown(name)}")
    return rules[name]


def reserving(spec: ClusterSpec, tokens: int | None) -> ClusterSpec:
    """The pools; each request reserves KV for `tokens` tokens, or for all of an instance if that is less.

    None: for those of the longest request that the cluster is for.
    """
    tokens = tokens or spec.longest_request_tokens
    pools = (replace(pool, reserve_tokens=pool.reserve_tokens or tokens) for pool in spec.pools)
    return replace(spec, pools=tuple(pools))


def set_order(policy: Policy, name: str) -> None:
    """Let a policy's waiting queues be read in one of ORDERS; FCFS asks for no keys."""
    keys = rule("policy.order", name, ORDERS)
    if keys is not None:
        vars(policy)["prioritize"] = keys
