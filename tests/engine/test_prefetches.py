"""KV between calls that is prefetched from a tier, followed by hand in both engines."""

from __future__ import annotations

import math
from typing import Any

import pytest

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.errors import PolicyError
from framework.policy import Cluster, Request, Retain
from framework.system.faults import Crash, FaultSchedule
from tests.engine.test_pins import Call, Engine, Keeps, both, named, played
from tests.helpers.scenarios import MODEL

# Four tokens take a second. All steps take one, and one that loads is longer by that.
HOST = PrefixStores({"host": Tier(bandwidth_bytes_s=4 * MODEL.kv_bytes_per_token)}, layer_wise=False)
# A call of four tokens ends at 1 s, and another takes all room from 1 to 2 s. The next of the program comes at 10 s.
EVICTED = [
    Call(0.0, named(1, 4), 1, session=0),
    Call(1.0, named(2, 8), 1),
    Call(2.0, named(1, 6), 1, after=0, think_s=9.0, session=0),
]


class Elsewhere(Keeps):
    """Says where to prefetch, and sends the calls of sessions there once they have a past."""

    def __init__(self, answers: dict[int, Any], where: int) -> None:
        super().__init__(answers)
        self.where = where

    def prefetch(self, request: Request, cluster: Cluster) -> int:
        return self.where

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return int(request.id == 2)


@both
@pytest.mark.parametrize(
    ("answer", "start_s", "end_s"),
    [
        (None, 10.0, 12.0),  # loaded with its step
        (Retain(prefetch_s=4.0), 10.0, 11.0),
        (Retain(prefetch_s=8.0), 10.0, 11.0),
        (Retain(prefetch_s=8.5), 10.5, 11.5),  # it waits for the end of the load
        (Retain(prefetch_s=9.0), 11.0, 12.0),  # due at its arrival, and before it
        (Retain(prefetch_s=9.5), 10.0, 12.0),  # it has come before
    ],
)
def test_a_call_finds_what_was_prefetched(engine: Engine, answer: Any, start_s: float, end_s: float) -> None:
    result = played(EVICTED, Keeps({0: answer}), engine, 8, prefix_stores=HOST)
    assert (result.requests["start_s"][2], result.requests["end_s"][2]) == (start_s, end_s)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 4]


@both
def test_a_call_waits_for_its_load_though_it_has_room(engine: Engine) -> None:
    calls = [EVICTED[0], Call(1.0, named(2, 12), 1), EVICTED[2]]
    result = played(calls, Keeps({0: Retain(prefetch_s=8.5)}), engine, 12, prefix_stores=HOST)
    assert (result.requests["start_s"][2], result.requests["end_s"][2]) == (10.5, 11.5)


@both
def test_a_call_does_not_wait_for_a_load_elsewhere(engine: Engine) -> None:
    """Four blocks of each of two programs are loaded from 5 to 9 s, on the instances where they were. The next call of
    the first goes to the other at 6 s.
    """
    pool = PrefixStores({"pool": Tier(bandwidth_bytes_s=MODEL.kv_bytes_per_token, shared=True)}, layer_wise=False)

    class Own(Elsewhere):
        def prefetch(self, request: Request, cluster: Cluster) -> int:
            return request.id

        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            return int(request.id in (1, 3, 4))

    calls = [
        *(Call(0.0, named(1 + k, 4), 1, session=k) for k in (0, 1)),
        *(Call(1.0, named(3 + k, 12), 1) for k in (0, 1)),
        Call(2.0, named(1, 5), 1, after=0, think_s=5.0, session=0),
        Call(9.5, named(5, 1), 1),
    ]
    answers = {k: Retain(math.inf, prefetch_s=4.0) for k in (0, 1)}
    result = played(calls, Own(answers, 0), engine, 12, instances=2, prefix_stores=pool)
    assert (result.requests["start_s"][4], result.requests["end_s"][4]) == (6.0, 11.0)


@both
def test_what_is_loaded_is_cached_once(engine: Engine) -> None:
    """Six blocks are loaded from 5 to 11 s. Another call has read two of them by 9 s and has computed the third. 18 of
    20 blocks are evictable at 13 s: these six, 11 that six and three others have left of 20, and that of a call that
    ends.
    """
    slow = PrefixStores({"host": Tier(bandwidth_bytes_s=MODEL.kv_bytes_per_token)}, layer_wise=False)
    calls = [
        Call(0.0, named(1, 6), 1, session=0),
        Call(1.0, named(2, 20), 1),
        Call(6.0, named(1, 3), 1),
        *(Call(at_s, named(3, 1), 1) for at_s in (12.0, 14.0)),
    ]
    policy = Keeps({0: Retain(0.0, prefetch_s=4.0)})
    result = played(calls, policy, engine, 20, prefix_stores=slow)
    assert result.requests["end_s"].tolist() == [1.0, 2.0, 9.0, 13.0, 15.0]
    assert policy.asked[3] == (3, 13.0, 18)


