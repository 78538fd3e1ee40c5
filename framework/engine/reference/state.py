"""The pieces of the slow reference engine: requests, blocks, links and instances as plain Python objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

INSTANCE_TOTALS = (
    *("busy_s", "steps", "decode_steps", "prefill_tokens", "decode_tokens", "context_tokens", "prefill_square"),
    *("kv_block_s", "kv_token_s", "batch_s", "transferred_bytes", "drafted_tokens", "accepted_tokens"),
    "bubble_s",
)


PHASES = {
    "mixed": frozenset({"prefill", "decode"}),
    "prefill": frozenset({"prefill"}),
    "decode": frozenset({"decode"}),
    "off": frozenset[str](),
}
ROLE_OF = {phases: role for role, phases in PHASES.items()}


class StepTime(Protocol):
    """Seconds of one step of pool `pool`, in four parts."""

    def base_s(self, pool: int, prefill_tokens: int, decodes: int, sampled: int) -> float: ...

    def chunk_s(self, pool: int, prefix: int, chunk: int) -> float: ...

    def decode_s(self, pool: int, decodes: int, context: int) -> float: ...

    def uneven_s(self, pool: int, decodes: int, context: int, longest: int) -> float: ...


@dataclass(frozen=True)
class Spec:
    """One instance: its pool, blocks and limits."""

    pool: int
    role: str  # mixed | prefill | decode | off, at the start
    total_blocks: int
    token_budget: int
    max_batch: int
    mode: str = "decode_first"
    reserve_blocks: int | None = None  # of every request, whatever its tokens
    chunk_sizes: tuple[int, ...] = ()  # by stage of a prompt
    stage_tokens: int = 1
    ranks: int = 1  # data-parallel, each with requests of its own
    stages: int = 1  # of a pipeline
    rank_choice: str = "kv"  # or requests, round_robin
    bandwidth_bytes_s: float = math.inf
    host_bytes_s: float = math.inf
    unpack_s: float = 0.0  # of each token that arrives from another instance
    memory_bytes_s: float = math.inf  # inf: decodes do not feel a prefill step beside them


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding: `depth` tokens are drafted for each decode, or as many of 0 to `depth` as pay best."""

    acceptance: float = 0.0
    depth: int = 0
    adaptive: bool = False
    cost: float = 0.0  # of a drafted token, in decode steps of the same batch
    seed: int = 0

    def right(self, request: int, token: int) -> bool:
        """Whether the draft of a request's token (from 0) is what the model says, were those before it so."""
        draw = lowbias32(lowbias32(lowbias32(self.seed) ^ request) ^ lowbias32(token))
        return draw / 2**32 < self.acceptance

    def emitted(self, request: int, token: int, left: int, depth: int) -> int:
        """Tokens that a step gives a request, which has `left` to come, from `token` on."""
        count = 1
        while count <= depth and count < left and self.right(request, token + count - 1):
            count += 1
        return count


def lowbias32(x: int) -> int:
    """A hash of 32 bits (C. Wellons, "Prospecting for hash functions")."""
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


@dataclass(frozen=True)
class Tier:
    """A kind of store below GPU memory."""

    blocks: int  # trace blocks that one store holds
    bandwidth_bytes_s: float | None = None  # None: the host's
    latency_s: float = 0.0
    shared: bool = False  # one for all instances


