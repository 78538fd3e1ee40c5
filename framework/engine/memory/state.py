"""Memory of one run: a few structured arrays, and one array of integers for all lists of variable size.

`Memory` is what Python holds: arrays. `State` is what compiled functions pass around: the addresses of these arrays,
and the records of which there is one. Both have the same fields. Lists of an instance (running requests, chunks,
caches) lie in `lists` at offsets that its record keeps in fields ending in `_at`. Nothing here decides or computes;
SEMANTICS.md says how the fields change.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.engine.memory.options import OPTIONS
from framework.engine.memory.records import INSTANCE, REQUEST, STEP_LOG, TOKEN_LOG, record

# The present step of an instance, or its present leap: a run of equal decode steps without a decision between them. It
# ends where a request does, so no hook may see it.
STEP = record(
    ("next_finish", "i8"),  # decode_steps at which the first running request ends
    ("repeats", "b1"),  # 1: a single step; the next one differs in contexts and drafts alone, if nothing happens
    ("fixed_depth", "b1"),  # 1: it repeats, as one of a run of fixed-depth drafted steps
    ("start_s", "f8"),  # time at which it started
    ("first_s", "f8"),  # seconds of its first step
    ("increment_s", "f8"),  # seconds by which each further step takes longer
    ("steps", "i8"),  # steps of the leap
    ("done", "i8"),  # steps of the leap that are added to the counters
    ("grown", "i8"),  # steps of the leap whose new blocks are allocated
    ("decodes", "i8"),  # requests that decode in it
    ("depth", "i8"),  # tokens drafted for each decode
    ("prefill_tokens", "i8"),  # tokens of its chunks
    ("square", "f8"),  # sum over chunks of (prefix + chunk)^2 - prefix^2, tokens squared
    ("context", "i8"),  # KV tokens that the decodes of its first step read
    ("sampled", "i8"),  # sequences that emit a token
    ("longest_prompt", "i8"),  # longest prefix + chunk, tokens
    ("widest_tokens", "i8"),  # prefill tokens if all micro-batches equalled the slowest
    # seconds that pipeline stages wait in it, summed over stages, or that a rank waits in its first step
    ("bubble_s", "f8"),
    ("bubble_increment_s", "f8"),  # seconds by which a rank waits longer in each further step
    ("micro_batches", "i8"),  # micro-batches that are not empty, of a step with chunks in a pipeline
    ("leaping_index", "i8"),  # index of the instance in the list of leaping ones, -1: it is not in it
    # Of a step that repeats.
    ("even_s", "f8"),  # seconds of it that do not depend on contexts
    ("draft_even_s", "f8"),  # the same seconds without drafts
    ("least_s", "f8"),  # lower bound of the step in seconds, independent of its kernels
    ("measured_ratio", "f8"),  # ratio by which it exceeds the measured range, contexts aside
    ("measured_context", "f8"),  # context from which it exceeds the measured range
    ("ahead_s", "f8"),  # seconds of the next step, -1: not known
    ("ahead_increment_s", "f8"),  # `increment_s` of the next step
    # The counts of its instance when a run of single steps began.
    ("fixed_from", "i8"),  # `decode_steps` of its instance
    ("fixed_kv", "i8"),  # `decode_kv` of its instance
    ("fixed_context", "f8"),  # `context_tokens` of its instance; other counts wait for the end of the run
    # Its attention takes line_s + line_slope_s * (context - line_knot) s, in addition to the time per token.
    ("line_from", "f8"),  # context from which this holds, tokens
    ("line_to", "f8"),  # context up to which this holds, tokens
    ("line_knot", "f8"),
    ("line_s", "f8"),
    ("line_slope_s", "f8"),
    # While it is being formed.
    ("decode_tokens", "i8"),  # tokens of its decodes so far
    ("load", "i8"),  # prefill tokens of the micro-batch that gets the next chunk
    ("next_decode", "i8"),  # index in the running order up to which requests had their turn
    ("next_prefill", "i8"),  # index in the prefilling order up to which requests had their turn
)

# The prefill step that runs concurrently with an instance's decodes, if there is one.
PREFILL_STEP = record(
    ("start_s", "f8"),  # time at which it started
    ("attention_share", "f8"),  # share of attention in its time, if it ran alone on all SMs
    ("tokens", "i8"),  # tokens of its chunks
    ("kv_tokens", "i8"),  # tokens that its attention reads: prefix + chunk, summed over chunks
    ("sampled", "i8"),  # sequences that emit a token
    ("longest_prompt", "i8"),  # longest prefix + chunk, tokens
    ("square", "f8"),  # sum over chunks of (prefix + chunk)^2 - prefix^2, tokens squared
    ("seats", "i8"),  # seats taken after it was formed
    ("available_blocks", "i8"),  # blocks available after it was formed: the next one cannot count on more
    ("ended_s", "f8"),  # time at which it ended, until the next one is formed; else -inf
)

# One side of an instance's network, or the fabric between all of them; see copies/link_sharing.py.
LINK = record(
    ("bandwidth_bytes_s", "f8"),
    ("flows", "i8"),  # copies under way on it
    ("first", "i4"),  # first of its channels, -1: none
    ("changed", "b1"),  # 1: it is in the list of links on which copies have begun or ended
    ("reached", "i8"),  # number of the rate setting that last set its rates
    ("left_bytes_s", "f8"),  # bandwidth that no copy has yet in that setting
    ("unserved", "i8"),  # copies without a rate yet in that setting
)

# The copies under way from one instance to another, which have one rate.
CHANNEL = record(
    ("sender", "i4"),  # link of the source; its number is that of the instance
    ("receiver", "i4"),  # link of the target
    ("flows", "i8"),  # copies
    ("first", "i4"),  # request whose copy ends first
    ("last", "i4"),
    ("changed", "b1"),  # 1: a copy has begun or ended since its rate was set
    ("rate_bytes_s", "f8"),  # rate of each copy
    ("sent_bytes", "f8"),  # bytes sent to a copy that has been there since the channel opened
    ("since_s", "f8"),  # time up to which sent_bytes is counted
    ("served", "i8"),  # number of the rate setting that last gave it a rate
    ("next_of_sender", "i4"),  # next channel of the same source, -1: none; for an unused one, the next unused one
    ("previous_of_sender", "i4"),
    ("next_of_receiver", "i4"),
    ("previous_of_receiver", "i4"),
)

# The clock and the counters of the run.
SIM = record(
    ("now_s", "f8"),  # time of the event that is being processed
    ("kind", "i8"),  # its kind
    ("id", "i8"),  # instance, request or tick of that event
    ("events", "i8"),  # events processed
    ("remaining", "i8"),  # requests that have not ended
    ("finished", "i8"),  # requests that have finished
    ("finished_seen", "i8"),  # number of finished requests that the policy has seen
    ("steps", "i8"),  # steps of all instances
    ("preemptions", "i8"),
    ("admissions", "i8"),  # the last admission number given
    ("queue_number", "i8"),  # the last queue number given
    ("next_arrival", "i8"),  # next request of the trace to arrive
    ("next_session", "i8"),  # first request that no client has taken up; in an open load the number of requests
    ("intake_free_s", "f8"),  # time at which the front end is free
    ("next_tick", "i8"),  # number of the next tick
    ("quiet_ticks", "i8"),  # consecutive ticks with no event between them, and none to follow but arrivals and copies
    (
        "change_s",
        "f8",
    ),  # the earliest change of role, fault, report, end of a TTL, client that gives up or look of the gateway
    ("changing", "i8"),  # instance of that change, number of that report, or request of that pin or client
    ("change_kind", "i8"),  # ROLE_CHANGE, FAULT, REPORT, PIN_END, GIVE_UP or GATEWAY
    ("next_fault", "i8"),  # number of the next fault
    ("awaited", "i8"),  # what the run goes on for: instances down, hung or cut off, clients that may give up, a look
    ("fell", "i8"),  # instances that the last fault took down
    ("dropped", "i8"),  # requests that the last crash dropped
    ("unserved", "i8"),  # phases of which no instance takes work
    ("parked", "i8"),  # requests that wait until each phase has an instance
    ("parked_head", "i4"),  # the first of these requests, in order
    ("parked_tail", "i4"),
    ("role_changes", "i8"),  # how often any instance's role has changed
    ("first_action", "i8"),  # first action of a tick that is not yet carried out
    ("actions", "i8"),  # actions of the tick, 0: all are carried out
    ("decides", "i8"),  # 1 if the policy decides before instances schedule, plus the number of postponed decisions
    ("postponed", "i8"),  # decisions that wait for the turn of an instance
    ("prefill_end_s", "f8"),  # the earliest end of a prefill step concurrent with decodes, inf: there is none
    ("prefill_end_of", "i8"),  # instance of that step
    ("woken", "i8"),  # instances in the ring of woken ones
    ("woken_first", "i8"),  # start of that ring
    ("scheduled", "i8"),  # the largest number of an instance that has scheduled at the present time, -1: none has
    ("heap_size", "i8"),  # copies under way
    ("channels", "i8"),  # channels that have been in use
    ("unused_channel", "i8"),  # the first unused channel below `channels`, -1: none
    ("changed_links", "i8"),  # links in the list at `changed_links_at`
    ("sharings", "i8"),  # how often rates have been set
    ("turns_size", "i8"),  # later turns whose arrival is known
    ("leaping", "i8"),  # instances in the list at `leaping_at`
    ("crossing", "i8"),  # instances that hold KV which waits for room elsewhere, while requests wait for room on them
    ("touched", "i8"),  # instances in the list at `touched_at`
    ("step_rows", "i8"),  # rows of the step log that are written
    ("token_rows", "i8"),  # rows of the token log that are written
    ("mark_s", "f8"),  # the next time at which the totals of instances must be recorded, inf: none
    ("at_mark", "b1"),  # 1: the event that is due comes after that time, and waits until they are recorded
    ("patient", "i8"),  # number of requests whose clients may give up
    ("patient_first", "i8"),  # beginning of the ring of these
    ("next_report", "i8"),  # number of the next report of the instances
    ("gated", "i8"),  # requests that wait at the gateway
    ("gated_number", "i8"),  # the last number given to one of these
    ("look_s", "f8"),  # when the gateway looks next, inf: nothing is known to change
    ("next_seen", "i8"),  # number of the next report to arrive at the gateway
    ("last_news", "i8"),  # number of the last report whose arrival it waits for
    ("charged", "i8"),  # finished requests whose outputs are charged to their flows
    ("notices", "i8"),  # notices in the list at `notices_at`
    ("noticed", "i8"),  # the first ones of these, which have been dealt with
    ("pin_ends", "i8"),  # ends of TTLs that are to come
    ("spanning", "i8"),  # requests that wait for a span, or for the step that computes them
    ("spans_over", "i8"),  # spans that have ended with this event
    ("spanless_head", "i4"),  # requests that wait for a span
    ("spanless_tail", "i4"),
    ("claim_head", "i4"),  # requests that wait for the step that computes them, in order of admission
    ("claim_tail", "i4"),
    ("suspended", "i8"),  # requests in the list at `suspended_at`
    ("source_free_s", "f8"),  # time at which the source of weights serves the next start
    ("prefill_trend", "i8"),  # 1 if the number of instances that are to prefill grew last, -1 if it shrank, 0: neither
    ("decode_trend", "i8"),  # the same of instances that are to decode
    ("timed_starts", "i8"),  # starts that have been given a time
    ("back_s", "f8"),  # when the instances that the last fault took down come back
)

# The hook that stopped the loop, if one did.
ERROR = record(
    ("status", "i8"),  # 0, or a status of framework.codes
    ("hook", "i8"),  # the hook that was asked
    ("argument", "i8"),  # its argument: a request or an instance, -1: neither
    ("value", "i8"),  # its answer
)

# A hook of the policy; rows are in the order of framework.policy.hooks.
HOOK = record(
    ("address", "i8"),  # address of the C function, 0: the hook is not asked
    ("compiled", "b1"),  # 1: the function also takes the view, the parameters and the policy's own numbers
    ("looks", "b1"),  # 1: it may look at what changes within a leap
)

# A tier of prefix blocks as one instance reads it: row `instance * tiers + tier`.
TIER = record(
    ("home", "i8"),  # the row that keeps its list of blocks; for a shared tier that of instance 0
    ("at", "i8"),  # offset of that list: next older and next younger block, by name
    ("capacity", "i8"),  # trace blocks that it has room for
    ("count", "i8"),  # trace blocks in it
    ("old", "i8"),  # least recently used block, -1: none
    ("young", "i8"),  # most recently used block, -1: none
    ("bandwidth_bytes_s", "f8"),
    ("latency_s", "f8"),  # seconds of a load in addition to its bytes
    ("hit_tokens", "i8"),  # prompt tokens loaded from it by first admissions
    ("loaded_bytes", "f8"),  # bytes loaded from it
    ("chunk", "i8"),  # blocks that it keeps and finds together; such a chunk has the name of its last block
    ("write_after", "i8"),  # uses of a block after which it is written
    ("uses_at", "i8"),  # offset of the uses of each block, by name, if write_after > 1
    ("takes_outputs", "b1"),  # 1: it takes what a request has generated, at its end
    ("on_eviction", "b1"),  # 1: it takes what the tier above evicts, 0: what is computed or loaded
    ("over_pcie", "b1"),  # 1: its bandwidth is that between the instance's GPUs and its host memory
)

# The requests of one tenant in one band that wait at the gateway. Those of a band are consecutive, and the first has
# what holds for the band.
FLOW = record(
    ("head", "i8"),  # first request, -1: none
    ("tail", "i8"),
    ("tokens", "f8"),  # tokens charged to it
    ("ttl_s", "f8"),  # seconds that a request may wait, inf: no limit
    ("first", "i8"),  # the first flow of its band
    ("flows", "i8"),  # flows of its band
    ("gated", "i8"),  # requests of its band that wait
    ("most", "f8"),  # of these, the most that may, inf: no limit
    ("turn", "i8"),  # the flow of its band that released a request last
    ("floor", "f8"),  # tokens of the flow that has become empty last
)

# What a policy does at a tick, or before an instance schedules.
ACTION = record(
    ("kind", "i8"),  # an action of framework.codes
    ("request", "i8"),  # request that it concerns, -1: none
    # target of a migration, or the instance that changes; if postponed, the instance whose turn it awaits
    ("instance", "i8"),
    ("value", "i8"),  # token budget (0: as before), seats, the KV that is kept, or the number of a reason to cancel
    ("role", "i8"),
    ("mode", "i8"),  # batching mode
    ("percent", "i8"),  # percent of the SMs for prefills, 0: as before
)


class Memory(NamedTuple):
    """The arrays of one run. `step` and `lists` hold true output lengths, so no hook gets them."""

    options: NDArray[np.void]  # (1,) OPTIONS
    sim: NDArray[np.void]  # (1,) SIM
    error: NDArray[np.void]  # (1,) ERROR
    hooks: NDArray[np.void]  # (hooks,) HOOK
    actions: NDArray[np.void]  # ACTION: those of the present answer
    postponed: NDArray[np.void]  # ACTION: those that await the turn of an instance, in order
    requests: NDArray[np.void]  # (N,) REQUEST
    instances: NDArray[np.void]  # (M,) INSTANCE
    step: NDArray[np.void]  # (M,) STEP
    prefill_step: NDArray[np.void]  # (M,) PREFILL_STEP
    tiers: NDArray[np.void]  # (M * tiers,) TIER
    flows: NDArray[np.void]  # (flows + 1,) FLOW
    links: NDArray[np.void]  # (2 M + 1,) LINK: sending sides, receiving sides, the fabric
    channels: NDArray[np.void]  # CHANNEL: the most that can be in use at once
    times: NDArray[np.float64]  # (kinds, leaves): when each instance's event of that kind is due, seconds; inf: never
    lists: NDArray[np.int64]
    names: NDArray[np.int32]  # read only: names of all blocks, of all requests, that can be shared
    step_log: NDArray[np.void]
    token_log: NDArray[np.void]
    timing_rows: NDArray[np.void]  # (pools,): see framework.timing.table
    timing_data: NDArray[np.float64]


class State(NamedTuple):
    """The state for compiled functions: the three single records, and the addresses of the arrays."""

    options: Any
    sim: Any
    error: Any
    hooks: Any
    actions: Any
    postponed: Any
    requests: Any
    instances: Any
    step: Any
    prefill_step: Any
    tiers: Any
    flows: Any
    links: Any
    channels: Any
    times: Any
    lists: Any
    names: Any
    step_log: Any
    token_log: Any
    timing_rows: Any
    timing_data: Any
    seen: Any  # what compiled hooks receive


def sample_memory() -> Memory:
    """Arrays of the right types without content, for signatures."""
    from framework.timing.table import ROW

    records = (OPTIONS, SIM, ERROR, HOOK, ACTION, ACTION, REQUEST, INSTANCE, STEP, PREFILL_STEP, TIER, FLOW, LINK)
    kinds = (*records, CHANNEL, np.float64, np.int64, np.int32, STEP_LOG, TOKEN_LOG, ROW, np.float64)
    memory = Memory._make(np.zeros(1, kind) for kind in kinds)
    memory.names.setflags(write=False)
    return memory