@both
def test_nothing_is_loaded_on_an_instance_that_is_down(engine: Engine) -> None:
    """The prefetch is due at 5 s. Instance 1 is down from 4.5 to 5.5 s, and is there for the next call."""
    pool = PrefixStores({"pool": Tier(bandwidth_bytes_s=4 * MODEL.kv_bytes_per_token, shared=True)}, layer_wise=False)
    ends_s = []
    for crashes in ([], [Crash(4.5, 1, 1.0)]):
        policy, faults = Elsewhere({0: Retain(prefetch_s=4.0)}, 1), FaultSchedule(crashes=crashes)
        result = played(EVICTED, policy, engine, 8, instances=2, prefix_stores=pool, faults=faults)
        ends_s.append(float(result.requests["end_s"][2]))
    assert ends_s == [11.0, 12.0]


@both
def test_loads_follow_one_another(engine: Engine) -> None:
    calls = [
        Call(0.0, named(1, 4), 1, session=0),
        Call(0.0, named(2, 4), 1, session=1),
        Call(1.0, named(3, 8), 1),
        *(Call(2.0, named(1 + k, 5), 1, after=k, think_s=5.25, session=k) for k in (0, 1)),
    ]
    answers = {k: Retain(prefetch_s=4.0) for k in (0, 1)}  # the loads end at 6 and 7 s
    result = played(calls, Keeps(answers), engine, 10, prefix_stores=HOST)
    assert result.requests["start_s"].tolist() == [0.0, 0.0, 1.0, 6.25, 7.25]
    assert result.requests["end_s"].tolist()[3:] == [7.25, 8.25]


@both
def test_what_decodes_breaks_a_load(engine: Engine) -> None:
    slow = PrefixStores({"host": Tier(bandwidth_bytes_s=MODEL.kv_bytes_per_token)}, layer_wise=False)
    calls = [*EVICTED, Call(3.0, named(3, 2), 7)]  # it has four blocks at 5 s, as a load of four begins, and grows
    result = played(calls, Keeps({0: Retain(math.inf, prefetch_s=4.0)}), engine, 8, prefix_stores=slow)
    assert result.instances["pins_broken"].tolist() == [1]
    assert result.requests["end_s"].tolist()[2:] == [15.0, 10.0]  # four seconds of its own load, and a step


@both
def test_a_load_has_the_room_that_there_is(engine: Engine) -> None:
    answers = {0: Retain(prefetch_s=4.0), 1: Retain(math.inf)}  # the eight blocks of the second call are pinned
    ends_s = {
        room: played(EVICTED, Keeps(answers), engine, room, prefix_stores=HOST).requests["end_s"][2]
        for room in (12, 10)
    }
    assert ends_s == {12: 11.0, 10: 11.5}  # with room for two, the other two are loaded with the step


@both
def test_a_policy_says_where(engine: Engine) -> None:
    pool = PrefixStores({"pool": Tier(bandwidth_bytes_s=4 * MODEL.kv_bytes_per_token, shared=True)}, layer_wise=False)
    ends_s = {
        where: played(
            EVICTED, Elsewhere({0: Retain(prefetch_s=4.0)}, where), engine, 8, instances=2, prefix_stores=pool
        ).requests["end_s"][2]
        for where in (-1, 0, 1)
    }
    assert ends_s == {-1: 12.0, 0: 12.0, 1: 11.0}


@both
@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan, "soon"])
def test_an_unusable_time_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(PolicyError, match="prefetch_s is 0 or more seconds, or None"):
        played(EVICTED, Keeps({0: Retain(prefetch_s=wrong)}), engine, 8, prefix_stores=HOST)


@both
def test_an_instance_that_there_is_not_is_refused(engine: Engine) -> None:
    with pytest.raises(PolicyError, match="prefetch returned instance 7 for request 0; "):
        played(EVICTED, Elsewhere({0: Retain(prefetch_s=4.0)}, 7), engine, 8, instances=2, prefix_stores=HOST)


# --- KV that moves to another instance --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("answer", "cached"),
    [
        (None, 0),
        (Retain(move_to=1), 4),
        (Retain(move_to=0), 0),  # where it is already
        (Retain(prefetch_s=4.0), 0),  # not where the next call goes
    ],
)
def test_the_next_call_finds_what_has_moved(engine: Engine, answer: Any, cached: int) -> None:
    """The first calls are on instance 0, the next one of the program is on instance 1."""
    result = played(EVICTED, Elsewhere({0: answer}, 0), engine, 8, instances=2)
    assert result.requests["cached_tokens"].tolist() == [0, 0, cached]
    copied = 4 * MODEL.kv_bytes_per_token if cached else 0.0
    assert result.instances["transferred_bytes"].tolist() == [copied, 0.0]


