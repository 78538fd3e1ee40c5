"""Timelines worked out by hand. Unless said otherwise a step lasts 1 s, a KV token is 1 byte, and a block 1 token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from framework.codes import ARRIVAL, STEP_END, TICK
from framework.engine.setup.config import EngineConfig
from framework.errors import PolicyError
from framework.reference import loop
from framework.reference.hooks.base import Hooks
from framework.reference.options import JointKernel, Options, Spec
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request
from framework.workload import Workload, consecutive


@dataclass(frozen=True)
class Affine:
    base: float = 1.0
    per_prefill_token: float = 0.0
    prefill_quadratic: float = 0.0
    per_sequence: float = 0.0
    per_context_token: float = 0.0

    def base_s(self, pool: int, prefill_tokens: int, decodes: int, sampled: int, drafts: int = 0) -> float:
        return self.base + self.per_prefill_token * prefill_tokens + self.per_sequence * decodes

    def chunk_s(self, pool: int, prefix: int, chunk: int) -> float:
        return self.prefill_quadratic * ((prefix + chunk) ** 2 - prefix**2)

    def joint_kernel(self, pool: int) -> JointKernel:
        return JointKernel(0.0, 1.0, math.inf)

    def tiles_s(self, pool: int, decodes: int, context: int) -> float:
        return 0.0

    def decode_s(self, pool: int, decodes: int, context: int) -> float:
        return self.per_context_token * context

    def uneven_s(self, pool: int, decodes: int, context: int, longest: int) -> float:
        return 0.0

    def host_s(self, pool: int, tokens: int, decodes: int) -> float:
        return 0.0

    def extrapolation(
        self, pool: int, tokens: int, sampled: int, decodes: int, context: int, longest_prompt: int
    ) -> float:
        return 0.0


class Script(Hooks):
    """A policy made of the given functions; those left out are not overridden."""

    def __init__(self, tick_s: float | None = None, **functions: Callable[..., Any]) -> None:
        self.overrides = frozenset(functions)
        self.tick_s = tick_s
        for name, function in functions.items():
            setattr(self, name, function)


def trace(*rows: tuple[float, int, int], **columns: Any) -> Workload:
    arrival, prompt, output = zip(*rows, strict=True)
    return Workload(np.array(arrival, float), np.array(prompt), np.array(output), **columns)


def instance(role: str = "mixed", blocks: int = 1000, budget: int = 1000, batch: int = 100, **more: Any) -> Spec:
    return Spec(0, role, blocks, budget, batch, **more)


def run(
    workload: Workload,
    *specs: Spec,
    hooks: Hooks | None = None,
    timing: Affine = Affine(),
    **options: Any,
) -> Simulation:
    options = {"block_tokens": 1, "watermark": 0.0} | options
    return loop.run(Simulation(workload, specs, Options(**options), timing, hooks or Hooks()))


def tokens(simulation: Simulation) -> list[list[float]]:
    return [r.token_s for r in simulation.requests]


def to_first_decode() -> Script:
    return Script(route_prefill=lambda s, r: 0, route_decode=lambda s, r: 1)


def test_chunks_then_decodes_with_growing_context() -> None:
    timing = Affine(per_prefill_token=1.0, per_context_token=1.0)
    s = run(trace((0, 3, 3)), instance(budget=2), timing=timing)
    assert tokens(s) == [[5.0, 10.0, 16.0]]  # steps of 1 + 2, 1 + 1, 1 + 4, 1 + 5 seconds
    r = s.requests[0]
    assert (r.arrival_s, r.start_s, r.prefill_end_s, r.first_token_s, r.end_s) == (0, 0, 5, 5, 16)
    assert (r.prefill_instance, r.decode_instance) == (0, 0)
    totals = s.instances[0].totals
    assert (totals["steps"], totals["decode_steps"], totals["prefill_tokens"], totals["decode_tokens"]) == (4, 2, 3, 2)
    assert (totals["busy_s"], totals["context_tokens"], totals["prefill_square"], totals["batch_s"]) == (16, 9, 9, 11)
    assert totals["kv_block_s"] == 3 * 5 + 4 * 5 + 5 * 6


def test_quadratic_prefill_depends_on_the_prefix_of_each_chunk() -> None:
    s = run(trace((0, 4, 1)), instance(budget=2), timing=Affine(base=0.5, prefill_quadratic=1.0))
    assert tokens(s) == [[17.0]]  # 0.5 + 4, then 0.5 + (16 - 4)
    assert s.instances[0].totals["prefill_square"] == 16


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("decode_first", [[1, 2, 3, 4], [4, 5]]),  # a decode leaves room for one prompt token a step
        ("prefill_first", [[1, 2, 4, 5], [3, 4]]),  # the prompt stops the decode for one step
        ("mixed", [[1, 2, 3, 4], [3, 4]]),  # the prompt is larger than what is left, but the first of its step
    ],
)
def test_an_arrival_joins_at_the_next_boundary(mode: str, expected: list[list[float]]) -> None:
    s = run(trace((0, 2, 4), (1.5, 2, 2)), instance(budget=2, mode=mode))
    assert tokens(s) == expected


@pytest.mark.parametrize("mode", ["prefill_first", "mixed"])
@pytest.mark.parametrize(("budget", "expected"), [(4, [1, 1, 2]), (3, [1, 2, 3])])
def test_whole_prompts_share_a_step_within_the_budget(mode: str, budget: int, expected: list[float]) -> None:
    s = run(trace((0, 2, 1), (0, 2, 1), (0, 2, 1)), instance(budget=budget, mode=mode))
    assert [r.end_s for r in s.requests] == expected


def test_decodes_are_not_dropped_for_the_budget() -> None:
    s = run(trace((0, 1, 4), (0.5, 1, 3), (1.5, 1, 1)), instance(budget=1))
    # At 1 the budget is spent on the decode; so it is until request 0 ends at 4. Then 1 and, after it, 2.
    assert tokens(s) == [[1, 2, 3, 4], [5, 6, 7], [8]]


def test_the_queue_is_read_by_priority_then_order() -> None:
    hooks = Script(prioritize=lambda s, queue: [float(r.input_tokens) for r in queue])
    s = run(trace((0, 9, 1), (0, 5, 1), (0, 2, 1), (0, 5, 1)), instance(batch=1), hooks=hooks)
    assert [r.end_s for r in s.requests] == [4, 2, 1, 3]


MEMORY = trace((0, 2, 5), (0, 2, 4))


def test_preemption_by_recompute_keeps_emitted_tokens() -> None:
    s = run(MEMORY, instance(blocks=4), block_tokens=2)
    # At 3 both need a third block: request 1 (the younger) leaves with 3 tokens, is prefilled again (5 tokens, in 3
    # blocks) when all blocks are free, from 5 on, and the end of that prefill emits its token 4.
    assert tokens(s) == [[1, 2, 3, 4, 5], [1, 2, 3, 6]]
    assert [r.preemptions for r in s.requests] == [0, 1]
    assert s.requests[1].first_token_s == 1
    assert s.instances[0].totals["prefill_tokens"] == 2 + 2 + 5


def test_preemption_by_swap_pays_for_both_ways() -> None:
    s = run(MEMORY, instance(blocks=4, host_bytes_s=2.0), block_tokens=2, preemption="swap")
    # Four KV tokens leave in the step that starts at 3 and come back in the step that starts at 7, 2 s each.
    assert tokens(s) == [[1, 2, 3, 6, 7], [1, 2, 3, 10]]
    assert s.instances[0].totals["prefill_tokens"] == 2 + 2


def test_a_prefilling_victim_starts_over() -> None:
    s = run(trace((0, 2, 6), (1.5, 3, 1)), instance(blocks=7, budget=2))
    # At 2 request 0 holds 4 blocks and request 1 takes the other 3 to compute one token a step. At 3 request 0 needs a
    # block: request 1 loses its one computed token and starts over, two tokens a step, when request 0 ends at 6.
    assert tokens(s)[0] == [1, 2, 3, 4, 5, 6]
    assert tokens(s)[1] == [8.0]
    r = s.requests[1]
    assert (r.preemptions, r.start_s, r.prefill_end_s) == (1, 2, 8)


def test_preempting_the_last_request_does_not_strand_it() -> None:
    s = run(
        trace((0, 4, 2), (0, 1, 6), (0.5, 2, 4)),
        instance(blocks=8, bandwidth_bytes_s=4.0),
        instance(batch=1, bandwidth_bytes_s=4.0),
        hooks=Script(route_prefill=lambda s, r: int(r.id == 1), route_decode=lambda s, r: int(r.id != 2)),
    )
    # Request 0 (4 KV tokens on instance 0) waits for the only seat of instance 1 until 6. Request 2 grows to 4 tokens
    # and preempts itself at 4; its 5 tokens fit when the copy of request 0 has ended at 7.
    assert tokens(s) == [[1, 8], [1, 2, 3, 4, 5, 6], [2, 3, 4, 8]]
    assert s.requests[2].preemptions == 1


def test_transfers_wait_for_a_link_one_after_the_other() -> None:
    link: dict[str, Any] = {"bandwidth_bytes_s": 2.0}
    s = run(
        trace((0, 4, 2), (0, 2, 2)),
        instance("prefill", mode="prefill_first", **link),
        instance("decode", **link),
        hooks=to_first_decode(),
        latency_s=0.5,
        link_sharing="fifo",
    )
    # Copies 1 -> 3 and 3 -> 4; at 4.5 a step of instance 1 ends, and the second request is there for the next one.
    assert tokens(s) == [[1, 4.5], [1, 5.5]]
    assert [r.transfer_end_s for r in s.requests] == [3.5, 4.5]
    assert [(r.prefill_instance, r.decode_instance) for r in s.requests] == [(0, 1), (0, 1)]
    assert [i.totals["transferred_bytes"] for i in s.instances] == [6, 0]


def test_a_transfer_waits_for_a_seat() -> None:
    link: dict[str, Any] = {"bandwidth_bytes_s": 2.0}
    s = run(
        trace((0, 4, 2), (0, 2, 2)),
        instance("prefill", mode="prefill_first", **link),
        instance("decode", batch=1, **link),
        hooks=to_first_decode(),
        latency_s=0.5,
    )
    assert tokens(s) == [[1, 4.5], [1, 7]]  # copied 4.5 -> 5.5, joined at 6


def test_prefill_kv_is_held_until_the_copy_has_ended() -> None:
    s = run(
        trace((0, 4, 2), (0, 4, 1)),
        instance("prefill", blocks=6, bandwidth_bytes_s=2.0),
        instance("decode", bandwidth_bytes_s=4.0),
        hooks=to_first_decode(),
    )
    assert tokens(s) == [[1, 4], [4]]  # request 1 needs 4 of 6 blocks: it starts at 3; with n = 1 it never moves
    assert s.requests[1].decode_instance == -1


def test_first_token_stamped_after_the_transfer() -> None:
    s = run(
        trace((0, 4, 3), (0, 2, 1)),
        instance("prefill", bandwidth_bytes_s=4.0),
        instance("decode", bandwidth_bytes_s=4.0),
        hooks=to_first_decode(),
        first_token="decode",
    )
    assert tokens(s) == [[3, 3, 4], [1]]
    assert [r.first_token_s for r in s.requests] == [3, 1]
    assert [r.prefill_end_s for r in s.requests] == [1, 1]


def test_a_victim_of_a_decode_instance_is_prefilled_again_elsewhere() -> None:
    s = run(
        trace((0, 2, 6), (0, 2, 4)),
        instance("prefill", budget=2, mode="prefill_first", bandwidth_bytes_s=2.0),
        instance("decode", blocks=8, bandwidth_bytes_s=2.0),
        hooks=to_first_decode(),
        engine=EngineConfig(recompute="routed"),
    )
    # Both grow by a block a step from 3 on: request 1 is preempted at 4, prefilled again 4 -> 5 (token 3), waits for
    # its 4 blocks until request 0 ends at 7 and is copied until 9.
    assert tokens(s) == [[1, 3, 4, 5, 6, 7], [2, 4, 5, 10]]
    assert s.requests[1].transfer_end_s == 3


def migrate_first(target: int = 1) -> Callable[[Simulation, int], Sequence[tuple[str, int, int]]]:
    return lambda s, tick: [("migrate", 0, target)]


def test_migration_copies_while_decoding_then_moves_the_tail() -> None:
    hooks = Script(tick_s=2.5, on_tick=migrate_first())
    pair = [instance(bandwidth_bytes_s=1.0)] * 2
    s = run(trace((0, 2, 8)), *pair, hooks=hooks, latency_s=0.25)
    # 3 tokens are copied 2.5 -> 5.5; at the boundary 6 there are 7: the tail of 4 is copied until 10, joined at 10.25.
    assert tokens(s) == [[1, 2, 3, 4, 5, 6, 11.25, 12.25]]
    r = s.requests[0]
    assert (r.migrations, r.decode_instance, r.prefill_instance) == (1, 1, 0)
    assert math.isnan(r.transfer_end_s)
    assert s.instances[0].totals["transferred_bytes"] == 7
    # Blocks of instance 1: 3 from 2.5, 7 from 6, 8 and 9 in its two steps.
    assert s.instances[1].totals["kv_block_s"] == 3 * 3.5 + 7 * 4.25 + 8 + 9


def test_a_migration_is_withdrawn_when_the_request_ends_first() -> None:
    hooks = Script(tick_s=2.5, on_tick=migrate_first())
    pair = [instance(bandwidth_bytes_s=1.0)] * 2
    s = run(trace((0, 2, 5), (20, 1, 1)), *pair, hooks=hooks, latency_s=0.25)
    assert tokens(s)[0] == [1, 2, 3, 4, 5]
    assert s.requests[0].migrations == 0
    assert (5.75, 1, 0) not in s.order
    assert s.instances[1].seats == 0
    assert s.instances[1].totals["kv_block_s"] == 3 * 2.5


def test_a_migration_is_abandoned_when_its_growth_does_not_fit() -> None:
    hooks = Script(tick_s=2.5, route_prefill=lambda s, r: r.id, on_tick=migrate_first())
    pair = [instance(blocks=12, bandwidth_bytes_s=1.0)] * 2
    s = run(trace((0, 2, 8), (0, 1, 10)), *pair, hooks=hooks)
    # At 6 instance 1 holds 6 + 3 of its 12 blocks and the tail needs 4. A second try at 7.5 is withdrawn at 8.
    assert tokens(s) == [[1, 2, 3, 4, 5, 6, 7, 8], [float(k) for k in range(1, 11)]]
    assert s.requests[0].migrations == 0


def cached_trace(*blocks: list[int], gap_s: float = 20.0) -> Workload:
    return trace(
        *[(gap_s * k, 8, 1) for k in range(len(blocks))],
        hash_ids=np.array([id for ids in blocks for id in ids]),
        hash_spans=consecutive([2] * len(blocks)),
        hash_block_tokens=4,
    )


def test_cached_prefixes_are_not_computed_again() -> None:
    s = run(
        cached_trace([7, 8], [7, 9], [7, 8]),
        instance(),
        timing=Affine(per_prefill_token=1.0),
        prefix_cache=True,
        block_tokens=2,
    )
    assert tokens(s) == [[9], [25], [45]]  # one token at least is computed: the last block of request 2 does not hit
    assert [r.cached_tokens for r in s.requests] == [0, 4, 4]


def test_the_cache_gives_up_its_oldest_blocks() -> None:
    s = run(
        cached_trace([7, 8], [7, 9], [10, 11], [7, 9]),
        instance(blocks=6),
        prefix_cache=True,
        block_tokens=2,
    )
    # Oldest first: 8, then 9 and 7 (dropped from the last to the first). Request 2 evicts 8 and 9.
    assert [r.cached_tokens for r in s.requests] == [0, 4, 0, 4]
    cache = s.instances[0].cache
    assert (cache.used, set(cache.references.values())) == (0, {0})
    assert cache.free + 2 * len(cache.unreferenced) == 6


def test_a_later_turn_arrives_after_its_think_time() -> None:
    s = run(
        trace((0, 1, 3), (0, 1, 1), previous=np.array([-1, 0]), think_s=np.array([0.0, 2.5])),
        instance(),
    )
    assert s.requests[1].arrival_s == 5.5
    assert tokens(s) == [[1, 2, 3], [6.5]]


def test_rejections_have_a_reason_and_release_the_next_turn() -> None:
    hooks = Script(
        admit=lambda s, r: "full" if r.id == 2 else None,
        route_prefill=lambda s, r: 0,
    )
    s = run(
        trace((0, 90, 11), (0, 50, 2), (0, 1, 1), (0, 9, 1), (0, 8, 1), **turns([-1, 0, -1, -1, -1])),
        instance(blocks=10),
        instance(blocks=20),
        hooks=hooks,
        max_context=100,
        watermark=0.2,
    )
    assert [(r.state, r.reason, r.end_s) for r in s.requests] == [
        (2, "context", 0),
        (2, "kv", 1),  # nowhere
        (2, "full", 0),
        (2, "kv", 0),  # would fit instance 1, but was sent to instance 0
        (1, "", 1),
    ]


def turns(previous: list[int]) -> dict[str, Any]:
    return {"previous": np.array(previous), "think_s": np.ones(len(previous))}


def test_a_request_fails_that_no_longer_fits_where_it_is_to_decode() -> None:
    s = run(
        trace((0, 4, 7), (0, 1, 1)),
        instance("prefill"),
        instance("decode", blocks=9),
        hooks=to_first_decode(),
    )
    assert [(r.state, r.reason, r.end_s) for r in s.requests] == [(3, "kv", 1), (1, "", 1)]


def test_ticks_come_before_arrivals_of_the_same_time_and_stop_with_the_last_request() -> None:
    seen: list[tuple[float, int]] = []

    def on_tick(s: Simulation, tick: int) -> Sequence[tuple[str, int, int]]:
        seen.append((s.now_s, len(s.instances[0].running) + len(s.instances[0].prefilling)))
        return ()

    run(trace((2, 1, 3), (4, 1, 1)), instance(), hooks=Script(tick_s=2.0, on_tick=on_tick))
    assert seen == [(2, 0), (4, 1)]  # the first request ends at 5, with the prefill of the second


def test_batching_is_asked_again_only_after_a_change() -> None:
    asked: list[float] = []

    def batching(s: Simulation, i: Instance) -> tuple[int, str, int]:
        asked.append(s.now_s)
        return (1, "decode_first", 0) if s.now_s < 2 else (8, "prefill_first", 0)

    s = run(trace((0, 3, 4), (0.5, 2, 1)), instance(), hooks=Script(batching=batching))
    # Chunks of 1 end at 1 and 2; then the rest of the prompt and request 1 share a step; decodes follow unasked.
    assert asked == [0, 1, 2, 3]
    assert tokens(s) == [[3, 4, 5, 6], [3]]


def test_requests_that_a_plan_withholds_fail_and_so_do_later_turns() -> None:
    hooks = Script(0.25, batching=lambda s, i: (8, "decode_only", 0), on_tick=lambda s, tick: ())
    s = run(trace((0, 4, 2), (1, 4, 2), (1, 1, 1), **turns([-1, -1, 0])), instance(blocks=6), hooks=hooks)
    assert [(r.state, r.reason, r.end_s) for r in s.requests] == [(3, "stalled", 1)] * 3
    assert tokens(s) == [[], [], []]


def test_a_policy_that_names_no_instance_is_refused() -> None:
    for chosen in (-1, 2, 1):
        with pytest.raises(PolicyError, match=f"route_prefill returned instance {chosen}"):
            run(trace((0, 1, 1)), instance(), instance("decode"), hooks=Script(route_prefill=lambda s, r, c=chosen: c))


def test_at_equal_times_events_follow_kind_and_id() -> None:
    s = run(
        trace((0, 1, 2), (0, 1, 2), (1, 1, 1)),
        instance(),
        instance(),
        hooks=Script(tick_s=1.0, route_prefill=lambda s, r: r.id % 2, on_tick=lambda s, tick: ()),
    )
    at_one = [(kind, id) for time, kind, id in s.order if time == 1]
    assert at_one == [(STEP_END, 0), (STEP_END, 1), (TICK, 1), (ARRIVAL, 2)]
    assert isinstance(s.requests[0], Request)


def test_attentions_of_a_hybrid_step_overlap() -> None:
    timing = Affine(prefill_quadratic=0.25, per_context_token=0.5)
    s = run(trace((0, 2, 3), (1, 2, 1)), instance(), timing=timing, attention_overlap=0.5)
    assert tokens(s) == [[2.0, 5.0, 8.0], [5.0]]


def test_a_copy_has_its_own_bytes_and_is_unpacked() -> None:
    """8 tokens of 2 bytes at 4 bytes/s, 1 s of latency, 8 * 0.5 s of unpacking."""
    s = run(
        trace((0, 8, 2)),
        instance("prefill", bandwidth_bytes_s=4.0),
        instance("decode", unpack_s=0.5),
        hooks=to_first_decode(),
        kv_bytes_per_token=16.0,
        copy_bytes_per_token=2.0,
        latency_s=1.0,
    )
    assert s.requests[0].transfer_end_s == 1 + 4 + 1 + 4
    assert tokens(s) == [[1.0, 11.0]]
