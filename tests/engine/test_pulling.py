"""KV that instances fetch as they form steps, by hand in both engines.

Instance 0 prefills four tokens a step, instance 1 decodes. A step lasts 1 s, a block is 2 tokens, a token of KV has 16
bytes, and four of them are copied in 1 s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, Role
from framework.workload import Workload, consecutive
from tests.engine.test_first_token import ENGINES, GPU, TIMING, Apart, Rows
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL

WHOLE = Sharing(50, {1: 1.0, 100: 1.0}, {1: 1.0, 100: 1.0}, contention=False)


class Concurrent(Apart):
    """Request 1 is prefilled where the others decode."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return int(request.id == 1)


def play(
    engine: str,
    rows: Rows,
    seats: int = 8,
    names: list[list[int]] | None = None,
    policy: Apart | None = None,
    role: Role = "decode",
    room: int | None = None,
    **options: Any,
) -> Result:
    """16 tokens of KV on each instance; `names` of the blocks of each prompt. Instance 1 has `room` tokens for each
    request, if that is given, and two streams if it may prefill.
    """
    pools = (
        PoolSpec("first", "prefill", 1, GPU, token_budget=4),
        PoolSpec(
            "second",
            role,
            1,
            GPU,
            token_budget=10,
            max_batch=seats,
            reserve_tokens=room,
            batching="concurrent" if role == "mixed" else None,
        ),
    )
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    ids = names or [[] for _ in rows]
    workload = Workload(
        np.array(arrival_s, float),
        np.array(prompts),
        np.array(outputs),
        hash_ids=np.array([name for own in ids for name in own], np.int64),
        hash_spans=consecutive([len(own) for own in ids]),
        hash_block_tokens=2,
    )
    config = EngineConfig(
        block_tokens=2,
        watermark=0.0,
        kv_tokens=16,
        batching="unified",
        step_order="admission",
        first_token="recomputed",
        transfers="pulled",
        implementation=engine,  # type: ignore[arg-type]
    )
    spec = ClusterSpec(pools, LinkSpec(64.0, sharing="fifo"))
    result = simulate(workload, spec, MODEL, TIMING, replace(config, **options), policy or Apart())
    check_result(result)
    return result


@ENGINES
def test_a_copy_begins_with_a_step(engine: str) -> None:
    """Prompts of 4 are computed by 1 and 2.5 s, and whole blocks of them are copied in 1 s: the first, to an idle
    instance, from 1 s on, the second from 3 s on, when a step begins there. It joins the step that begins at 4 s.
    """
    rows = ((0, 4, 6), (1.5, 4, 1))
    pulled = play(engine, rows)
    assert token_times(pulled) == [[3, 4, 5, 6, 7, 8], [5]]
    assert pulled.instances["transferred_bytes"].tolist() == [2 * 64, 0]
    sent = play(engine, rows, transfers="sent")  # 3 tokens of each
    assert token_times(sent) == [[2.75, 3.75, 4.75, 5.75, 6.75, 7.75], [4.75]]
    assert sent.instances["transferred_bytes"].tolist() == [2 * 48, 0]


@ENGINES
def test_who_waits_for_a_seat_has_its_kv_there(engine: str) -> None:
    """Both are computed by 1 s, and copied one after the other by 1.5 and 2 s, for neither has a seat yet. The only one
    is the first one's up to 3.5 s. It takes no longer, while where KV is sent the copy begins only then.
    """
    rows = ((0, 2, 2), (0, 2, 2))
    assert token_times(play(engine, rows, seats=1)) == [[2.5, 3.5], [4.5, 5.5]]
    sent = play(engine, rows, seats=1, transfers="sent")  # a token of each is copied in 0.25 s
    assert token_times(sent) == [[2.25, 3.25], [4.5, 5.5]]


@ENGINES
def test_whoever_comes_is_not_preempted_for_those_who_run(engine: str) -> None:
    """Requests 0 and 1 join at 2 and 3 s with 2 blocks of 8, and need a third at 3 and 4 s. Then request 2 is fetched,
    to the last 2 blocks, by 5 s, when request 0 needs its fourth: request 1, the last of those that run, gives way, not
    request 2, which joins with the next step, at 6 s. Request 1 finds 3 blocks for its 6 tokens when request 0 ends.
    """
    rows = ((0, 4, 9), (1, 4, 9), (2.5, 4, 3))
    result = play(engine, rows)
    assert result.requests["preemptions"].tolist() == [0, 1, 0]
    assert token_times(result) == [[3, 4, 5, 6, 7, 8, 9, 10, 11], [4, 5, 12, 13, 14, 15, 16, 17, 18], [7, 8, 9]]