@both
def test_a_ttl_begins_where_kv_has_moved(engine: Engine) -> None:
    """Others have 13 of 16 blocks of instance 1 at 10 s, of which six are cached ones. One of those that have moved is
    the oldest then; with a pin until 6.5 s they are younger than the six.
    """

    class Both(Elsewhere):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            return int(request.id >= 2)

    calls = [*EVICTED, Call(4.0, named(4, 1), 9), Call(5.0, named(3, 6), 1)]
    runs = [
        played(calls, Both({0: Retain(ttl_s, move_to=1)}, 0), engine, 16, instances=2).requests for ttl_s in (0.0, 5.5)
    ]
    assert [rows["cached_tokens"][2] for rows in runs] == [3, 4]


@both
def test_nothing_moves_to_an_instance_that_is_down(engine: Engine) -> None:
    """The call ends at 1 s. Instance 1 is down from 0.5 to 1.5 s, and is there for the next call."""
    faults = FaultSchedule(crashes=[Crash(0.5, 1, 1.0)])
    result = played(EVICTED, Elsewhere({0: Retain(move_to=1)}, 0), engine, 8, instances=2, faults=faults)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0]
    assert result.instances["transferred_bytes"].tolist() == [0.0, 0.0]


class There(Elsewhere):
    """Sends all calls to instance 1 but one, which is asked to move there for ever."""

    def __init__(self, moves: int) -> None:
        super().__init__({moves: Retain(math.inf, move_to=1)}, 0)
        self.moves = moves

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return int(request.id != self.moves)


@both
@pytest.mark.parametrize(
    ("prompt", "sent_s", "left", "broken"), [(2, 4, 1, 0), (3, 4, 0, 0), (2, 6, 1, 0), (2, 3, 1, 1)]
)
def test_what_has_moved_follows_what_is_left_there(
    engine: Engine, prompt: int, sent_s: int, left: int, broken: int
) -> None:
    """Instance 1 has four of six blocks when the other two are sent, from 1.25 s on. At the end of that, when it may
    have room again, it has one, two or none of the four, for what decoded there has grown, and nothing can follow a
    block that is not there. What grows further breaks the pin of two.
    """
    calls = [
        Call(0.0, named(1, 4), 1),
        Call(0.0, named(2, prompt), 6),
        Call(0.25, named(1, 6), 1, session=0),
        Call(2.0, named(1, 7), 1, after=2, think_s=9.0, session=0),
    ]
    result = played(calls, There(2), engine, 8, instances=2, link_bytes_s=2 * MODEL.kv_bytes_per_token / sent_s)
    assert result.instances["transferred_bytes"].tolist() == [2 * MODEL.kv_bytes_per_token, 0.0]
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, left]
    assert result.instances["pins_broken"].tolist() == [0, broken]


@both
def test_a_move_that_finds_no_room_pins_nothing(engine: Engine) -> None:
    """Two that decode have all 8 blocks of instance 1 at 3.25 s, when the move ends; as they grow, one is preempted."""
    calls = [
        Call(0.0, named(1, 4), 1),
        *(Call(0.0, named(k, 1), 6) for k in (2, 3)),
        Call(0.25, named(1, 6), 1, session=0),
    ]
    result = played(calls, There(3), engine, 8, instances=2, link_bytes_s=MODEL.kv_bytes_per_token)
    assert result.instances["transferred_bytes"].tolist() == [2 * MODEL.kv_bytes_per_token, 0.0]
    assert result.requests["preemptions"].sum() > 0
    assert result.instances["pins_broken"].tolist() == [0, 0]


@both
def test_what_moves_to_where_it_is_is_pinned_there(engine: Engine) -> None:
    """A move would leave the watermark of 8 blocks, and so pin five: with three of the other call 8 are left."""
    calls = [Call(0.0, named(1, 6), 2, session=0), Call(0.0, named(2, 2), 4), Call(5.0, named(3, 1), 1)]
    policy = Keeps({0: Retain(math.inf, move_to=0)})
    played(calls, policy, engine, 16, watermark=0.5)
    assert policy.asked[:2] == [(0, 2.0, 6), (1, 4.0, 2)]


@both
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Retain(move_to=2), "move_to is an instance, from 0 to 1, or None"),
        (Retain(move_to=-1), "move_to is an instance, from 0 to 1, or None"),
        (Retain(prefetch_s=1.0, move_to=1), "prefetch_s and move_to exclude each other"),
    ],
)
def test_an_unusable_target_is_refused(engine: Engine, answer: Any, text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        played(EVICTED, Elsewhere({0: answer}, 0), engine, 8, instances=2)
