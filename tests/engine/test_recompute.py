"""Where a request that was preempted while it decoded is computed again, worked out by hand in both engines.

Instance 0 prefills, the others decode. A step lasts 1 s, a block is 1 token, a token of KV has 16 bytes, and two of
them are copied in 1 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy import Action, Migrate, Policy, SetRole
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload, consecutive
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0)})
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
Rows = Sequence[tuple[float, int, int]]
TWO: Rows = ((0, 2, 6), (0, 2, 4))


class Scripted(Policy):
    """Everything decodes on instance 1. Acts at ticks as it is told, and notes what it is asked, and whether instance
    1 changes its role then.
    """

    roles = ("mixed", "prefill", "decode", "off")
    changes_roles = True
    tick_s = 0.5

    def __init__(self, script: Mapping[float, Sequence[Action]] | None = None) -> None:
        self.script = script or {}
        self.asked: list[tuple[str, int]] = []
        self.changing: dict[float, bool] = {}

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        self.asked.append(("prefill", request.id))
        return 0

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        self.asked.append(("decode", request.id))
        return min(1, len(cluster.instances) - 1)

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        self.changing[cluster.now_s] = bool(cluster.instances.changing()[:2][-1])
        return self.script.get(cluster.now_s, ())


def trace(rows: Rows, **columns: Any) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs), **columns)


def play(engine: str, workload: Workload, policy: Policy, roles: str = "prefill decode", **options: Any) -> Result:
    """8 tokens of KV on each instance."""
    pools = [
        PoolSpec(
            *(f"{role} {k}", role, 1, GPU),  # type: ignore[arg-type]
            batching="decode_first" if k else "prefill_first",
            token_budget=10 if k else 2,
        )
        for k, role in enumerate(roles.split())
    ]
    config = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=8, implementation=engine)  # type: ignore[arg-type]
    spec = ClusterSpec(tuple(pools), LinkSpec(32.0))
    result = simulate(workload, spec, MODEL, TIMING, replace(config, **options), policy)
    check_result(result)
    return result


@ENGINES
def test_it_is_computed_again_and_decodes_where_it_was(engine: str) -> None:
    """Both grow by a block a step from 3 s on, when they have 3 and 2 of the 8: request 1 is preempted at 4 s with 2
    tokens. It finds its 4 blocks when request 0 has ended, at 7 s, and has tokens 3 and 4 with steps of its prefill and
    of its decode there.
    """
    policy = Scripted()
    result = play(engine, trace(TWO), policy)
    assert token_times(result) == [[1, 3, 4, 5, 6, 7], [2, 4, 8, 9]]
    assert sorted(policy.asked) == [("decode", 0), ("decode", 1), ("prefill", 0), ("prefill", 1)]
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert result.requests["prefill_instance"].tolist() == [0, 0]
    assert result.requests["decode_instance"].tolist() == [1, 1]
    assert result.requests["transfer_end_s"].tolist() == [2, 3]
    assert result.instances["prefill_tokens"].tolist() == [4, 4]
    assert result.instances["transferred_bytes"].tolist() == [64, 0]


@ENGINES
def test_it_is_routed_where_that_is_chosen(engine: str) -> None:
    """Prefilled again from 4 to 5 s (token 3); its 4 tokens wait for request 0 to end and are copied from 7 to 9 s."""
    policy = Scripted()
    result = play(engine, trace(TWO), policy, recompute="routed")
    assert token_times(result) == [[1, 3, 4, 5, 6, 7], [2, 4, 5, 10]]
    assert policy.asked.count(("prefill", 1)) == policy.asked.count(("decode", 1)) == 2
    assert result.instances["prefill_tokens"].tolist() == [8, 0]
    assert result.instances["transferred_bytes"].tolist() == [128, 0]


@ENGINES
def test_nothing_is_sent_there_before_it_is_admitted(engine: str) -> None:
    """Request 2 is prefilled at 4.5 s, when instance 1 has 3 blocks left. Request 1 waits for 4, which it gets at 7 s;
    then there is room for the other, whose copy ends at 8 s.
    """
    result = play(engine, trace((*TWO, (3.5, 2, 2))), Scripted())
    assert token_times(result) == [[1, 3, 4, 5, 6, 7], [2, 4, 8, 9], [4.5, 9]]
    assert result.requests["transfer_end_s"].tolist() == [2, 3, 8]


@ENGINES
def test_it_does_not_migrate_there_either(engine: str) -> None:
    """Request 2 decodes on instance 2 from 5 s on, and is to move at 5.5 s: of 8 blocks 3 are left, of which it needs
    one, but request 1 waits. What is told at 7.5 s is done: request 1 has its blocks, 4 are left, and 3 are needed.
    """

    class Apart(Scripted):
        def route_decode(self, request: Request, cluster: Cluster) -> int:
            return 2 if request.id == 2 else 1

    def moved(at_s: float) -> int:
        policy = Apart({at_s: [Migrate(2, 1)]})
        workload = trace((*TWO, (3.5, 1, 7)))
        result = play(engine, workload, policy, "prefill decode decode")
        return int(result.requests["migrations"][2])

    assert [moved(5.5), moved(7.5)] == [0, 1]


@ENGINES
@pytest.mark.parametrize("role", ["prefill", "off"])
def test_it_ends_there_before_its_instance_stops_decoding(engine: str, role: str) -> None:
    """Instance 1 is to leave decode at 4.5 s, while request 1 waits there, which has its tokens at 8 and 9 s as before.
    Then the role changes.
    """
    policy = Scripted({4.5: [SetRole(1, role)]})  # type: ignore[arg-type]
    result = play(engine, trace((*TWO, (10, 2, 1))), policy, "prefill decode decode")
    assert token_times(result)[1] == [2, 4, 8, 9]
    assert [at_s for at_s, changing in policy.changing.items() if changing] == [5 + k / 2 for k in range(9)]
    assert policy.asked.count(("decode", 1)) == 1


@ENGINES
def test_it_stays_where_a_change_of_role_empties_the_queue(engine: str) -> None:
    """One mixed instance, from 4.5 s on one that decodes: of requests 1, preempted before, and 2, come at 4 s, the
    latter is queued elsewhere.
    """

    class Home(Scripted):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            self.asked.append(("prefill", request.id))
            return 0 if cluster.instances.role[0] == 3 else 1

        def route_decode(self, request: Request, cluster: Cluster) -> int:
            return 0 if request.id < 2 else 1

    policy = Home({4.5: [SetRole(0, "decode")]})
    result = play(engine, trace(((0, 1, 7), (0, 1, 5), (4, 8, 1))), policy, "mixed mixed", token_budget=10)
    assert result.requests["prefill_instance"].tolist() == [0, 0, 1]
    assert result.requests["decode_instance"].tolist() == [0, 0, -1]
    assert result.requests["preemptions"].tolist() == [0, 1, 0]
    assert policy.asked == [("prefill", 0), ("prefill", 1), ("prefill", 2), ("prefill", 2)]


@ENGINES
def test_what_the_prefix_cache_has_kept_is_not_computed_again(engine: str) -> None:
    """As in the first test, but request 0 ends at 6 s: none of the blocks of request 1's prompt, which came with its
    copy, has been evicted, and 2 of 4 tokens are computed.
    """
    names = {"hash_ids": np.array([1, 2]), "hash_spans": consecutive([1, 1]), "hash_block_tokens": 2}
    workload = trace(((0, 2, 5), (0, 2, 4)), **names)
    result = play(engine, workload, Scripted(), prefix_cache=True)
    assert token_times(result) == [[1, 3, 4, 5, 6], [2, 4, 7, 8]]
    assert result.instances["prefill_tokens"].tolist() == [4, 2]
    assert result.requests["cached_tokens"].tolist() == [0, 0]


@ENGINES
def test_where_a_mixed_instance_has_computed_it_again_it_decodes_unasked(engine: str) -> None:
    """One instance does all. At 4 s both have 3 tokens and 4 blocks: request 1 is preempted, and has one token to come
    after that of its prefill. The hook is asked after first prefills alone.
    """
    policy = Scripted()
    result = play(engine, trace(((0, 2, 6), (0, 2, 5))), policy, "mixed", token_budget=10)
    assert result.requests["preemptions"].sum() == 1
    assert policy.asked.count(("decode", 1)) == policy.asked.count(("decode", 0)) == 1
    again = Scripted()
    play(engine, trace(((0, 2, 6), (0, 2, 5))), again, "mixed", recompute="routed", token_budget=10)
    assert again.asked.count(("decode", 1)) == 2


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine\.recompute must be one of there, routed"):
        EngineConfig(recompute="here")  # type: ignore[arg-type]