class Store:
    """Trace blocks, least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ids: list[int] = []

    def keep(self, id: int) -> None:
        if id in self.ids:
            self.ids.remove(id)
        self.ids.append(id)
        if len(self.ids) > self.capacity:
            self.ids.pop(0)


@dataclass(frozen=True)
class Options:
    """What holds for the whole run."""

    block_tokens: int = 16
    watermark: float = 0.01
    preemption: str = "recompute"
    prefix_cache: bool = False
    first_token: str = "prefill"
    kv_bytes_per_token: float = 1.0  # in memory
    copy_bytes_per_token: float | None = None  # on a link, None: the same
    attention_overlap: float = 0.0
    decode_rows: int = 0  # that a decode takes up in a step with chunks, 0: none
    max_context: int = 1 << 40
    latency_s: float = 0.0
    layerwise_tokens: int | None = None  # prompts from here on send KV layer by layer
    layers: int = 1
    request_s: float = 0.0  # between a client's sending a request and its arrival
    intake_s: float = 0.0  # that the front end takes for each request, one after another
    admission_wait_steps: int = 0
    drafts: Drafts = field(default_factory=Drafts)
    tiers: tuple[Tier, ...] = ()  # the fastest first
    loads_layer_wise: bool = True
    role_change_s: float = 0.0
    start_s: float = 0.0
    clients: int | None = None  # None: requests arrive when the trace says
    prefill_percent: int = 50  # of the SMs, where prefills run beside decodes, until a plan says otherwise
    prefill_slowdown: Sequence[float] = (1.0,) * 101  # by the percent of the SMs
    decode_slowdown: Sequence[float] = (1.0,) * 101
    weight_bytes: float = 0.0


@dataclass
class Migration:
    target: Instance
    copied: int  # KV tokens
    event: int
    ready: bool = False


@dataclass(eq=False)
class Request:
    id: int
    p: int
    n: int
    blocks: list[int]  # ids of its trace blocks that can be shared
    g: int = 0
    state: int = 0  # pending, finished, rejected, failed
    reason: str = ""
    # of the prefill under way: tokens to compute, tokens computed, trace blocks dealt with
    target: int = 0
    done: int = 0
    cut: int = 0  # tokens after which it is routed again; 0: none, or passed
    covered: int = 0  # tokens that it has blocks for while it prefills
    registered: int = 0
    admission: int = -1
    source: Instance | None = None  # holds its KV while it waits for, or is copied to, another instance
    destination: Instance | None = None
    rank: int = 0  # of the instance that it prefills or decodes on
    moving: bool = False  # the copy under way is the tail of a migration
    migration: Migration | None = None
    ahead: int | None = None  # event of the copy that began before its prefill had ended
    fetch: tuple[Instance, list[int]] | None = None  # where a prefix of it is being copied, and which blocks
    transferred: bool = False
    decoded: bool = False
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

    @property
    def kv(self) -> int:
        return self.done if self.is_partial else self.p + self.g - 1

    @property
    def goal(self) -> int:
        """What its next prefill, from the start, computes."""
        return self.cut if 0 < self.cut < self.p else self.p + self.g

    @property
    def is_partial(self) -> bool:
        """Part of its prefill is done."""
        return self.done < self.target

    @property
    def is_at_cut(self) -> bool:
        """It has emitted the tokens before the cut in its output."""
        return self.cut > self.p and self.g >= self.cut - self.p

    @property
    def coming_kv(self) -> int:
        """Of a transfer: what a prompt whose prefill has not ended will have then."""
        return self.kv if self.ahead is None else self.target


class Cache:
    """Blocks of one instance: free, private to a request, or holding a cached trace block."""

    def __init__(self, total: int, blocks_per_id: int) -> None:
        self.total = total
        self.free = total
        self.blocks_per_id = blocks_per_id
        self.private: dict[int, int] = {}  # request -> blocks
        self.held: dict[int, list[int]] = {}  # request -> ids it references, first block first
        self.references: dict[int, int] = {}  # cached id -> requests that reference it
        self.unreferenced: list[int] = []  # cached ids nobody references, oldest first

    @property
    def available(self) -> int:
        return self.free + len(self.unreferenced) * self.blocks_per_id

    @property
    def used(self) -> int:
        return self.total - self.available

    def idle_blocks(self, ids: list[int]) -> int:
        return self.blocks_per_id * sum(id in self.unreferenced for id in ids)

    def reference(self, request: int, ids: list[int]) -> None:
        for id in ids:
            if self.references[id] == 0:
                self.unreferenced.remove(id)
            self.references[id] += 1
        self.held[request] = list(ids)

    def take(self, request: int, blocks: int) -> None:
        while self.free < blocks:
            del self.references[self.unreferenced.pop(0)]
            self.free += self.blocks_per_id
        self.free -= blocks
        self.private[request] = self.private.get(request, 0) + blocks

    def register(self, request: int, id: int) -> None:
        """A computed trace block enters the cache, unless a copy is there already."""
        if id not in self.references:
            self.references[id] = 1
            self.held.setdefault(request, []).append(id)
            self.private[request] -= self.blocks_per_id

    def release(self, request: int) -> None:
        for id in reversed(self.held.pop(request, [])):
            self.references[id] -= 1
            if self.references[id] == 0:
                self.unreferenced.append(id)
        self.free += self.private.pop(request, 0)

    def clear(self) -> None:
        """Forget all that is cached; nothing is referenced."""
        self.references, self.unreferenced, self.free = {}, [], self.total


@dataclass
class Step:
    start_s: float
    end_s: float
    mode: str
    decodes: list[Request]
    chunks: list[tuple[Request, int, int]]  # request, prefix, tokens
    context: int
    depth: int = 0
    waiting_s: float = 0.0  # of the stages of a pipeline, in sum
    attention_share: float = 0.0  # of a prefill step beside the decodes: of its time alone on all SMs
    dropped: list[Request] = field(default_factory=list)  # preempted while it ran

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for _, _, tokens in self.chunks)


class Instance:
    def __init__(self, id: int, spec: Spec, cache: Cache, watermark: int, prefill_percent: int = 50) -> None:
        self.id = id
        self.prefill_percent = prefill_percent
        self.spec = spec
        self.cache = cache
        self.watermark = watermark
        self.token_budget = spec.token_budget
        self.max_batch = spec.max_batch
        self.mode = spec.mode
        self.accepts = self.before = self.after = PHASES[spec.role]  # phases: that it takes now, had, and shall have
        self.plan: tuple[int, str, int] | None = None  # budget and mode that come with the change of role under way
        self.change: int | None = None  # its event
        self.off_since: float | None = None if self.after else 0.0
        self.off_s = 0.0
        self.waiting: list[tuple[float, int, Request]] = []  # key, seq
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []  # the running order
        self.joined: list[Request] = []
        self.swapped: list[Request] = []
        self.incoming: list[Request] = []
        self.arriving: list[Request] = []  # copies under way to this instance hold a seat and blocks here
        self.held: list[Request] = []  # prefilled or switched, KV kept here until a copy has ended
        self.busy = False
        self.changed = False
        self.dropped = False  # the iteration being formed preempted for the blocks of a chunk
        self.step: Step | None = None
        self.beside: Step | None = None  # the prefill step beside its decodes
        self.counted_s = 0.0  # time up to which its busy time is counted
        self.depth = 0  # tokens drafted for each decode of the step being formed
        self.swap_bytes = 0.0
        self.turn = 0  # rank that comes next where they take turns
        self.load_s = 0.0  # of what the step being formed finds in stores
        self.stores: list[Store] = []  # the fastest first
        self.hit_tokens: list[int] = []  # by store, of first admissions
        self.loaded_bytes: list[float] = []
        self.gate = -1  # decode steps after which its queue is admitted from; -1: none waits
        self.steps: list[tuple[float, float, int, int, int]] = []  # start, end, decodes, prefill tokens, context
        self.totals: dict[str, float] = dict.fromkeys(INSTANCE_TOTALS, 0)

    @property
    def seats(self) -> int:
        return len(self.decoding) + len(self.prefilling) + len(self.joined) + len(self.arriving)

    @property
    def kv_tokens(self) -> int:
        decoded = sum(r.kv for r in self.decoding + self.held)
        joined = sum(r.target if r.is_partial else r.kv for r in self.joined)
        return decoded + joined + sum(r.covered for r in self.prefilling)

    @property
    def coming(self) -> list[Request]:
        """On their way here with part of their prefill to do."""
        return [r for r in self.incoming + self.arriving + self.joined if r.is_partial and r.ahead is None]

    @property
    def largest_kv(self) -> int:
        reserved = self.spec.reserve_blocks
        return self.cache.total - self.watermark if reserved is None else reserved

    @property
    def may_prefill(self) -> bool:
        """Its prefill stream is idle and has something to do, none of it in a step that also decodes."""
        mixed = self.step is not None and self.step.chunks
        return self.mode == "concurrent" and not self.beside and not mixed and bool(self.waiting or self.prefilling)

    @property
    def coming_rank(self) -> int:
        """The rank of the next request that comes."""
        if self.spec.rank_choice == "round_robin":
            return self.turn
        loads = []
        for k in range(self.spec.ranks):
            decoding, prefilling = ([r for r in there if r.rank == k] for there in (self.decoding, self.prefilling))
            kv = sum(r.kv for r in decoding) + sum(r.target for r in prefilling)
            requests = len(decoding) + len(prefilling)
            loads.append((kv, requests, k) if self.spec.rank_choice == "kv" else (requests, kv, k))
        return min(loads)[2]

    def take_in(self, r: Request) -> None:
        """Put a request that comes on its rank."""
        r.rank = self.coming_rank
        self.turn = (self.turn + 1) % self.spec.ranks

    def chunk_size(self, done: int) -> int:
        """Tokens of a step, by the chunk schedule, to which a request may add."""
        sizes = self.spec.chunk_sizes
        return sizes[min(done // self.spec.stage_tokens, len(sizes) - 1)] if sizes else 1 << 40

    def off_s_at(self, now: float) -> float:
        return self.off_s + (0.0 if self.off_since is None else now - self.off_since)

    @property
    def drained(self) -> bool:
        """No work left of the phases that it leaves; and if it goes off, no KV."""
        lists: list[object] = []
        if "prefill" in self.before - self.after:
            lists += [self.waiting, self.prefilling, self.coming, self.beside]
        if "decode" in self.before - self.after:
            lists += [self.decoding, self.joined, self.incoming, self.arriving, self.swapped]
        return not any(lists) and (bool(self.after) or self.cache.used == 0)

    def spare(self, blocks: int) -> bool:
        """A seat and `blocks` blocks above the watermark."""
        return self.seats < self.max_batch and self.cache.available - blocks >= self.watermark


class Links:
    """One link per instance and direction; a copy holds the sender's and the receiver's until its end."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.egress_free: dict[int, float] = {}
        self.ingress_free: dict[int, float] = {}

    def copy(
        self, now: float, source: Instance, target: Instance, size: float, tokens: int, computed: float, last: float
    ) -> float:
        """Time of the transfer end event; `last` bytes of it are there only at `computed`."""
        start = max(now, self.egress_free.get(source.id, 0.0), self.ingress_free.get(target.id, 0.0))
        bandwidth = min(source.spec.bandwidth_bytes_s, target.spec.bandwidth_bytes_s)
        end = start + size / bandwidth
        self.egress_free[source.id] = self.ingress_free[target.id] = end
        source.totals["transferred_bytes"] += size
        return max(end, computed + last / bandwidth) + self.latency_s + tokens * target.spec.unpack_s
