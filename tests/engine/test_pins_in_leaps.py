"""KV between calls where its events meet others: runs of decodes, loads, clients that give up; by hand in both engines.

A pin or a load that ends while another decodes finds what that has taken by then, whatever the engine has booked of it.
"""

from __future__ import annotations

import math
from typing import Any

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.load import Open, Patience
from framework.policy import Cluster, Request, Retain
from framework.system.cluster import disaggregated
from tests.engine.test_pins import GPU, Call, Engine, Keeps, both, named, played
from tests.helpers.scenarios import MODEL

HOST = PrefixStores({"host": Tier(bandwidth_bytes_s=4 * MODEL.kv_bytes_per_token)}, layer_wise=False)


class Asked(Keeps):
    """Notes how many wait when it is asked where to prefetch."""

    def __init__(self, answers: dict[int, Any]) -> None:
        super().__init__(answers)
        self.queued: list[int] = []

    def prefetch(self, request: Request, cluster: Cluster) -> int:
        self.queued.append(len(cluster.queued(0)))
        return 0


@both
def test_a_call_waits_for_loads_of_all_that_it_waited_for(engine: Engine) -> None:
    """Both first calls end at 1 s, and another evicts their blocks. Those of the second are loaded from 8.5 to 9.5 s;
    the call that has waited for both comes at 9 s.
    """
    calls = [
        *(Call(0.0, named(program, 4), 1, session=0) for program in (1, 2)),
        Call(1.0, named(3, 8), 1),
        Call(2.0, named(2, 6), 1, after=0, think_s=8.0, session=0),
    ]
    answers = {1: Retain(prefetch_s=7.5)}
    result = played(calls, Keeps(answers), engine, 8, joins=[(3, 1)], prefix_stores=HOST)
    assert result.requests["start_s"].tolist() == [0.0, 0.0, 1.0, 9.5]
    assert result.requests["cached_tokens"][3] == 4


@both
def test_a_prefetch_is_due_before_a_client_gives_up_at_that_time(engine: Engine) -> None:
    """The first cannot be admitted while another decodes: its client waits for four seconds."""
    calls = [Call(0.0, named(3, 8), 1), Call(0.0, named(1, 4), 1, session=0), Call(0.0, named(2, 2), 6, session=1)]
    policy = Asked({1: Retain(prefetch_s=3.0)})
    result = played(calls, policy, engine, 8, load=Open(patience=Patience(4.0)))
    assert result.requests["end_s"].tolist() == [4.0, 1.0, 6.0]
    assert policy.queued == [1]


# One decodes from 0 s on and has a block more each second: two at first, so that six of eighteen are free at 1 s. Ten
# are cached then: four of a first call, whose rank is the lowest, and six of another. From 7 s on one goes a second.
# The last comes late, since a run of decodes ends where what counts does: with the last arrival.
GROWING = [
    Call(0.0, named(1, 4), 1, session=0),
    Call(0.0, named(2, 6), 1),
    Call(0.0, named(4, 2), 15),
]
LAST = Call(30.0, named(5, 1), 1)


@both
def test_what_decodes_has_evicted_others_before_a_pin_ends(engine: Engine) -> None:
    """Three of the six have gone by 9.5 s, when the pin of the four ends. They go from then on, and three are left."""
    calls = [*GROWING, Call(9.75, named(2, 5), 1), LAST]
    result = played(calls, Keeps({0: Retain(8.5, rank=-1)}), engine, 18)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, 3, 0]


@both
def test_what_decodes_has_evicted_others_before_a_load_ends(engine: Engine) -> None:
    """Two of the four go at 7 and 8 s. They are loaded from 8.5 to 11.5 s, in place of two of the six. Three more of
    the six have gone by then. Of the four, which are not pinned from then on, one goes at 12 s. Another call finds one
    of the six, and loads the second of its blocks with its step.
    """
    slow = PrefixStores({"host": Tier(bandwidth_bytes_s=MODEL.kv_bytes_per_token / 1.5)}, layer_wise=False)
    calls = [*GROWING, Call(11.75, named(2, 3), 1), LAST]
    answers = {0: Retain(0.0, rank=-1, prefetch_s=7.5)}
    result = played(calls, Keeps(answers), engine, 18, prefix_stores=slow)
    assert (result.requests["start_s"][3], result.requests["end_s"][3]) == (12.0, 14.5)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, 2, 0]


class Apart(Keeps):
    """Computes the third prompt on instance 1 and the others on instance 0, and decodes on instance 2."""

    roles = ("prefill", "decode")

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return int(request.id == 2)

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        return 2


@both
def test_a_pin_that_comes_late_yields_to_what_waits_for_room(engine: Engine) -> None:
    """The KV of the first comes free in the schedule at 4 s, and is pinned after it. Nothing runs there then: the
    second is on its way, and the third waits for seven of eight blocks.
    """
    calls = [Call(0.0, named(1, 2), 2), Call(0.0, named(2, 3), 3), Call(0.0, named(3, 7), 2)]
    spec = disaggregated(2, 1, GPU, link_bandwidth_bytes_s=MODEL.kv_bytes_per_token, link_sharing="fifo")
    runs = [
        played(calls, Apart(answers), engine, 8, spec=spec, asynchronous=True)
        for answers in ({}, {0: Retain(math.inf)})
    ]
    assert [run.requests["transfer_end_s"].tolist() for run in runs] == 2 * [[3.0, 6.0, 15.0]]
    assert [run.instances["pins_broken"][2] for run in runs] == [0, 1]
    assert runs[0].instances["kv_block_s"].tolist() == runs[1].instances["kv_block_s"].tolist()


@both
def test_what_decodes_breaks_a_pin_that_began_after_its_run_of_steps(engine: Engine) -> None:
    """The KV of the first comes free in the schedule at 3 s, and is pinned after it, while four of twelve are left."""
    calls = [Call(0.0, named(1, 4), 3), Call(0.0, named(2, 2), 11), LAST]
    result = played(calls, Keeps({0: Retain(math.inf)}), engine, 12, asynchronous=True)
    assert result.requests["end_s"].tolist()[:2] == [3.0, 11.0]
    assert result.instances["pins_broken"].tolist() == [1]


@both
def test_who_waits_is_admitted_once_a_pin_is_broken(engine: Engine) -> None:
    """Prompts go before decodes. At 3 s what decodes needs a fifth block of ten, of which six are pinned: the next
    step, at 4 s, is that of a prompt of four.
    """
    calls = [Call(0.0, named(1, 6), 1), Call(0.0, named(2, 2), 8), Call(1.5, named(3, 4), 1), LAST]
    result = played(calls, Keeps({0: Retain(math.inf)}), engine, 10, batching="prefill_first")
    assert result.instances["pins_broken"].tolist() == [1]
    assert result.requests["start_s"].tolist() == [0.0, 0.0, 4.0, 30.0]
