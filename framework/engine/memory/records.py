"""The records of a request and of an instance, and the rows of the logs.

Each field states its unit and meaning. Times are seconds, `_s`; times of events count from the start of the trace.
`_at` is an offset into `State.lists`; `_head` and `_tail` are the ends of a list of requests, linked by `next`. A
request or an instance is a number from 0, and -1 if there is none. `SEMANTICS.md` says how these fields change.
"""

from __future__ import annotations

import numpy as np


def record(*fields: tuple[str, str]) -> np.dtype[np.void]:
    """A record type whose fields are attributes both in compiled code and in plain Python."""
    return np.dtype((np.record, np.dtype(list(fields), align=True)))


REQUEST = record(
    # One cache line of 64 bytes: its instance, and its place in a queue.
    ("event_s", "f8"),  # time of its one pending event: the arrival of a later turn, or the end of a copy
    ("key", "f8"),  # its sort key in the waiting queue, smallest first
    ("queue_number", "i8"),  # order among equal keys
    ("input_tokens", "i8"),  # tokens of its prompt
    ("next", "i4"),  # next request of the one list that it is in
    ("child", "i4"),  # first child in the heap of its waiting queue
    ("heap_index", "i4"),  # place of that event in its heap, -1: none is pending
    ("instance", "i4"),  # instance where it waits, prefills, decodes, or holds KV
    ("followed_by", "i4"),  # first of the requests that wait for its end, linked by `next`; -1: none
    ("reason", "i2"),  # index of the reason why it was rejected or failed, 0: it was not
    ("state", "i1"),  # one of the request states in framework.codes
    ("migration", "i1"),  # NOT_MIGRATING, COPYING or COPIED
    ("follows", "b1"),  # 1: it arrives when another request of its session or client has ended
    ("opens", "b1"),  # 1: it is the first of its session or program
    ("taken_in", "b1"),  # 1: it has passed the front end
    ("caches", "b1"),  # 1: its present instance computed its KV, so its blocks enter the cache
    ("first_token_pending", "b1"),  # 1: its first token is stamped at the end of its next decode step
    ("waits", "b1"),  # 1: it decodes, but the step that is being formed has no tokens left for it
    ("slo_class", "u2"),  # number of its class of SLOs, in sorted order of their names
    # The next 64 bytes: its progress.
    # tokens to prefill: prompt and emitted tokens as of its queueing, or those up to its split
    ("prefill_until", "i8"),
    ("prefilled", "i8"),  # tokens of `prefill_until` that are prefilled or were found in the prefix cache
    ("split", "i8"),  # token before which it is routed again, 0: none, or already passed
    ("kv", "i8"),  # KV tokens held; while it prefills, those with blocks (while it decodes: see `offset`)
    ("offset", "i8"),  # while it decodes: its KV tokens are offset + decode_steps of its instance
    ("join_step", "i8"),  # decode_steps of its instance when it began to decode there
    ("admission", "i8"),  # number of its admission: the largest is preempted first
    ("previous_token_s", "f8"),  # time of the last token before its present stay on an instance
    # The next 64 bytes: what results report of it, in their order; NaN or -1 if it has not happened.
    ("arrival_s", "f8"),  # time at which the scheduler first sees it; NaN before
    ("start_s", "f8"),  # time of its first admission
    ("prefill_end_s", "f8"),  # time at which its prompt was fully computed
    ("first_token_s", "f8"),  # time of its first token
    ("transfer_end_s", "f8"),  # time at which its KV arrived from the prefill instance
    ("end_s", "f8"),  # time at which it finished, was rejected or failed
    ("emitted", "i8"),  # output tokens emitted as of its last change of state (while it decodes: see `offset`)
    ("cached_tokens", "i8"),  # prompt tokens found in the prefix cache at its first admission
    # The next 64 bytes: its prefix, and its former instances.
    ("hash_at", "i4"),  # offset of its trace blocks' names
    ("held_at", "i4"),  # offset of its list of referenced blocks, less the run's `held_at`; -1: it has none
    ("hash_count", "i4"),  # trace blocks of its prompt that can be shared
    ("registered", "i4"),  # trace blocks that its present instance has already looked at
    ("shared", "i4"),  # trace blocks that it references in the cache
    # leading trace blocks that it references at the target of its copy; once it has ended, 1 + the instance to which
    # its KV moves, 0: it does not
    ("shared_there", "i4"),
    ("fetched_from", "i4"),  # first trace block of the running fetch of its prefix
    ("fetched_to", "i4"),  # block behind the last one of that fetch
    ("prefill_instance", "i4"),  # instance where it was first admitted
    ("decode_instance", "i4"),  # instance where it last began to decode
    ("preemptions", "i4"),  # how often it was preempted
    ("migrations", "i4"),  # how often it changed instances while it decoded, or at a split
    ("destination", "i4"),  # target of its transfer or migration, -1: none
    ("rank", "i2"),  # its data-parallel rank on that instance, if ranks are distinguished
    ("rerouted", "b1"),  # 1: a crash took it off its instance; until it decodes it is computed on the routed instance
    ("skips", "b1"),  # 1: it decodes, and the policy leaves it out of steps
    ("accepted", "i4"),  # drafts that its last decode step accepted, if it decodes
    ("turn", "i4"),  # its place in the session, from 0
    # The last 64 bytes, which few requests need: its session, its tenant, and its copy while links are shared.
    ("session", "i8"),  # number of its session, -1: it has none
    ("think_s", "f8"),  # seconds between the end of what it waits for and its own arrival
    ("migrated_kv", "i8"),  # KV tokens that its migration has copied so far
    ("sent_until", "f8"),  # count of that channel's bytes at which all of its own have been sent
    ("complete_s", "f8"),  # time before which its last byte cannot arrive
    # seconds between its last byte and the end of the copy; once it has ended, the TTL that begins with its prefetch,
    # -1: it has none to come or under way
    ("landing_s", "f8"),
    ("channel", "i4"),  # channel of its copy, -1: none, or not any more
    ("previous", "i4"),  # request of that channel whose copy ends before its own
    ("priority", "i4"),  # priority in the trace, the larger the more urgent
    ("tenant", "i4"),  # number of its tenant, in sorted order of their names
)