@ENGINES
def test_a_whole_prompt_that_came_is_cached_there_with_what_follows(engine: str) -> None:
    """The second prompt goes on from the first, whole blocks of which are there: 2 of its 4 blocks are copied."""
    rows = ((0, 4, 1), (9, 8, 1))
    result = play(engine, rows, names=[[1, 2], [1, 2, 3, 4]], prefix_cache=True, prefix_unit="engine")
    assert result.instances["transferred_bytes"].tolist() == [64 + 64, 0]


@ENGINES
@pytest.mark.parametrize(
    ("depth", "token_s"),
    [(0, [[3, 4], [4, 5, 6, 7]]), (1, [[3, 3], [5, 5, 6, 6]])],  # every draft is right: two tokens a step
)
def test_who_comes_finds_blocks_for_its_drafts(engine: str, depth: int, token_s: list[list[int]]) -> None:
    """Of 5 blocks each takes 2 for 3 tokens of KV and the one that its first step stores, and 3 with a draft: then
    request 1, which is computed by 2 s, is fetched from 3 s on, when request 0 has ended, and not from 2 s on.
    """
    drafts = Speculation(depth=depth, acceptance=1.0, draft_cost=0.0)
    result = play(engine, ((0, 4, 2), (0, 4, 4)), kv_tokens=10, speculation=drafts)
    assert token_times(result) == token_s
    assert result.instances["free_blocks"].tolist() == [5, 5]


# --- layer by layer ---------------------------------------------------------------------------------------------------


@ENGINES
def test_layers_are_fetched_while_a_prompt_is_computed(engine: str) -> None:
    """Request 0 is fetched from 0 s on: the last of 4 layers comes 0.25 s after its prompt is computed, at 1 s. Request
    1 is computed from 1.5 to 2.5 s, and fetched from 2.25 s on, when a step begins there, for 1 s.
    """
    rows = ((0, 4, 3), (1.5, 4, 1))
    result = play(engine, rows, layerwise_tokens=4)
    assert token_times(result) == [[2.25, 3.25, 4.25], [4.25]]
    assert result.requests["transfer_end_s"].tolist() == [1.25, 3.25]
    assert token_times(play(engine, rows)) == [[3, 4, 5], [5]]


@ENGINES
def test_shorter_prompts_are_fetched_in_one_piece(engine: str) -> None:
    assert token_times(play(engine, ((0, 3, 2),), layerwise_tokens=4)) == [[3, 4]]


@ENGINES
def test_whose_answer_comes_with_its_prompt_is_fetched_no_more(engine: str) -> None:
    """Requests 1 and 2 are computed in one step, from 1.5 to 2.5 s, and wait for the only seat, which request 0 has
    from 1.25 to 4.25 s. Request 1 ends with its prompt, so that request 2 is the one to be fetched then, for 0.5 s.
    """
    rows = ((0, 4, 4), (1.5, 2, 1), (1.5, 2, 2))
    options: dict[str, Any] = {"layerwise_tokens": 2, "first_token": "prefill"}
    result = play(engine, rows, seats=1, **options)
    assert token_times(result) == [[1, 2.25, 3.25, 4.25], [2.5], [2.5, 5.75]]
    assert result.instances["transferred_bytes"].tolist() == [64 + 32, 0]
    assert result.instances["free_blocks"].tolist() == [8, 8]


@ENGINES
def test_where_it_decodes_is_asked_once(engine: str) -> None:
    """Unless it could never be held there: then it is asked about again once it is computed, and fails."""
    policy = Apart()
    play(engine, ((0, 4, 2), (2, 4, 2)), policy=policy, layerwise_tokens=4)
    assert policy.asked == [0, 1]
    policy = Apart()
    result = play(engine, ((0, 4, 9),), policy=policy, layerwise_tokens=4, room=8)
    assert policy.asked == [0, 0]
    assert result.reasons[result.requests["reason"][0]] == "kv"
    assert result.requests["end_s"].tolist() == [1]


# --- with prefills --------------------------------------------------------------------------------------------------


@ENGINES
def test_who_is_computed_with_decodes_keeps_its_seat(engine: str) -> None:
    """Of instance 1, which has two seats and two streams, request 0 has one from 2 s on. Request 1 is computed there by
    3.5 s, and keeps the other one, though it decodes from 5 s on, not from 4 s on. So request 2, which is computed by
    3.5 s, too, finds none before request 1 has ended, at 8 s, and is fetched for 1 s then.
    """
    rows = ((0, 4, 9), (2.5, 4, 4), (2.5, 4, 2))
    result = play(
        engine, rows, seats=2, policy=Concurrent(), role="mixed", sharing=WHOLE, asynchronous=True, kv_tokens=40
    )
    assert token_times(result) == [[3, 4, 5, 6, 7, 8, 9, 10, 11], [3.5, 6, 7, 8], [10, 11]]


def test_an_unknown_way() -> None:
    with pytest.raises(InputError, match=r"engine\.transfers must be one of sent, pulled; got 'x'"):
        EngineConfig(transfers="x")  # type: ignore[arg-type]
