"""The options of a run, as the engine reads them. A mechanism states the values of its own: `engine_options`."""

from __future__ import annotations

from framework.engine.memory.records import record

# What an instance has by the number of its GPUs, as fields of its record (0 blocks: the model does not fit); and the
# seconds of a reconfiguration to so many GPUs, and from there to all.
WIDTH_COUNTS = ("gpus", "total_blocks", "watermark", "reserve_blocks")
WIDTH_VALUES = ("host_bytes_s", "memory_bytes_s", "unpack_s", "shrink_s", "grow_s")

# What holds for the whole run: sizes, options, and offsets of lists. The engine only reads it.
OPTIONS = record(
    ("requests", "i8"),  # number of requests
    ("instances", "i8"),  # number of instances
    ("step_log_rows", "i8"),  # rows that the step log has room for
    ("token_log_rows", "i8"),  # rows that the token log has room for
    ("most_running", "i8"),  # requests that any instance may hold at once
    ("tick_s", "f8"),  # period of ticks, 0: there are none
    ("seed", "i8"),  # seed of draws
    # Lists of the whole run.
    ("tree_at", "i8"),  # winner trees over `times`, one for each kind of event that an instance has
    ("tree_leaves", "i8"),  # leaves of each tree above and of the one below, a power of two
    ("load_tree_at", "i8"),  # winner tree over the least queued instances
    ("keeps_loads", "b1"),  # 1: the tree is kept, and replaces `route_prefill`
    ("finds_least_kv", "b1"),  # 1: the engine itself finds the instance with the fewest KV tokens for `route_decode`
    ("touched_at", "i8"),  # instances whose load has changed since that tree was last asked
    ("woken_at", "i8"),  # ring of the instances that schedule at this time, in order of their numbers
    ("heap_at", "i8"),  # heap of copies under way
    ("turns_at", "i8"),  # heap of later calls of sessions and programs whose arrival is known
    ("joins", "b1"),  # 1: some request waits for several
    ("joins_at", "i8"),  # for each request, where the further ones begin that it waits for; then these
    ("overlaps", "b1"),  # 1: the clients of a closed load may have several calls of a program under way
    ("opener_at", "i8"),  # in that case, the first call of each request's program,
    ("unended_at", "i8"),  # how many of the program of such a call have not ended,
    ("beside_at", "i8"),  # and the next call of its program that waits for none, -1: there is none
    ("finished_at", "i8"),  # requests that have finished, in the order of their ends
    (
        "leaving_at",
        "i8",
    ),  # requests that leave an order of an instance at the end of a step, until their destinations are known
    ("asked_at", "i8"),  # requests whose keys the policy must give
    ("aside_at", "i8"),  # decodes put aside while an instance's running order is sorted
    (
        "draws_at",
        "i8",
    ),  # for steps that draft: for each request, the token up to which drafts are drawn, and which are right
    ("output_at", "i8"),  # true output lengths, tokens: never in a view
    ("leaping_at", "i8"),  # instances whose present leap spans several steps
    # The front end.
    ("max_context", "i8"),  # tokens of prompt and output together that the model takes
    ("request_s", "f8"),  # seconds between a client's sending a request and its arrival here
    ("horizon_s", "f8"),  # arrivals from this time on are not sent; inf: all are
    ("backoff_s", "f8"),  # seconds that a client of a closed load waits after a rejection
    ("intake_s", "f8"),  # seconds of the front end for each request, one after another
    ("intake_token_s", "f8"),  # seconds for each token of its prompt
    # first token of a request that decodes elsewhere: from its source, or when the client gets it
    ("first_token", "i8"),
    # Hooks.
    ("admit_gives_reasons", "b1"),  # 1: `admit` answers with the number of a reason; 0: with yes or no
    ("pulls", "b1"),  # 1: instances fetch KV as they form steps, before the request has a seat
    ("asks_local_decode", "b1"),  # 1: `route_decode` is asked even if the prefill instance also decodes
    ("dynamic_keys", "b1"),  # 1: `prioritize` is asked again whenever a queue is read after a change
    # KV memory and the prefix cache.
    ("block_tokens", "i8"),  # tokens of an engine block
    ("kv_bytes_per_token", "f8"),  # bytes of a token in memory
    ("copy_bytes_per_token", "f8"),  # bytes of a token on a link
    ("preemption", "i8"),  # RECOMPUTE or SWAP
    (
        "recomputes_there",
        "b1",
    ),  # 1: requests with emitted tokens are recomputed on the instance of their preemption, 0: as routed
    ("least_urgent", "b1"),  # 1: the request that would be last in a queue is preempted; 0: the one admitted last
    ("fewest_tokens", "b1"),  # 1: the request with the fewest emitted tokens is preempted
    ("waits_last", "b1"),  # 1: a preempted request waits behind others of its key; 0: before all others
    ("hash_blocks", "i8"),  # engine blocks in one shared block, 0: there is no prefix cache
    ("shares_early", "b1"),  # 1: shared blocks are engine blocks, shared from their allocation on, generated ones too
    ("held_at", "i8"),  # the blocks that requests reference, see kv/held_blocks.py
    ("held_free_at", "i8"),  # 1 + the first unused list by length, 0: none; then where unused room begins
    ("cache_nodes", "i8"),  # nodes of the cache of each instance
    ("cache_slots", "i8"),  # slots of its hash table, a power of two
    ("tiers", "i8"),  # tiers of prefix blocks below GPU memory that an instance reads, 0: none
    ("tier_keys", "i8"),  # names of blocks, from 0, if there are tiers
    ("loads_layer_wise", "b1"),  # 1: loading overlaps with computing
    # Steps.
    ("asynchronous", "b1"),  # 1: a step is formed while the one before it runs
    ("admission_wait_steps", "i8"),  # decode steps that the first of a queue waits for more requests
    ("by_admission", "b1"),  # 1: unified steps are formed in order of admission; 0: decodes first
    ("longest_chunk", "i8"),  # tokens of a prompt in one step, at most
    ("unchunked", "b1"),  # 1: a prompt is admitted only if the budget has room for all of it
    # 1: unified steps admit prompts whose first chunk has blocks; 0: only whole prompts that have them
    ("room_for_chunk", "b1"),
    ("spares_idle", "b1"),  # 1: the watermark is 0 if nothing runs
    # Room for future output.
    ("reserves", "b1"),  # 1: admissions leave some
    ("first_ratio", "f8"),  # share of that output for which they leave room at first
    ("least_ratio", "f8"),  # least share
    ("ratio_decay", "f8"),  # decay of that share with each decode step
    ("steps_ahead", "i8"),  # tokens that each decode is assumed to emit further, after a preemption
    # the longest output that clients ask for; 0: the rest of the context; -1: the true output
    ("declared_tokens", "i8"),
    ("most_to_come", "i8"),  # most tokens of one request that count as future output
    ("weight_bytes", "f8"),  # bytes of the model's weights
    ("chosen_share", "f8"),  # share of a layer's experts that one token chooses, 0: there are no experts
    ("slowdown_at", "i8"),  # offset into timing_data: slowdown of prefills, then of decodes, by percent of the SMs
    ("attention_overlap", "f8"),  # share of the shorter attention that the longer one hides
    # Transfers.
    ("latency_s", "f8"),  # seconds of a transfer in addition to its bytes
    ("layerwise_tokens", "i8"),  # prompts of at least this many tokens send KV layer by layer; 0: none do
    ("layer_share", "f8"),  # share of one layer in a token's KV
    ("shares_links", "b1"),  # 1: copies share links, 0: they wait for each other
    ("limits_fabric", "b1"),  # 1: all copies also share one more link, the fabric
    ("changed_links_at", "i8"),  # links on which this event has begun or ended copies
    ("reached_links_at", "i8"),  # links whose rates are being set
    # Changes of role.
    ("role_change_s", "f8"),  # seconds between the last work in the old role and the start in the new one
    # Faults.
    ("faults", "i8"),  # faults that are scheduled before the run, 0: none
    ("fault_times_at", "i8"),  # offset into times: the time of each fault, in order
    (
        "fault_values_at",
        "i8",
    ),  # offset into times: of a crash its end, of a slow-down its factor, of a link bytes/s
    ("fault_at", "i8"),  # offset into lists: the instance of each fault; then its kind, of framework.codes
    ("dropped_at", "i8"),  # offset into lists: requests that a crash dropped; what each lost; what becomes of it
    ("recovery", "i1"),  # what becomes of requests that a crash drops, of framework.codes
    ("rows_at_once", "i8"),  # instances whose steps one event may cut off
    # Speculation.
    ("speculates", "b1"),  # 1: decode steps draft tokens
    ("adaptive_depth", "b1"),  # 1: each step has a depth of its own
    ("depth", "i8"),  # tokens drafted for each decode; the maximum if that is adaptive
    ("acceptance", "f8"),  # probability that a draft is right where those before it are
    ("draft_cost", "f8"),  # seconds of a drafted token, in decode steps
    # Clients that give up.
    ("patience_s", "f8"),  # seconds that a client waits for the end of its prefill, inf: no limit
    ("retries", "i8"),  # number of times that a client that gave up sends its request again
    ("retry_backoff_s", "f8"),  # seconds before the first retry; doubles with each further one
    ("patient_at", "i8"),  # ring of the requests whose clients may give up, in the order in which they do
    ("patient_times_at", "i8"),  # offset into times: when each of these does
    ("attempts_at", "i8"),  # number of times that each request has been sent
    # Reports to the front end.
    ("report_every_s", "f8"),  # period of the reports of instances, 0: views are current
    ("report_delay_s", "f8"),  # seconds until a report arrives
    # The gateway.
    ("flows", "i8"),  # tenants of a band, of all bands, 0: there is no gateway; the row behind them: those that come
    ("goes_by_utilization", "b1"),  # 1: the fleet is judged by queues and KV; 0: by requests in flight
    ("goes_by_reports", "b1"),  # 1: as instances last reported
    ("queue_threshold", "f8"),  # waiting requests with which an instance is saturated
    ("kv_threshold", "f8"),  # used share of its blocks with which it is
    ("saturated_at_all", "b1"),  # 1: the fleet is saturated if all instances are; 0: if they are on average
    ("most_in_flight", "f8"),  # requests in flight for each instance that takes prompts
    ("fairness", "i8"),  # whose request is next in a band: a rule of framework.codes
    ("output_weight", "f8"),  # prompt tokens that an output token counts as
    ("most_gated", "f8"),  # requests that may wait at the gateway, inf: no limit
    ("gated_next_at", "i8"),  # by request: the next in its flow, the one before it, its flow, its number (0: none yet)
    ("gated_before_at", "i8"),
    ("flow_at", "i8"),
    ("gated_number_at", "i8"),
    ("gated_since_at", "i8"),  # offset into times, by request: when it came to the gateway; the seconds waited there
    ("gated_s_at", "i8"),
    # Linear attention.
    ("state_bytes", "f8"),  # bytes of a request's states, which each of its copies and swaps carries
    # KV between calls.
    ("notices_at", "i8"),  # what the policy or a pin has yet to learn of requests, in order, see requests/notices.py
    ("pin_ends_at", "i8"),  # heap of the pins that have a TTL
    ("ranks_at", "i8"),  # lists of ranked blocks that no request references, see kv/ranks.py
    ("awaited_at", "i8"),  # for each request, the first one that it waits for, -1: none
    # Tiers of prefix blocks, further.
    ("writes_back", "b1"),  # 1: the first tier takes what GPU memory evicts
    ("counts_uses", "b1"),  # 1: a tier takes blocks that have been used more than once
    ("keeps_outputs", "b1"),  # 1: a tier takes what requests have generated
    ("counted_at", "i8"),  # for each request, its blocks whose use is counted on its present instance
    # The front end, further.
    ("some_late", "b1"),  # 1: requests may be late
    ("late_at", "i8"),  # offset into times, by request: by how much it is late
    # Spans: requests that several instances compute.
    ("spans", "b1"),  # 1: the policy gives requests spans
    ("span_slots", "i8"),  # spans that there is room for; the one behind them holds the policy's answer
    ("spans_at", "i8"),  # offset into lists: these, see kv/spans.py
    ("exchange_s", "f8"),  # seconds that a step takes longer of which decodes have KV elsewhere
    ("span_of_at", "i8"),  # for each request, 1 + its span; 0: it has never had one; -1: it has none now
    # Suspension.
    ("suspended_at", "i8"),  # requests that the policy has suspended, ascending
    # Starts that vary.
    ("start_draws", "i8"),  # starts of which there are draws, 0: they neither vary nor fail
    ("start_draws_at", "i8"),  # offset into times: by how much each is longer, and how often it is tried
    # Instances on fewer GPUs.
    ("widths", "i8"),  # of an instance of each pool, then of those with fewer GPUs; 0: none loses any
    ("widths_at", "i8"),  # offset into lists: WIDTH_COUNTS of each
    ("width_values_at", "i8"),  # offset into times: WIDTH_VALUES of each
    ("goes_on", "b1"),  # 1: an instance goes on with the GPUs that it has left, unless the policy says
    # Backups of KV.
    ("backup_tokens", "i8"),  # tokens of a block that is backed up
    ("restore_bytes_s", "f8"),  # bandwidth at which an instance reads a backup, 0.0: that of its host memory
    ("backed_up_at", "i8"),  # offset into lists, by request: KV tokens from which it is restored where it is admitted
)
