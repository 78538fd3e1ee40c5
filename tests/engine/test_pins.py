"""KV between calls: pins with a TTL, who breaks them, and ranks of eviction, followed by hand in both engines."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import PolicyError
from framework.load import Load
from framework.metrics.invariants import check_result
from framework.policy import Aggregated, Cluster, Request, Retain, SetRole
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, mixed
from framework.system.gpu import Gpu
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.scenarios import MODEL, RowTiming, prefixes

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
Engine = Literal["compiled", "reference"]


class Call(NamedTuple):
    """`names`: of its prompt's tokens, each of which is a block. `after`: the call that it waits for."""

    arrival_s: float
    names: list[int]
    output: int
    after: int = -1
    think_s: float = 0.0
    session: int = -1


class Keeps(Aggregated):
    """Answers by the number of the call; calls of sessions go first."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, float, int]] = []  # call, time, evictable blocks

    def prioritize(self, queue: Any, cluster: Cluster) -> Any:
        return (cluster.requests.session[queue] < 0).astype(float)

    def on_call_end(self, request: Request, cluster: Cluster) -> Retain | None:
        self.asked.append((request.id, cluster.now_s, int(cluster.instances.evictable_blocks[0])))
        answer: Retain | None = self.answers.get(request.id)
        return answer


def played(
    calls: list[Call],
    policy: Keeps,
    engine: Engine,
    kv_tokens: int,
    instances: int = 1,
    link_bytes_s: float | None = None,
    joins: list[tuple[int, int]] | None = None,
    load: Load | None = None,
    spec: ClusterSpec | None = None,
    **options: Any,
) -> Result:
    """Steps of 1 s on instances with room for so many tokens each."""
    workload = Workload(
        np.array([call.arrival_s for call in calls]),
        np.array([len(call.names) for call in calls]),
        np.array([call.output for call in calls]),
        previous=np.array([call.after for call in calls]),
        think_s=np.array([call.think_s for call in calls]),
        session_id=np.array([call.session for call in calls]),
        joins=None if joins is None else np.array(joins),
        **prefixes([call.names for call in calls], 1),
    )
    config = EngineConfig(
        kv_tokens=kv_tokens,
        block_tokens=1,
        prefix_cache=True,
        implementation=engine,
        **{"watermark": 0.0, "batching": "unified", **options},
    )
    cluster = spec or mixed(instances, GPU, link_bandwidth_bytes_s=link_bytes_s)
    result = simulate(workload, cluster, MODEL, RowTiming({"g": StepRow(base_s=1.0)}), config, policy, load=load)
    check_result(result)
    return result


def named(program: int, tokens: int) -> list[int]:
    return [100 * program + j for j in range(tokens)]


# A call of four tokens ends at 1 s, and the next of its program comes 4 s later. Another decodes from 1 to 6 s; a third
# comes at 2 s and finds 8 blocks free, 10 with two of the four. The other two go as the second call grows.
TIGHT = [
    Call(0.0, named(1, 4), 1, session=0),
    Call(0.0, named(2, 2), 6),
    Call(2.0, named(3, 10), 1),
    Call(3.0, named(1, 6), 1, after=0, think_s=4.0, session=0),
]
both = pytest.mark.parametrize("engine", ["compiled", "reference"])


@both
def test_without_an_answer_blocks_are_evicted_by_last_use(engine: Engine) -> None:
    policy = Keeps({})
    rows = played(TIGHT, policy, engine, 16).requests
    assert rows["start_s"].tolist() == [0.0, 0.0, 2.0, 5.0]
    assert rows["cached_tokens"].tolist() == [0, 0, 0, 0]
    assert policy.asked[:2] == [(0, 1.0, 4), (2, 3.0, 12)]


@both
def test_pinned_blocks_stay_until_the_next_call_is_admitted(engine: Engine) -> None:
    result = played(TIGHT, Keeps({0: Retain(math.inf)}), engine, 16)
    assert result.requests["start_s"].tolist() == [0.0, 0.0, 6.0, 5.0]
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, 4]
    assert result.instances["pins_broken"].tolist() == [0]


@both
@pytest.mark.parametrize(("ttl_s", "start_s", "cached"), [(0.0, 2.0, 0), (0.5, 2.0, 0), (2.0, 3.0, 0), (4.0, 6.0, 4)])
def test_others_find_room_when_a_ttl_is_over(engine: Engine, ttl_s: float, start_s: float, cached: int) -> None:
    rows = played(TIGHT, Keeps({0: Retain(ttl_s)}), engine, 16).requests
    assert (rows["start_s"][2], rows["cached_tokens"][3]) == (start_s, cached)


@both
def test_requests_that_run_break_the_oldest_pin_before_any_is_preempted(engine: Engine) -> None:
    calls = [Call(0.0, named(1, 4), 1), Call(0.0, named(2, 2), 6), Call(0.0, named(3, 3), 2)]
    result = played(calls, Keeps({0: Retain(math.inf), 2: Retain(math.inf)}), engine, 10)
    assert result.requests["end_s"].tolist() == [1.0, 6.0, 2.0]  # 4 + 3 pinned, 3 at 2 s, 7 at 6 s
    assert result.requests["preemptions"].tolist() == [0, 0, 0]
    assert result.instances["pins_broken"].tolist() == [1]


@both
def test_an_idle_instance_breaks_pins_for_what_waits(engine: Engine) -> None:
    calls = [Call(0.0, named(1, 4), 1), Call(0.0, named(2, 4), 1), Call(3.0, named(3, 5), 1), Call(5.0, named(2, 5), 1)]
    result = played(calls, Keeps({0: Retain(math.inf), 1: Retain(math.inf)}), engine, 12)
    assert result.requests["start_s"].tolist() == [0.0, 0.0, 3.0, 5.0]
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, 4]  # the second pin was not needed
    assert result.instances["pins_broken"].tolist() == [1]


@both
def test_blocks_that_two_pins_share_stay_until_both_have_ended(engine: Engine) -> None:
    trunk = named(9, 3)
    calls = [
        Call(0.0, [*trunk, *named(1, 2)], 1, session=0),
        Call(0.0, [*trunk, *named(2, 2)], 1, session=1),
        Call(0.0, named(3, 1), 9),
        Call(2.5, named(4, 2), 1),
        Call(4.5, named(4, 2), 1),
    ]
    policy = Keeps({0: Retain(2.0), 1: Retain(3.0)})
    played(calls, policy, engine, 24)
    # The first has five blocks, the second two of its own beside the same trunk. The TTLs end at 3 and 4 s: two blocks
    # come free, then five. The others have two blocks of one name.
    assert policy.asked == [(0, 1.0, 7), (1, 1.0, 2), (3, 4.0, 4), (4, 6.0, 9)]


@both
def test_blocks_of_a_lower_rank_go_first(engine: Engine) -> None:
    calls = [Call(0.0, named(1, 4), 1), Call(2.0, named(2, 4), 1), Call(4.0, named(3, 6), 1)]  # two blocks must go
    answers: dict[str, dict[int, Any]] = {"use": {}, "second": {1: Retain(rank=-1)}, "first": {0: Retain(rank=3)}}
    left = {
        name: [
            int(
                played([*calls, Call(8.0, named(program, 5), 1)], Keeps(given), engine, 12).requests["cached_tokens"][3]
            )
            for program in (1, 2)
        ]
        for name, given in answers.items()
    }
    assert left == {"use": [2, 4], "second": [4, 2], "first": [4, 2]}


@both
def test_a_block_has_no_rank_of_one_that_was_evicted(engine: Engine) -> None:
    """The four of the first have the lowest rank, and go for the eight of the third. Four more go for those of the
    fourth: of the second, which are older than those of the third.
    """
    calls = [*(Call(2.0 * k, named(k + 1, tokens), 1) for k, tokens in enumerate((4, 4, 8, 4)))]
    left = [
        played([*calls, Call(9.0, named(program, 9), 1)], Keeps({0: Retain(rank=-1)}), engine, 12) for program in (2, 3)
    ]
    assert [int(result.requests["cached_tokens"][4]) for result in left] == [0, 8]


class Draining(Keeps):
    """Has all calls on instance 0, and switches it off at 1.5 s."""

    tick_s = 1.5
    changes_roles = True

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 0

    def on_tick(self, cluster: Cluster) -> list[SetRole]:
        return [SetRole(0, "off")] if cluster.now_s == 1.5 else []


@both
def test_an_instance_that_goes_off_pins_nothing(engine: Engine) -> None:
    """The first ends at 3 s. What decodes beside it has all ten blocks at 9 s, and needs no pin to be broken."""
    calls = [Call(0.0, named(1, 4), 3), Call(0.0, named(2, 2), 9)]
    answers = {0: Retain(math.inf)}
    kept = played(calls, Keeps(answers), engine, 10)
    off = played(calls, Draining(answers), engine, 10, instances=2)
    assert [result.requests["end_s"].tolist() for result in (kept, off)] == 2 * [[3.0, 9.0]]
    assert [int(result.instances["pins_broken"][0]) for result in (kept, off)] == [1, 0]


@both
def test_a_policy_is_not_asked_without_a_prefix_cache(engine: Engine) -> None:
    policy, workload = Keeps({}), Workload(np.zeros(1), np.array([4]), np.array([1]))
    config = EngineConfig(kv_tokens=16, implementation=engine)
    simulate(workload, mixed(1, GPU), MODEL, RowTiming({"g": StepRow(base_s=1.0)}), config, policy)
    assert policy.asked == []


@both
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (30.0, "on_call_end returned 30.0 for request 0; return Retain(ttl_s, rank), or None"),
        (Retain(-1.0), "ttl_s is 0 or more seconds"),
        (Retain(math.nan), "ttl_s is 0 or more seconds"),
        (Retain(rank=8), "a rank is from -8 to 7"),
    ],
)
def test_an_unusable_answer_is_refused(engine: Engine, answer: Any, text: str) -> None:
    with pytest.raises(PolicyError, match=text.replace("(", r"\(").replace(")", r"\)")):
        played([Call(0.0, named(1, 4), 1), Call(2.0, named(2, 4), 1)], Keeps({0: answer}), engine, 16)
