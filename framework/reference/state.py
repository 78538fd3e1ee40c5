"""The ordinary objects of one run: requests and instances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from framework.codes import OFF, ROLES
from framework.reference.cache import Cache, Store
from framework.reference.copies.under_way import Copy
from framework.reference.options import Spec
from framework.reference.spans.span import Span
from framework.reference.steps.step import Step

PENDING, FINISHED, REJECTED, FAILED, CANCELLED, UNSENT = range(6)
INSTANCE_TOTALS = (
    *("busy_s", "steps", "decode_steps", "prefill_tokens", "decode_tokens", "context_tokens", "decode_pairs"),
    *("kv_block_s", "kv_token_s", "batch_s", "transferred_bytes", "drafted_tokens", "accepted_tokens"),
    *("prefill_square", "bubble_s", "weight_passes", "expert_reads", "extrapolated_s"),
)
_HELD = (  # lists of the requests that an instance holds or expects
    *("waiting", "inbox", "prefilling", "running", "joining", "computed", "swapped", "incoming", "reserved"),
    *("leaving", "kept", "pinned", "deferred_frees", "shares"),
)


@dataclass
class Migration:
    """The migration of a request that continues to decode; `ready`: the copy has ended, and the switch is due."""

    target: Instance
    copied: int  # KV tokens
    ready: bool = False


@dataclass(eq=False)
class Request:
    """One request. `source` and `destination` are those of its transfer, also while it waits for room at the
    destination.
    """

    id: int
    input_tokens: int
    output_tokens: int
    hash_ids: list[int]  # ids of its blocks that can be shared: those of the trace, or the engine's
    emitted: int = 0
    state: int = PENDING
    reason: str = ""
    instance: int = -1  # instance where it waits, prefills, decodes, or holds KV
    key: float = 0.0  # key by which it waits, or last waited, except for preemptions
    queue_number: int = 0
    place: tuple[float, int] = (0.0, 0)  # key and queue number of its last queueing
    # of the prefill under way: tokens to compute, tokens computed, trace blocks handled
    prefill_until: int = 0
    prefilled: int = 0
    split: int = 0  # token before which it is routed again; 0: none, or passed
    covered: int = 0  # tokens with blocks while it prefills
    registered: int = 0
    caches: bool = False  # its instance computed its KV, so its blocks enter the cache there
    admission: int = -1
    source: Instance | None = None  # holds its KV while it waits for, or is copied to, another instance
    destination: Instance | None = None
    rank: int = 0  # rank of the instance that it prefills or decodes on
    handing_over: bool = False  # the copy under way is the tail of a migration, or follows a split
    migration: Migration | None = None
    backed_up: int = 0  # KV tokens from which it is restored where it is admitted next, after a crash
    rerouted: bool = False  # a crash took it off its instance; until it decodes it is computed on the routed instance
    copy: Copy | None = None  # copy of its KV, or of a prefix
    sent_ahead: bool = False  # true: that copy began before its prefill had ended
    fetch: tuple[Instance, list[int]] | None = None  # instance to which a prefix of it is being copied, and the blocks
    transferred: bool = False
    decoded: bool = False
    first_token_recomputed: bool = False  # its destination computes token 1
    first_token_pending: bool = False  # it decodes elsewhere, and token 1 has not been stamped
    prefill_instance: int = -1
    decode_instance: int = -1
    arrival_s: float = math.nan
    taken_in: bool = False
    gated_s: float = 0.0  # how long it has waited at the gateway
    attempts: int = 0  # how often it was sent, where clients give up
    start_s: float = math.nan
    prefill_end_s: float = math.nan
    first_token_s: float = math.nan
    transfer_end_s: float = math.nan
    end_s: float = math.nan
    cached_tokens: int = 0
    preemptions: int = 0
    migrations: int = 0
    token_s: list[float] = field(default_factory=list)
    accepted: int = 0  # drafts that its last decode step accepted
    counted: int = 0  # of its blocks, those whose use is counted since it came to its instance
    paused: bool = False  # it decodes, but the step under way has no tokens for it
    skips: bool = False  # it decodes, and the policy leaves it out of steps
    suspended: bool = False  # the policy has taken it off its instance, and has not resumed it
    swapped_out: bool = False  # its KV is in host memory
    has_next: bool = False  # a call that waits for it has been admitted, or has ended before
    prefetch_ttl_s: float | None = None  # TTL from its prefetch on, while that is to come
    loading: list[int] = field(default_factory=list)  # blocks that are being loaded for it, while it is pinned
    load_ttl_s: float = 0.0  # TTL from the end of that load, or of its move to another instance, on
    moves_to: Instance | None = None  # to which its KV moves, once it has ended
    moved: tuple[list[int], list[int]] = ([], [])  # blocks that were there already, and those that are being copied
    join_step: int = 0  # decode steps of its instance when it began to decode there, or continued
    joined_with: int = 0  # tokens that it had emitted at that time
    spanned: bool = False  # several instances compute it, now or when it is computed next
    span: Span | None = None

    @property
    def elsewhere(self) -> int:
        """KV tokens on other instances than the one on which it prefills and decodes."""
        return 0 if self.span is None else sum(self.span.kept)

    @property
    def kv(self) -> int:
        if self.prefilled < self.prefill_until:
            return self.prefilled
        return self.input_tokens + self.emitted - 1 + self.first_token_recomputed

    @property
    def sent_kv(self) -> int:
        """The KV tokens that a transfer brings to the other instance."""
        return self.kv - self.first_token_recomputed

    @property
    def goal(self) -> int:
        """The tokens that its next prefill computes, from the start."""
        return self.split if 0 < self.split < self.input_tokens else self.input_tokens + self.emitted

    @property
    def is_partial(self) -> bool:
        """Whether a part of its prefill is done."""
        return self.prefilled < self.prefill_until

    @property
    def is_at_split(self) -> bool:
        """Whether it has emitted all tokens before the split in its output."""
        return self.split > self.input_tokens and self.emitted >= self.split - self.input_tokens

    @property
    def coming_kv(self) -> int:
        """The KV that the prompt of a transfer will have at the end of its prefill."""
        return (self.prefill_until if self.sent_ahead else self.kv) - self.first_token_recomputed


@dataclass
class Postponed:
    """A decision about a request that awaits the turn of `instance`; `action`: as `Hooks.decide` has it."""

    action: tuple[Any, ...]
    instance: Instance


@dataclass(eq=False)
class Instance:
    """One instance: its lists of requests, its KV memory, the steps under way and its totals. `begin_s`: of the run."""

    id: int
    spec: Spec
    cache: Cache
    watermark: int
    prefill_percent: int = 50
    begin_s: float = 0.0
    group: list[Instance] = field(init=False)  # instances that step together with it, itself included
    token_budget: int = field(init=False)
    max_batch: int = field(init=False)
    mode: str = field(init=False)
    # Sets of the phases PREFILL and DECODE: those it takes work of, may still have work of, and will have.
    role: int = field(init=False)
    draining_role: int = field(init=False)
    next_role: int = field(init=False)
    next_plan: tuple[int, str, int] | None = None  # plan that comes with the change of role under way
    change_event: int | None = None  # event of that change
    off_since_s: float | None = field(init=False)
    off_s: float = 0.0
    starts: int = 0  # how often it was switched on
    reversals: int = 0  # its changes that turned the number of instances of a phase back
    stops: int = 0  # how often it went off
    slowness: float = 1.0  # factor by which its steps now take longer
    link_share: float = 1.0  # present share of its network's bandwidth
    hung: bool = False  # it hangs, and this is not detected yet
    down: bool = False  # it has crashed; the change under way brings it back
    whole: Spec = field(init=False)  # its spec with all its GPUs
    gpus: int = field(init=False)  # that work
    waiting: list[tuple[float, int, Request]] = field(default_factory=list)  # key, queue number
    # requests that came while a step ran, with asynchronous scheduling
    inbox: list[tuple[float, int, Request]] = field(default_factory=list)
    # requests that ended with its last step; their KV stays until the next one is formed
    deferred_frees: list[Request] = field(default_factory=list)
    late_seats: int = 0  # seats that came free at the end of its last step, too late for the next one
    late_blocks: int = 0
    prefilling: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)  # decoding, in running order
    joining: list[Request] = field(default_factory=list)
    # computed by its prefill stream; they decode from the next boundary on, ...
    computed: list[Request] = field(default_factory=list)
    known: int = 0  # number of these that its next step knows
    swapped: list[Request] = field(default_factory=list)
    incoming: list[Request] = field(default_factory=list)
    # copies under way to this instance hold a seat and blocks here
    reserved: list[Request] = field(default_factory=list)
    # requests out of the prefilling order at the end of a step, until their destinations are known
    prefilled: list[Request] = field(default_factory=list)
    # prefilled or handed over; their KV is kept here until a copy has ended
    leaving: list[Request] = field(default_factory=list)
    kept: list[Request] = field(default_factory=list)  # suspended, with their KV here
    pinned: list[Request] = field(default_factory=list)  # ended, with their cached blocks pinned, the oldest pin first
    pins_broken: int = 0  # pins that ended because others needed the room
    loads_end_s: float = 0.0  # time at which the last of the loads ends for requests that have ended
    shares: list[Span] = field(default_factory=list)  # spans that have claimed it or hold KV here
    ready: bool = False  # it stands ready for the step of a span
    looked: bool = False  # who waits for a span has been asked about before its next step
    busy: bool = False  # true: in a step
    changed: bool = False
    asked: bool = False  # the policy has decided before its next step
    woken: bool = False  # it schedules at this time
    between: bool = False  # a step has ended at this time, and the next one is not formed yet
    chunk_preempted: bool = False  # the step being formed preempted a request for the blocks of a chunk
    step: Step | None = None
    prefill_step: Step | None = None  # the prefill step concurrent with its decodes
    prefill_ended_s: float = -math.inf  # time at which it ended, until the next one is formed
    known_room: tuple[int, int] = (0, 0)  # seats taken and blocks available after its prefill step was formed
    counted_s: float = 0.0  # time up to which its busy time is counted
    depth: int = 0  # tokens drafted for each decode of the step being formed
    most_drafts: int = 0  # the same of any step, or its maximum
    swap_bytes: float = 0.0
    next_rank: int = 0  # rank that comes next if they take turns
    egress_free_s: float = 0.0  # time at which its sending side is free, if copies wait for each other
    ingress_free_s: float = 0.0
    load_s: float = 0.0  # seconds that the step being formed spends on loads from stores
    stores: list[Store] = field(default_factory=list)  # the fastest first
    hit_tokens: list[int] = field(default_factory=list)  # tokens found by first admissions, by store
    loaded_bytes: list[float] = field(default_factory=list)
    restored_tokens: int = 0  # KV tokens that it has read from backups
    closed: bool = False  # a request found no room, and no room has come free since
    # for KV that came free: 1, or 2 if its next step cannot count on it
    opens_after: list[int] = field(default_factory=list)
    # the reserved share of future output, and the decode steps at which it was set
    ratio_set: tuple[float, int] = (0.0, 0)
    admission_opens: int = -1  # decode steps after which its queue is admitted from; -1: no request waits
    extrapolation: float = 0.0  # the largest excess of its steps over the measured range
    # start, end, decodes, prefill tokens, context
    steps: list[tuple[float, float, int, int, int]] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(INSTANCE_TOTALS, 0))

    def __post_init__(self) -> None:
        self.group, self.whole, self.gpus = [self], self.spec, self.spec.gpus
        self.token_budget, self.max_batch, self.mode = self.spec.token_budget, self.spec.max_batch, self.spec.mode
        self.role = self.draining_role = self.next_role = ROLES[self.spec.role] if self.spec.begins_on else OFF
        self.off_since_s = None if self.next_role else self.begin_s

    @property
    def group_steps(self) -> bool:
        """Whether it, or an instance of its group, is in a step."""
        return any(i.step is not None for i in self.group)

    @property
    def seats(self) -> int:
        here = len(self.running) + len(self.prefilling)
        here += len(self.computed)
        return here if self.spec.pulls else here + len(self.joining) + len(self.reserved)

    @property
    def guests(self) -> int:
        """KV tokens of requests that decode elsewhere, which its decode steps read."""
        return sum(span.tokens_on(self) for span in self.shares if span.begun)

    @property
    def largest_kv(self) -> int:
        reserved, kept = self.spec.reserve_blocks, 0 if self.spec.spares_idle else self.watermark
        return self.cache.total - kept if reserved is None else reserved

    @property
    def present_watermark(self) -> int:
        """Blocks that admissions leave available."""
        spared = self.spec.spares_idle and not self.running and not self.prefilling and not self.deferred_frees
        return 0 if spared else self.watermark

    @property
    def may_prefill(self) -> bool:
        """Whether its prefill stream is idle and has work, none of it in a step that also decodes."""
        mixed = self.step is not None and self.step.chunks
        there = bool(self.waiting or self.inbox or self.prefilling)
        return self.mode == "concurrent" and not self.prefill_step and not mixed and there

    @property
    def coming_rank(self) -> int:
        """The rank of the next request that comes."""
        if self.spec.rank_choice == "round_robin":
            return self.next_rank
        loads = []
        for k in range(self.spec.ranks):
            decoding, prefilling = ([r for r in there if r.rank == k] for there in (self.running, self.prefilling))
            kv = sum(r.kv for r in decoding) + sum(r.prefill_until for r in prefilling)
            requests = len(decoding) + len(prefilling)
            loads.append((kv, requests, k) if self.spec.rank_choice == "kv" else (requests, kv, k))
        return min(loads)[2]

    def take_in_arrivals(self) -> None:
        """Move the requests of the inbox into the queue."""
        self.waiting += self.inbox
        self.inbox = []

    def take_in(self, r: Request) -> None:
        """Put a request that comes on its rank."""
        r.rank = self.coming_rank
        self.next_rank = (self.next_rank + 1) % self.spec.ranks

    def chunk_size(self, done: int) -> int:
        """Tokens of a step, by the chunk schedule, up to which a request may add."""
        sizes = self.spec.chunk_sizes
        return sizes[min(done // self.spec.stage_tokens, len(sizes) - 1)] if sizes else 1 << 40

    def keep(self, k: int, id: int) -> None:
        """Keep an id in a store; what leaves goes to the store below if that takes what is evicted."""
        left = self.stores[k].keep(id)
        if left is not None and k + 1 < len(self.stores) and self.stores[k + 1].on_eviction:
            self.keep(k + 1, left)

    def off_s_at(self, now_s: float) -> float:
        return self.off_s + (0.0 if self.off_since_s is None else now_s - self.off_since_s)

    def drop_all(self) -> None:
        """Forget all requests, and free what they hold here."""
        for name in _HELD:
            getattr(self, name).clear()
        for request in [*self.cache.private, *self.cache.held]:
            self.cache.free_kv(request)

    def has_room(self, blocks: int) -> bool:
        """Whether there are a seat and `blocks` blocks above the watermark."""
        return self.seats < self.max_batch and self.cache.available - blocks >= self.present_watermark
