"""A policy is asked where lists and counts agree: both engines give it the same answers, in the middle of a step's end
too (SEMANTICS.md: What a hook sees at each question).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.policy import Aggregated, Plan
from framework.policy.view import Cluster, Floats, Integers, Request
from framework.simulate import simulate
from framework.workload import Workload
from servelab.testing.worlds import CLUSTERS, MODEL, TIMING
from tests.helpers.interpreted import printed_interpreted

SHARING = Sharing(40, {20: 4.0, 50: 1.6, 100: 1.0}, {20: 2.0, 60: 1.1, 100: 1.0})
LOOKS = 300
ENDS = 400
PRINTED = "from tests.engine.test_questions import looks_at_ends; print(*looks_at_ends())"


def bursts(requests: int, seed: int = 5) -> Workload:
    """Requests that come eight at a time, so that many of one step end together."""
    rng = np.random.default_rng(seed)
    arrival_s = np.repeat(np.arange(-(-requests // 8)) * 0.05, 8)[:requests]
    return Workload(arrival_s, rng.integers(10, 60, requests), rng.integers(2, 6, requests))


class Looks(Aggregated):
    """Shares each GPU between prefills and decodes; looks at both streams where requests decode."""

    batching_mode = "concurrent"
    shares_gpus = True

    def __init__(self) -> None:
        self.streams_s: list[Floats] = []
        self.lists: list[list[int]] = []

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        return Plan(96, "concurrent", 40)

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        here = int(cluster.requests.prefill_instance[request.id])
        self.streams_s.append(np.concatenate(cluster.streams_s(here)))
        self.lists.append([*cluster.queued(here), -1, *cluster.prefilling(here), -1, *cluster.decoding(here)])
        counts = (cluster.instances.queued, cluster.instances.prefilling, cluster.instances.running)
        ids_of = cluster.queued(here), cluster.prefilling(here), cluster.decoding(here)
        assert [int(column[here]) for column in counts] == [len(ids) for ids in ids_of]
        assert request.id not in [*ids_of[1], *ids_of[2]]
        return here


def play(policy: Aggregated, workload: Workload, implementation: Any = "compiled", **engine: Any) -> Any:
    config = EngineConfig(sharing=SHARING, implementation=implementation, **engine)
    return simulate(workload, CLUSTERS["mixed"], MODEL, TIMING, config, policy)


def test_both_engines_tell_the_same_of_streams_where_requests_are_routed() -> None:
    seen, reference = Looks(), Looks()
    play(seen, bursts(LOOKS))
    play(reference, bursts(LOOKS), "reference")
    assert len(seen.streams_s) == len(reference.streams_s) == LOOKS
    differ = [not np.array_equal(one, other) for one, other in zip(seen.streams_s, reference.streams_s, strict=True)]
    assert sum(differ) == 0, f"{sum(differ)} of {LOOKS} answers differ"
    assert seen.lists == reference.lists
    assert any(ids[-1] != -1 for ids in seen.lists)


# --- the end of a request ---------------------------------------------------------------------------------------------


def looks_at_ends() -> tuple[int, int]:
    """How many ends were looked at, and at how many the running order was torn, in the engine as plain Python."""
    from framework.engine.events.agreement import require_agreement
    from framework.engine.memory.state import State
    from framework.engine.requests import lifecycle

    looks, torn, end_request = 0, 0, lifecycle.end_request

    def end(s: State, r: int, state: int, reason: int) -> None:
        nonlocal looks, torn
        looks += 1
        i = s.requests[r].instance
        try:
            require_agreement(s)
            assert r not in [s.lists[s.instances[i].running_at + j] for j in range(s.instances[i].running)]
        except AssertionError:
            torn += 1
        end_request(s, r, state, reason)

    lifecycle.end_request = end
    play(Aggregated(), bursts(ENDS), batching="decode_first")
    return looks, torn


def test_the_running_order_is_whole_at_the_end_of_each_request() -> None:
    assert printed_interpreted(PRINTED).split() == [str(ENDS), "0"]


# --- keys of a queue --------------------------------------------------------------------------------------------------


class ByRank(Aggregated):
    """Reads queues by the rank of each prompt among those that wait."""

    dynamic_keys = True

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def prioritize(self, queue: Integers, cluster: Cluster) -> Any:
        at = int(cluster.requests.instance[queue[0]])
        assert np.array_equal(queue, cluster.queued(at))
        self.asked.append(queue.tolist())
        return np.argsort(np.argsort(cluster.requests.input_tokens[queue], kind="stable"))


class ByLength(ByRank):
    """The same order by keys that need no others."""

    def prioritize(self, queue: Integers, cluster: Cluster) -> Any:
        return cluster.requests.input_tokens[queue]


class InTurn(Aggregated):
    """First come first served."""


def starts(policy: Aggregated, implementation: str) -> list[float]:
    rng = np.random.default_rng(3)
    workload = Workload(np.zeros(40), rng.permutation(40) + 20, np.full(40, 4))
    return play(policy, workload, implementation, token_budget=64, max_batch=4).requests["start_s"].tolist()


def test_a_policy_may_rank_within_a_queue() -> None:
    policy = ByRank()
    ranked = starts(policy, "compiled")
    assert ranked == starts(ByRank(), "reference") == starts(ByLength(), "compiled")
    assert ranked != starts(InTurn(), "compiled")
    assert max(map(len, policy.asked)) > 4
