"""The ordinary objects of one run: requests, instances, and copies between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from framework.codes import ROLES
from framework.reference.cache import Cache, Store
from framework.reference.options import Spec

PENDING, FINISHED, REJECTED, FAILED, CANCELLED, UNSENT = range(6)
INSTANCE_TOTALS = (
    *("busy_s", "steps", "decode_steps", "prefill_tokens", "decode_tokens", "context_tokens", "decode_pairs"),
    *("kv_block_s", "kv_token_s", "batch_s", "transferred_bytes", "drafted_tokens", "accepted_tokens"),
    *("prefill_square", "bubble_s", "weight_passes", "expert_reads", "extrapolated_s"),
)


Link = int  # a sending side, a receiving side, or the fabric


@dataclass(eq=False)
class Copy:
    """A copy of KV under way: it has a channel while its bytes flow, and an event if its end is announced."""

    request: int
    complete_s: float  # before which its last byte cannot have come
    landing_s: float  # between its last byte and its end
    channel: Channel | None = None
    sent_until: float = 0.0  # bytes of that channel with which all of its own have been sent
    event: int | None = None


@dataclass(eq=False)
class Channel:
    """The copies whose bytes flow from one instance to another, which all have one rate."""

    source: int
    target: int
    since_s: float  # up to which `sent_bytes` are counted
    sent_bytes: float = 0.0  # of each copy that is there since the channel was opened
    rate_bytes_s: float = 0.0
    copies: list[Copy] = field(default_factory=list)
    changed: bool = False  # a copy has begun or ended since its rate was set

    def count_sent(self, now_s: float) -> None:
        self.sent_bytes += self.rate_bytes_s * (now_s - self.since_s)
        self.since_s = now_s


@dataclass
class Migration:
    """Of a request that goes on decoding; `ready`: the copy has ended, and the switch is due."""

    target: Instance
    copied: int  # KV tokens
    ready: bool = False


@dataclass(eq=False)
class Request:
    """One request. `source` and `destination`: of its transfer, also while it waits for room there."""

    id: int
    input_tokens: int
    output_tokens: int
    hash_ids: list[int]  # ids of its blocks that can be shared: those of the trace, or the engine's
    emitted: int = 0
    state: int = PENDING
    reason: str = ""
    instance: int = -1  # where it waits, prefills, decodes, or holds KV
    key: float = 0.0  # by which it waits, or has waited last but for preemptions
    queue_number: int = 0
    place: tuple[float, int] = (0.0, 0)  # key and queue number with which it was queued last
    # of the prefill under way: tokens to compute, tokens computed, trace blocks dealt with
    prefill_until: int = 0
    prefilled: int = 0
    split: int = 0  # token before which it is routed again; 0: none, or passed
    covered: int = 0  # tokens that it has blocks for while it prefills
    registered: int = 0
    caches: bool = False  # its KV is computed where it is, so that its blocks enter the cache there
    admission: int = -1
    source: Instance | None = None  # holds its KV while it waits for, or is copied to, another instance
    destination: Instance | None = None
    rank: int = 0  # of the instance that it prefills or decodes on
    handing_over: bool = False  # the copy under way is the tail of a migration, or follows a split
    migration: Migration | None = None
    rerouted: bool = False  # a crash took it off its instance; until it decodes it is computed where it is routed
    copy: Copy | None = None  # of its KV, or of a prefix
    sent_ahead: bool = False  # that copy began before its prefill had ended
    fetch: tuple[Instance, list[int]] | None = None  # where a prefix of it is being copied, and which blocks
    transferred: bool = False
    decoded: bool = False
    first_token_recomputed: bool = False  # token 1 is computed at its destination
    first_token_pending: bool = False  # it decodes elsewhere, and token 1 has not been stamped
    prefill_instance: int = -1
    decode_instance: int = -1
    arrival_s: float = math.nan
    taken_in: bool = False
    start_s: float = math.nan
    prefill_end_s: float = math.nan
    first_token_s: float = math.nan
    transfer_end_s: float = math.nan
    end_s: float = math.nan
    cached_tokens: int = 0
    preemptions: int = 0
    migrations: int = 0
    token_s: list[float] = field(default_factory=list)
    accepted: int = 0  # drafts, by its last decode step
    paused: bool = False  # it decodes, and the step under way has no tokens for it
    suspended: bool = False  # the policy has taken it off its instance, and has not resumed it
    swapped_out: bool = False  # its KV is in host memory meanwhile
    join_step: int = 0  # decode steps of its instance when it began to decode there, or to go on
    joined_with: int = 0  # tokens that it had emitted then

    @property
    def kv(self) -> int:
        if self.prefilled < self.prefill_until:
            return self.prefilled
        return self.input_tokens + self.emitted - 1 + self.first_token_recomputed

    @property
    def sent_kv(self) -> int:
        """Of a transfer: the KV tokens that come to the other instance."""
        return self.kv - self.first_token_recomputed

    @property
    def goal(self) -> int:
        """What its next prefill, from the start, computes."""
        return self.split if 0 < self.split < self.input_tokens else self.input_tokens + self.emitted

    @property
    def is_partial(self) -> bool:
        """Part of its prefill is done."""
        return self.prefilled < self.prefill_until

    @property
    def is_at_split(self) -> bool:
        """It has emitted the tokens before the split in its output."""
        return self.split > self.input_tokens and self.emitted >= self.split - self.input_tokens

    @property
    def coming_kv(self) -> int:
        """Of a transfer: what a prompt whose prefill has not ended will have then."""
        return (self.prefill_until if self.sent_ahead else self.kv) - self.first_token_recomputed


Chunk = tuple[Request, int, int]  # request, prefix, tokens


@dataclass
class Postponed:
    """A decision about a request that waits for the turn of `instance`; `action`: as `Hooks.decide` has it."""

    action: tuple[Any, ...]
    instance: Instance


@dataclass
class Step:
    """A step under way."""

    start_s: float
    end_s: float
    mode: str
    decodes: list[Request]
    chunks: list[Chunk]
    context: int
    depth: int = 0
    bubble_s: float = 0.0  # that the stages of a pipeline wait, in sum
    beyond: float = 0.0  # how far it lies past what was measured; at most 1: within
    micro_batches: int = 1  # that hold something
    is_concurrent: bool = False  # a prefill step concurrent with the decodes
    attention_share: float = 0.0  # of a prefill step concurrent with the decodes: of its time alone on all SMs
    dropped: list[Request] = field(default_factory=list)  # preempted while it ran

    @property
    def prefill_tokens(self) -> int:
        return sum([tokens for _, _, tokens in self.chunks])


class Instance:
    """One instance: its lists of requests, its KV memory, the steps under way and its totals. `begin_s`: of the run."""

    def __init__(
        self, id: int, spec: Spec, cache: Cache, watermark: int, prefill_percent: int = 50, begin_s: float = 0.0
    ) -> None:
        self.id = id
        self.prefill_percent = prefill_percent
        self.spec = spec
        self.group = [self]  # those that step together with it, itself included
        self.cache = cache
        self.watermark = watermark
        self.token_budget = spec.token_budget
        self.max_batch = spec.max_batch
        self.mode = spec.mode
        # Sets of the phases PREFILL and DECODE: that it takes work of, may still have work of, and shall have.
        self.role = self.draining_role = self.next_role = ROLES[spec.role]
        self.next_plan: tuple[int, str, int] | None = None  # that comes with the change of role under way
        self.change_event: int | None = None  # its event
        self.off_since_s: float | None = None if self.next_role else begin_s
        self.off_s = 0.0
        self.down = False  # it has crashed, and comes back by the change under way
        self.waiting: list[tuple[float, int, Request]] = []  # key, queue number
        self.inbox: list[tuple[float, int, Request]] = []  # came while a step ran that is formed asynchronously
        self.deferred_frees: list[
            Request
        ] = []  # have ended with its last step; their KV stays until the next one is formed
        self.late_seats = self.late_blocks = 0  # came free at the end of its last step, too late for the next one
        self.prefilling: list[Request] = []
        self.running: list[Request] = []  # decoding, in running order
        self.joining: list[Request] = []
        self.computed: list[Request] = []  # by its prefill stream; they decode from the next boundary on, ...
        self.known = 0  # ... so many of them, of the others its next step does not know yet
        self.swapped: list[Request] = []
        self.incoming: list[Request] = []
        self.reserved: list[Request] = []  # copies under way to this instance hold a seat and blocks here
        self.prefilled: list[
            Request
        ] = []  # out of the prefilling order at the end of a step, where to is not known yet
        self.leaving: list[Request] = []  # prefilled or handed over, their KV kept here until a copy has ended
        self.kept: list[Request] = []  # suspended, with their KV here
        self.busy = False  # in a step
        self.changed = False
        self.asked = False  # the policy has decided before the step that is formed next
        self.woken = False  # it schedules at this time
        self.between = False  # a step of it has ended at this time, and the next one is not formed yet
        self.chunk_preempted = False  # the step being formed preempted for the blocks of a chunk
        self.step: Step | None = None
        self.prefill_step: Step | None = None  # the prefill step concurrent with its decodes
        self.prefill_ended_s = -math.inf  # time at which it ended, until the next one is formed
        self.known_room = (0, 0)  # seats taken and blocks available when its prefill step had been formed
        self.counted_s = 0.0  # time up to which its busy time is counted
        self.depth = 0  # tokens drafted for each decode of the step being formed
        self.swap_bytes = 0.0
        self.next_rank = 0  # rank that comes next where they take turns
        self.egress_free_s = 0.0  # time at which its sending side is free, where copies wait for each other
        self.ingress_free_s = 0.0
        self.load_s = 0.0  # of what the step being formed finds in stores
        self.stores: list[Store] = []  # the fastest first
        self.hit_tokens: list[int] = []  # by store, of first admissions
        self.loaded_bytes: list[float] = []
        self.closed = False  # a request found no room, and none has come free since
        self.opens_after: list[int] = []  # for KV that came free: 1, or 2 where its next step cannot count on that
        self.ratio_set = (0.0, 0)  # share of the output to come that is reserved, and decode steps when that was set
        self.admission_opens = -1  # decode steps after which its queue is admitted from; -1: none waits
        self.extrapolation = 0.0  # the farthest of its steps past what was measured
        self.steps: list[tuple[float, float, int, int, int]] = []  # start, end, decodes, prefill tokens, context
        self.totals: dict[str, float] = dict.fromkeys(INSTANCE_TOTALS, 0)

    @property
    def group_steps(self) -> bool:
        """It is in a step, or one that steps together with it is."""
        return any(i.step is not None for i in self.group)

    @property
    def seats(self) -> int:
        here = len(self.running) + len(self.prefilling)
        here += len(self.computed)
        return here if self.spec.pulls else here + len(self.joining) + len(self.reserved)

    @property
    def kv_tokens(self) -> int:
        tokens = 0  # loops, as the lists are mostly short and the clock asks whenever it goes on
        for r in self.running:
            tokens += r.kv
        for r in self.leaving:
            tokens += r.kv
        for r in self.deferred_frees:
            tokens += r.kv
        for r in self.computed:
            tokens += r.kv
        for r in self.kept:
            tokens += r.kv
        for r in self.joining:
            tokens += r.prefill_until if r.is_partial else r.kv
        for r in self.prefilling:
            tokens += r.covered
        for r in self.prefilled:
            tokens += r.covered
        return tokens

    @property
    def queued_tokens(self) -> int:
        """Tokens that lack prefill."""
        started = sum(r.prefill_until - r.prefilled for r in self.prefilling + self.coming)
        return started + sum(r.goal for _, _, r in self.waiting + self.inbox)

    @property
    def incoming_kv_tokens(self) -> int:
        coming = self.incoming + self.reserved
        return sum(r.migration.copied if r.migration else r.coming_kv for r in coming)

    @property
    def coming(self) -> list[Request]:
        """On their way here with part of their prefill to do."""
        return [r for r in self.incoming + self.reserved + self.joining if r.is_partial and not r.sent_ahead]

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
        """Its prefill stream is idle and has something to do, none of it in a step that also decodes."""
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

    def queue_of_arrivals(self, asynchronous: bool) -> list[tuple[float, int, Request]]:
        """Where requests wait that come now."""
        return self.inbox if asynchronous else self.waiting

    def take_in_arrivals(self) -> None:
        """Put those in the inbox into the queue."""
        self.waiting += self.inbox
        self.inbox = []

    def take_in(self, r: Request) -> None:
        """Put a request that comes on its rank."""
        r.rank = self.coming_rank
        self.next_rank = (self.next_rank + 1) % self.spec.ranks

    def chunk_size(self, done: int) -> int:
        """Tokens of a step, by the chunk schedule, to which a request may add."""
        sizes = self.spec.chunk_sizes
        return sizes[min(done // self.spec.stage_tokens, len(sizes) - 1)] if sizes else 1 << 40

    def off_s_at(self, now_s: float) -> float:
        return self.off_s + (0.0 if self.off_since_s is None else now_s - self.off_since_s)

    def drop_all(self) -> None:
        """Forget all requests; what they hold here is free."""
        for here in (
            self.waiting,
            self.inbox,
            self.prefilling,
            self.running,
            self.joining,
            self.computed,
            self.swapped,
            self.incoming,
            self.kept,
        ):
            here.clear()
        self.reserved.clear()
        self.leaving.clear()
        self.deferred_frees.clear()
        for request in [*self.cache.private, *self.cache.held]:
            self.cache.free_kv(request)

    def has_room(self, blocks: int) -> bool:
        """A seat and `blocks` blocks above the watermark."""
        return self.seats < self.max_batch and self.cache.available - blocks >= self.present_watermark
