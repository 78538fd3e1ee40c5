"""Memory of one run: a few structured arrays and one integer arena, so that compiled functions pass little around.

Per-instance lists of variable size (running requests, chunks, caches) live in the arena at offsets kept in the
instance's record (fields ending in `_at`). Nothing here decides or computes; SEMANTICS.md says what the fields mean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def _record(*fields: tuple[str, str]) -> np.dtype[np.void]:
    """Fields readable as attributes both in compiled code and in plain Python."""
    return np.dtype((np.record, np.dtype(list(fields), align=True)))


REQUEST = _record(
    ("arrival_s", "f8"),
    ("event_s", "f8"),  # time of its one pending event (arrival of a later turn, end of a copy)
    ("think_s", "f8"),
    ("key", "f8"),
    ("seq", "i8"),
    ("input_tokens", "i8"),
    ("emitted", "i8"),  # tokens emitted, as of its last change of state (while decoding: see offset)
    ("target", "i8"),  # tokens to prefill: input + emitted at the time it was queued, or up to its cut
    ("done", "i8"),  # of them, prefilled or found in the cache
    ("cut", "i8"),  # tokens after which it is routed again, 0: none or passed; its target while that is in the prompt
    ("kv", "i8"),  # KV tokens held, while prefilling those there are blocks for (while decoding: see offset)
    ("offset", "i8"),  # while decoding: KV tokens = offset + decode_steps of its instance
    ("admission", "i8"),
    ("join_step", "i8"),  # decode_steps of its instance when it began to decode there
    ("previous_token_s", "f8"),
    ("migrated_kv", "i8"),  # KV tokens that the running migration has copied
    ("hash_at", "i8"),
    ("hash_count", "i4"),  # blocks of its prompt that can be shared
    ("registered", "i4"),  # of them, looked at so far on its present instance
    ("shared", "i4"),  # of them, referenced in the cache
    ("fetched_from", "i4"),  # blocks that the running fetch of its prefix brings, from and to
    ("fetched_to", "i4"),
    ("state", "i1"),
    ("migration", "i1"),
    ("unstamped", "i1"),
    ("instance", "i4"),  # where it waits, prefills, decodes, or holds KV
    ("destination", "i4"),  # of its transfer or migration, -1
    ("rank", "i4"),  # of that instance, where its ranks are told apart
    ("follows", "b1"),  # arrives when a request before has ended: of its session, or of its client
    ("opens", "b1"),  # first of its session
    ("taken_in", "b1"),  # it has passed the front end
    ("heap_index", "i4"),  # of its pending event, -1
    ("next", "i4"),  # link in the one list it is in
    ("child", "i4"),
    ("followed_by", "i4"),  # next turn of its session, -1
    ("priority", "i4"),
    ("slo_class", "i4"),
    ("session", "i8"),
    ("turn", "i4"),
    ("reason", "i2"),
    ("prefill_instance", "i4"),
    ("decode_instance", "i4"),
    ("start_s", "f8"),
    ("prefill_end_s", "f8"),
    ("first_token_s", "f8"),
    ("transfer_end_s", "f8"),
    ("end_s", "f8"),
    ("cached_tokens", "i8"),
    ("preemptions", "i4"),
    ("migrations", "i4"),
)

INSTANCE = _record(
    ("pool", "i4"),
    ("role", "i1"),  # phases that it takes new work of
    ("settled_role", "i1"),  # phases that it may still have work of: its role before the change under way
    ("next_role", "i1"),  # its role after the change under way; else all three are the same
    ("next_mode", "i1"),  # mode and token budget from that change on, where next_budget > 0
    ("next_budget", "i8"),
    ("next_percent", "i8"),
    ("change_s", "f8"),  # when the change under way takes effect, inf: not yet known, or none is under way
    ("off_s", "f8"),  # time that it has been off
    ("off_since_s", "f8"),
    ("mode", "i1"),
    ("busy", "b1"),
    ("marked", "b1"),  # something changed since its last iteration was formed
    ("woken", "b1"),
    ("switching", "b1"),  # a running request's migration is due to switch
    ("released", "b1"),  # KV or a seat came free while a step was formed
    ("preempted", "b1"),  # the iteration being formed preempted
    ("token_budget", "i8"),
    ("prefill_percent", "i8"),  # of the SMs, where prefills and decodes run in streams of their own
    ("max_batch", "i8"),
    ("total_blocks", "i8"),
    ("watermark", "i8"),
    ("reserve_blocks", "i8"),  # of every request, whatever its tokens; 0: blocks follow the tokens
    ("free_blocks", "i8"),
    ("evictable_blocks", "i8"),
    ("queued", "i8"),
    ("queued_tokens", "i8"),
    ("running", "i8"),
    ("prefilling", "i8"),
    ("joined", "i8"),
    ("reserved", "i8"),
    ("swapped", "i8"),
    ("incoming", "i8"),
    ("incoming_kv_tokens", "i8"),
    ("kv_tokens", "i8"),
    ("decode_kv", "i8"),  # KV tokens of the decoding requests
    ("decode_steps", "i8"),
    ("gate", "i8"),  # decode_steps from which on its queue is admitted from, -1: its queue was empty
    ("unstamped", "i8"),
    ("swap_bytes", "f8"),
    ("load_s", "f8"),  # to load what the requests admitted for the next step have in stores
    ("waiting_root", "i4"),
    ("joined_head", "i4"),
    ("joined_tail", "i4"),
    ("incoming_head", "i4"),
    ("incoming_tail", "i4"),
    ("swapped_head", "i4"),
    ("swapped_tail", "i4"),
    ("cut_head", "i4"),  # requests that have just decoded up to their cuts
    ("cut_tail", "i4"),
    ("running_at", "i8"),
    ("finish_at", "i8"),
    ("prefilling_at", "i8"),
    ("chunk_at", "i8"),
    ("chunk_stages", "i8"),  # stages of the chunk schedule, 0: none
    ("chunk_sizes_at", "i8"),
    ("stage_tokens", "i8"),
    ("ranks", "i8"),  # data-parallel ranks that are told apart, 0: all are taken to be alike
    ("ranks_at", "i8"),
    ("rank_choice", "i1"),
    ("next_rank", "i8"),
    ("stages", "i8"),  # of a pipeline, 0: one
    ("loads_at", "i8"),  # prefill tokens of each micro-batch of the step being formed
    ("dealt_at", "i8"),  # by place in the prefilling order, the micro-batch of its chunk
    ("growth_at", "i8"),  # running requests by the phase of decode_steps in which they need a new block
    ("cache_at", "i8"),
    ("cache_free", "i8"),  # first unused node of the cache, -1
    ("cache_old", "i8"),  # ends of the list of unreferenced cached blocks
    ("cache_young", "i8"),
    ("last_decode_end_s", "f8"),
    ("egress_free_s", "f8"),
    ("ingress_free_s", "f8"),
    ("bandwidth_bytes_s", "f8"),
    ("host_bytes_s", "f8"),
    ("memory_bytes_s", "f8"),  # of all its GPUs; inf: decodes do not feel a prefill beside them
    ("unpack_s", "f8"),  # of each token that arrives from another instance
    ("busy_s", "f8"),  # in a step of either stream
    ("counted_s", "f8"),  # time up to which that is counted, where a step is under way
    ("steps", "i8"),
    ("prefill_tokens", "i8"),
    ("decode_tokens", "i8"),
    ("drafted_tokens", "i8"),
    ("accepted_tokens", "i8"),  # of them
    ("context_tokens", "f8"),
    ("prefill_square", "f8"),
    ("kv_block_s", "f8"),
    ("kv_token_s", "f8"),
    ("batch_s", "f8"),
    ("transferred_bytes", "f8"),
    ("expert_reads", "f8"),  # how often all its experts were read, in sum of the shares that steps touched
    ("bubble_s", "f8"),  # that stages waited in steps, summed over stages
    ("extrapolated_s", "f8"),  # of busy_s, in steps past what was measured
    ("extrapolation", "f8"),  # the farthest of them, as a ratio to a limit
)

# How far an instance is with its present leap. It ends where a request does: no hook may see it.
PROGRESS = _record(
    ("next_finish", "i8"),  # decode_steps at which the first of the running requests ends
    ("event_s", "f8"),  # end of the present leap, inf when idle
    ("start_s", "f8"),
    ("first_s", "f8"),
    ("increment_s", "f8"),
    ("steps", "i8"),
    ("done", "i8"),
    ("grown", "i8"),  # steps whose new blocks have been taken
    ("decodes", "i8"),
    ("depth", "i8"),  # tokens drafted for each decode
    ("prefill_tokens", "i8"),
    ("context", "i8"),
    ("sampled", "i8"),
    ("longest_prompt", "i8"),  # prefix + chunk
    ("widest_tokens", "i8"),  # prefill tokens, if all micro-batches were the slowest
    ("bubble_s", "f8"),
)

# The prefill step that runs beside an instance's decodes, if one does.
STREAM = _record(
    ("end_s", "f8"),  # inf: none
    ("start_s", "f8"),
    ("attention_share", "f8"),  # of its time alone on all SMs
    ("tokens", "i8"),
    ("kv_tokens", "i8"),  # that its attention reads: prefix + chunk of each
    ("sampled", "i8"),
    ("longest_prompt", "i8"),
    ("square", "f8"),
)

SIM = _record(
    ("now_s", "f8"),
    ("kind", "i8"),  # the event being processed is (now_s, kind, id)
    ("id", "i8"),
    ("requests", "i8"),
    ("instances", "i8"),
    ("remaining", "i8"),
    ("next_arrival", "i8"),
    ("next_session", "i8"),  # first request that no client has taken up yet; in an open load `requests`
    ("tick_s", "f8"),
    ("next_tick", "i8"),
    ("change_s", "f8"),  # the earliest of the instances' change_s, and whose it is
    ("changing", "i8"),
    ("stream_s", "f8"),  # the earliest of the streams' end_s, and whose it is
    ("streaming", "i8"),
    ("role_changes", "i8"),
    ("role_change_s", "f8"),
    ("start_s", "f8"),
    ("seq", "i8"),
    ("admissions", "i8"),
    ("preemptions", "i8"),
    ("events", "i8"),
    ("steps", "i8"),
    ("finished", "i8"),
    ("woken", "i8"),
    ("woken_first", "i8"),
    ("heap_size", "i8"),
    ("heap_at", "i8"),
    ("released_size", "i8"),
    ("released_at", "i8"),
    ("tree_at", "i8"),
    ("tree_leaves", "i8"),
    ("most_running", "i8"),
    ("woken_at", "i8"),
    ("finished_at", "i8"),
    ("output_at", "i8"),  # true output lengths: never in a view
    ("hash_at", "i8"),
    ("held_at", "i8"),
    ("cache_nodes", "i8"),  # per instance
    ("cache_slots", "i8"),
    ("leaps", "i8"),
    ("memberships", "i8"),
    ("max_context", "i8"),
    ("block_tokens", "i8"),
    ("hash_blocks", "i8"),  # engine blocks in one trace block, 0: no prefix cache
    ("tiers", "i8"),  # stores of prefix blocks that an instance reads, 0: none
    ("store_keys", "i8"),  # names of blocks, from 0, where there are stores
    ("loads_layer_wise", "b1"),
    ("preemption", "i8"),
    ("admission_wait_steps", "i8"),
    ("speculates", "b1"),
    ("adaptive_depth", "b1"),
    ("depth", "i8"),  # tokens drafted for each decode, at most where that is adaptive
    ("acceptance", "f8"),
    ("draft_cost", "f8"),  # of a drafted token, in decode steps
    ("seed", "i8"),
    ("kv_bytes_per_token", "f8"),  # in memory
    ("weight_bytes", "f8"),
    ("slowdown_at", "i8"),  # in timing_data: of prefills by percent of the SMs, then of decodes
    ("copy_bytes_per_token", "f8"),  # on a link
    ("attention_overlap", "f8"),
    ("decode_rows", "i8"),  # that a decode takes up beside chunks, 0: its attention is as without them
    ("chosen_share", "f8"),  # of a layer's experts by one token, 0: no experts
    ("latency_s", "f8"),
    ("layerwise_tokens", "i8"),  # prompts of so many tokens send KV layer by layer, 0: none
    ("layer_share", "f8"),  # of a token's KV, in one layer
    ("request_s", "f8"),  # between a client's sending a request and its arrival here
    ("intake_s", "f8"),  # that the front end takes for a request, one after another
    ("intake_free_s", "f8"),
    ("stamp_at_decode", "b1"),
    ("asks_admit", "b1"),
    ("admit_gives_reasons", "b1"),  # else its answer only says no
    ("asks_route_decode", "b1"),
    ("asks_prioritize", "b1"),
    ("dynamic_keys", "b1"),
    ("asks_batching", "b1"),
    ("asks_split_at", "b1"),
    ("asks_fetch", "b1"),
    ("observes", "b1"),  # hooks look at instances: bring them up to date before each call
    ("status", "i8"),
    ("error_hook", "i8"),
    ("error_request", "i8"),
    ("error_value", "i8"),
)

# A tier as one instance reads it: row `instance * tiers + tier`. The list of a shared tier is that of instance 0.
STORE = _record(
    ("home", "i8"),  # the row that keeps the list of its blocks, from old to young
    ("at", "i8"),
    ("capacity", "i8"),  # in trace blocks, as all that follows
    ("count", "i8"),
    ("old", "i8"),
    ("young", "i8"),
    ("bandwidth_bytes_s", "f8"),
    ("latency_s", "f8"),
    ("hit_tokens", "i8"),  # loaded from it by first admissions
    ("loaded_bytes", "f8"),
)

LEAP = _record(
    ("start_s", "f8"),
    ("first_s", "f8"),
    ("increment_s", "f8"),
    ("step0", "i8"),
    ("context", "i8"),
    ("instance", "i4"),
    ("steps", "i4"),
    ("batch", "i4"),
    ("prefill_tokens", "i4"),
    ("depth", "i4"),  # tokens drafted for each decode
    ("stream", "i4"),  # 1: a prefill step beside the decodes
)
MEMBERSHIP = _record(
    ("first_step", "i8"),
    ("last_step", "i8"),
    ("previous_token_s", "f8"),
    ("request", "i4"),
    ("instance", "i4"),
    ("accepted", "i8"),  # drafts: tokens beyond one a step
)
ACTION = _record(
    *(("kind", "i8"), ("request", "i8"), ("instance", "i8"), ("value", "i8"), ("role", "i8")),
    *(("mode", "i8"), ("percent", "i8")),
)


class State(NamedTuple):
    """Everything the compiled engine works on. `progress` and `arena` tell of true lengths: no hook gets them."""

    sim: NDArray[np.void]  # (1,)
    requests: NDArray[np.void]  # (N,)
    instances: NDArray[np.void]  # (M,)
    progress: NDArray[np.void]  # (M,)
    streams: NDArray[np.void]  # (M,)
    arena: NDArray[np.int64]
    leaps: NDArray[np.void]
    memberships: NDArray[np.void]
    timing_rows: NDArray[np.void]
    timing_data: NDArray[np.float64]
    stores: NDArray[np.void]  # (M * tiers,)


class View(NamedTuple):
    """What a compiled hook receives. Hooks read it; the engine alone writes."""

    sim: NDArray[np.void]
    requests: NDArray[np.void]
    instances: NDArray[np.void]
    callbacks: NDArray[np.int64]  # addresses of plain-Python hooks, by hook
    actions: NDArray[np.void]