INSTANCE = record(
    # What it is.
    ("pool", "i4"),  # index of its pool
    ("row", "i4"),  # row of its step times, which is that index unless it runs on fewer GPUs than it has
    ("max_batch", "i8"),  # requests that it may hold at once
    ("bandwidth_bytes_s", "f8"),  # bandwidth of its network in each direction
    ("host_bytes_s", "f8"),  # bandwidth between its GPUs and its host memory
    ("memory_bytes_s", "f8"),  # bandwidth of all its GPUs; inf: a concurrent prefill does not slow decodes
    ("slowness", "f8"),  # factor by which its steps now take longer
    ("unpack_s", "f8"),  # seconds to unpack each token of KV that arrives from another instance
    # Role: sets of the phases PREFILL and DECODE.
    ("role", "i1"),  # phases of which it takes new work
    ("draining_role", "i1"),  # phases of which it may still have work: its role before the change under way
    ("next_role", "i1"),  # its role after the change under way; else all three are equal
    ("hung", "b1"),  # 1: it hangs, and this is not detected yet
    ("down", "b1"),  # 1: it has crashed; the change under way brings it back
    ("next_mode", "i1"),  # batching mode from that change on, if next_budget > 0
    ("next_budget", "i8"),  # token budget from that change on, 0: as before
    ("next_percent", "i8"),  # percent of the SMs for prefills from that change on, 0: as before
    ("off_s", "f8"),  # seconds for which it has been off
    ("off_since_s", "f8"),  # time at which it was last switched off
    # How it forms steps.
    ("mode", "i1"),  # batching mode
    ("token_budget", "i8"),  # tokens of one step
    ("prefill_percent", "i8"),  # percent of the SMs for prefills that run concurrently with decodes
    ("chunk_sizes_at", "i8"),  # sizes of its chunk schedule, in tokens
    ("chunk_stages", "i8"),  # number of these sizes, 0: there is no schedule
    ("stage_tokens", "i8"),  # prompt tokens for which one size holds
    ("admission_opens", "i8"),  # decode_steps from which its queue is admitted from, -1: its queue was empty
    ("busy", "b1"),  # 1: a step is under way
    ("between", "b1"),  # 1: a step has ended at this time, and the next one is not formed yet
    ("changed", "b1"),  # 1: something changed since its last step was formed
    ("asked", "b1"),  # 1: the policy has decided before its next step
    ("woken", "b1"),  # 1: it is in the list of instances that schedule at this time
    ("marked", "b1"),  # 1: a search has marked it, see roles/circles.py
    ("touched", "b1"),  # 1: it is in the list of instances whose load has changed
    ("switching", "b1"),  # 1: a running request's migration is due to switch
    ("frees_memory", "b1"),  # 1: KV or a seat came free at the end of the present step
    ("preempted", "b1"),  # 1: forming the present step preempted a request
    ("disordered", "b1"),  # 1: its running order may differ from that of admission
    ("closed", "b1"),  # 1: a request found no room, and no room has come free since
    # 1: KV came free since it last scheduled; 2: at the end of its last step, too late for the next one
    ("freed", "i1"),
    ("output_ratio", "f8"),  # share of the future output for which admissions left room
    ("ratio_since", "i8"),  # decode_steps at which that share was set
    # Its requests, counted.
    ("queued", "i8"),  # requests waiting for their prefill, in the queue and in the inbox
    ("prefilling", "i8"),  # requests in the prefilling order
    ("running", "i8"),  # decoding
    ("paused", "i8"),  # running requests, the last of the order, for which the present step has no tokens
    ("joining", "i8"),  # requests whose KV is here and which join at the next boundary
    ("computed", "i8"),  # joining requests whose prompt its prefill stream has computed
    ("computed_known", "i8"),  # computed requests, the first ones, that the next step of its decodes may hold
    ("reserved", "i8"),  # seats held for transfers and migrations on their way here
    ("swapped", "i8"),  # swapped out
    ("suspended", "i8"),  # requests that the policy took off and that decode here again: with their KV, or recomputed
    ("late_seats", "i8"),  # seats that came free at the end of the last step, too late for the next one
    ("incoming", "i8"),  # requests on their way here, or waiting to be sent here
    ("holding", "i8"),  # requests with KV here that wait for room elsewhere
    ("first_tokens_pending", "i8"),  # running requests whose first token is pending
    # Lists of these requests.
    ("waiting_root", "i4"),  # root of the waiting queue, a pairing heap
    ("inbox_head", "i4"),  # requests that came after its last step was formed, with asynchronous scheduling
    ("inbox_tail", "i4"),
    ("deferred_head", "i4"),  # requests with a deferred free: they ended with its last step, and their KV is still here
    ("deferred_tail", "i4"),
    ("joining_head", "i4"),
    ("joining_tail", "i4"),
    ("computed_head", "i4"),
    ("computed_tail", "i4"),
    ("incoming_head", "i4"),  # requests that wait for room here
    ("incoming_tail", "i4"),
    ("swapped_head", "i4"),
    ("swapped_tail", "i4"),
    ("split_head", "i4"),  # requests that have just decoded up to their splits
    ("split_tail", "i4"),
    ("running_at", "i8"),  # requests in running order
    ("finish_at", "i8"),  # decode_steps at which each running request ends
    ("prefilling_at", "i8"),  # requests in prefilling order
    ("chunk_at", "i8"),  # tokens of each prefilling request's chunk in the present step
    # Its KV memory, in engine blocks, and the tokens in it.
    ("total_blocks", "i8"),
    ("free_blocks", "i8"),
    ("evictable_blocks", "i8"),  # blocks of cached prefixes that no request references
    ("watermark", "i8"),  # blocks that admissions leave available
    ("late_blocks", "i8"),  # blocks that came free at the end of the last step, too late for the next one
    ("held_blocks", "i8"),  # blocks of the `holding` requests, while circles are searched for
    ("reserve_blocks", "i8"),  # constant number of blocks of each request; 0: blocks follow the tokens
    ("growth_at", "i8"),  # numbers of running requests by the phase of decode_steps at which they need a new block
    ("queued_tokens", "i8"),  # tokens still to be prefilled
    ("recompute_tokens", "i8"),  # queued tokens of waiting requests that were preempted here while they decoded
    ("incoming_kv_tokens", "i8"),  # KV tokens on their way here
    ("kv_tokens", "i8"),  # KV tokens held
    ("decode_kv", "i8"),  # KV tokens of decoding requests
    ("decode_steps", "i8"),  # decode steps that have ended here
    ("swap_bytes", "f8"),  # bytes swapped out and in before the next step
    ("load_s", "f8"),  # seconds to load from stores for the requests admitted to the next step
    ("egress_free_s", "f8"),  # time at which its outgoing link is free
    ("ingress_free_s", "f8"),  # time at which its incoming link is free
    # Its prefix cache: a table of nodes, and the list of nodes that no request references.
    ("cache_at", "i8"),  # slots | key | references | older | younger | rank
    ("cache_free", "i8"),  # first unused node, -1: none
    ("cache_old", "i8"),  # least recently used unreferenced node, -1: none
    ("cache_young", "i8"),  # most recently used one
    # Data-parallel ranks and pipeline stages.
    ("ranks", "i8"),  # number of distinguished ranks; 0: all ranks are equal
    ("ranks_at", "i8"),  # entries of each rank, see parallel/data_parallel.py
    ("rank_choice", "i1"),  # rule by which a rank is chosen
    ("next_rank", "i8"),  # rank that comes next if they take turns
    ("group", "i8"),  # instances that step together with it, 0: it steps alone
    ("group_first", "i8"),  # the first instance of its group
    ("stages", "i8"),  # pipeline stages, 0: one
    ("loads_at", "i8"),  # prefill tokens of each micro-batch of the step that is being formed
    ("dealt_at", "i8"),  # micro-batch of each chunk, in prefilling order
    # Totals.
    ("busy_s", "f8"),  # seconds in a step of either kind
    ("counted_s", "f8"),  # time up to which busy_s is counted, while a step is under way
    ("last_decode_end_s", "f8"),  # time at which its last decode step ended
    ("steps", "i8"),
    ("prefill_tokens", "i8"),
    ("decode_tokens", "i8"),
    ("drafted_tokens", "i8"),
    ("accepted_tokens", "i8"),  # drafted tokens that were accepted
    ("context_tokens", "f8"),  # KV tokens that decodes have read
    # sum over decode steps of context times the tokens passed through the model, drafts included
    ("decode_pairs", "f8"),
    ("prefill_square", "f8"),  # sum over chunks of (prefix + chunk)^2 - prefix^2, tokens squared
    ("kv_block_s", "f8"),  # integral of blocks in use over time
    ("kv_token_s", "f8"),  # integral of KV tokens held over time
    ("batch_s", "f8"),  # integral of the decode batch over time
    ("transferred_bytes", "f8"),  # sent to other instances
    ("weight_passes", "i8"),  # how often weights were read: once a step, or in a pipeline once for each micro-batch
    ("expert_reads", "f8"),  # reads of all its experts: the sum of the shares that steps read
    ("bubble_s", "f8"),  # seconds that stages waited in steps, summed over stages
    ("extrapolated_s", "f8"),  # seconds of busy_s in steps beyond what was measured
    ("extrapolation", "f8"),  # the largest excess of these steps, as a ratio to a limit
    # What scaling needs.
    ("pool_role", "i1"),  # the role of its pool
    ("gpus", "i4"),  # its GPUs that work
    ("start_s", "f8"),  # seconds from switching it on until it takes work
    ("starts", "i8"),  # how often it was switched on
    ("stops", "i8"),  # how often it went off
    ("state_blocks", "i8"),  # blocks of each request without those of its tokens: states of linear attention
    # KV between calls.
    ("pinned_head", "i4"),  # requests that have ended and whose cached blocks are pinned, the oldest pin first
    ("pinned_tail", "i4"),
    ("ranked_nodes", "i8"),  # cached blocks whose rank is not 0
    ("pins_yielded", "b1"),  # 1: forming the present step broke pins, so the next one may admit others
    ("pins_broken", "i8"),  # pins that ended because others needed the room
    # Spans.
    ("looked", "b1"),  # 1: who waits for a span has been asked about before its next step
    ("ready", "b1"),  # 1: it stands ready for the step of a span
    ("guests", "i8"),  # KV tokens of requests that decode elsewhere, which steps of its decodes read
    ("lending", "i8"),  # running requests that have KV elsewhere
    # Starts that share a source of weights, and turns of the fleet.
    ("provisioning_s", "f8"),  # seconds of start_s before it reads its weights
    ("source_s", "f8"),  # seconds for which the source of its weights then serves no other start, 0: it serves all
    ("reversals", "i8"),  # its changes that turned the number of instances of a phase back
    # Prefetches.
    ("loading", "i8"),  # pinned requests whose blocks are being loaded
    ("loads_end_s", "f8"),  # time at which the last of these loads ends
    # What a policy sets, further.
    ("most_drafts", "i8"),  # tokens drafted for each decode; the maximum if that is adaptive
    # Backups of KV.
    ("restored_tokens", "i8"),  # KV tokens that it has read from backups
)

# A row of the step log: a leap that has ended.
STEP_LOG = record(
    ("start_s", "f8"),
    ("first_s", "f8"),  # seconds of its first step
    ("increment_s", "f8"),  # seconds by which each further step took longer
    ("step0", "i8"),  # decode_steps of the instance at its start
    ("context", "i8"),  # KV tokens that the decodes of its first step read
    ("instance", "i4"),
    ("steps", "i4"),
    ("batch", "i4"),  # requests that decoded
    ("prefill_tokens", "i4"),
    ("depth", "i4"),  # tokens drafted for each decode
    ("stream", "i4"),  # 1: a prefill step concurrent with the decodes
)

# A row of the token log: the decode steps of an instance that gave a request its tokens. With instance -1 the row is a
# single gap of `previous_token_s` seconds.
TOKEN_LOG = record(
    ("first_step", "i8"),  # decode_steps of its instance before its first token there
    ("last_step", "i8"),  # decode_steps after its last one
    ("previous_token_s", "f8"),  # time of the token before
    ("request", "i4"),
    ("instance", "i4"),
    ("accepted", "i8"),  # drafted tokens emitted in addition to one a step
)
