"""Constants of a run of the reference engine: step times, instances and options, as SEMANTICS.md names them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from framework.engine.setup.config import EngineConfig
from framework.system.faults import FaultEvent


class JointKernel(NamedTuple):
    """The kernel for chunks and decodes: rows that a decode takes in it (0: decodes have their own kernel), query heads
    that read the same keys, and the number of decodes whose tiles of one head fill the GPU.
    """

    decode_rows: float
    head_group: float
    decodes_at_once: float


class StepTime(Protocol):
    """Seconds of one step of pool `pool`, in four parts, and how far a step exceeds the measured range (over 1)."""

    def base_s(self, pool: int, prefill_tokens: int, decodes: int, sampled: int, drafts: int = 0) -> float: ...

    def chunk_s(self, pool: int, prefix: int, chunk: int) -> float: ...

    def joint_kernel(self, pool: int) -> JointKernel: ...

    def tiles_s(self, pool: int, decodes: int, context: int) -> float: ...

    def decode_s(self, pool: int, decodes: int, context: int) -> float: ...

    def uneven_s(self, pool: int, decodes: int, context: int, longest: int) -> float: ...

    def host_s(self, pool: int, tokens: int, decodes: int) -> float: ...

    def extrapolation(
        self, pool: int, tokens: int, sampled: int, decodes: int, context: int, longest_prompt: int
    ) -> float: ...


@dataclass(frozen=True)
class Spec:
    """One instance: its pool, blocks and limits."""

    pool: int
    role: str  # mixed | prefill | decode | off, at the start
    total_blocks: int
    token_budget: int
    max_batch: int
    mode: str = "decode_first"
    reserve_blocks: int | None = None  # constant number of blocks reserved for every request
    state_blocks: int = 0  # blocks of every request in addition to those of its tokens
    spares_idle: bool = False  # true: the watermark is 0 if nothing runs
    pulls: bool = False  # it fetches KV as it forms steps, before the request has a seat
    chunk_sizes: tuple[int, ...] = ()  # chunk size by stage of a prompt
    stage_tokens: int = 1
    ranks: int = 1  # data-parallel, each with its own requests
    stages: int = 1  # stages of a pipeline
    group: int = 1  # instances that step together
    rank_choice: str = "kv"  # kv, requests or round_robin
    bandwidth_bytes_s: float = 2.0**60
    host_bytes_s: float = math.inf
    unpack_s: float = 0.0  # seconds for each token that arrives from another instance
    memory_bytes_s: float = math.inf  # inf: a concurrent prefill step does not slow decodes
    begins_on: bool = True
    start_s: float = 0.0  # seconds from switching it on until it takes work
    provisioning_s: float = 0.0  # seconds of these before it reads its weights
    source_s: float = 0.0  # seconds for which the source of weights serves it alone
    row: int = 0  # of its step times
    gpus: int = 1
    shrink_s: float = 0.0  # seconds until it goes on with these GPUs, if it has lost others
    grow_s: float = 0.0  # seconds until it goes on with all of them again


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding: `depth` tokens are drafted for each decode, or the depth from 0 to `depth` that
    pays best.
    """

    acceptance: float = 0.0
    depth: int = 0
    adaptive: bool = False
    cost: float = 0.0  # cost of a drafted token, in decode steps of the same batch
    seed: int = 0

    def right(self, request: int, token: int) -> bool:
        """Whether the draft of a request's token (from 0) is right, given that those before it were."""
        draw = lowbias32(lowbias32(lowbias32(self.seed) ^ request) ^ lowbias32(token))
        return draw / 2**32 < self.acceptance

    def emitted(self, request: int, token: int, left: int, depth: int) -> int:
        """Tokens that a step gives a request, from `token` on; `left` are still to come."""
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
    """A tier: a kind of store below GPU memory."""

    store: tuple[int, int, int, str, str]  # of one store: chunks that it holds, blocks of one, and how it is written
    bandwidth_bytes_s: float | None = None  # None: the host's
    latency_s: float = 0.0
    shared: bool = False  # one for all instances


@dataclass(frozen=True)
class Options:
    """What holds for the whole run."""

    block_tokens: int = 16
    watermark: float = 0.01
    preemption: str = "recompute"
    prefix_cache: bool = False
    shares_blocks: bool = False
    first_token: str = "prefill"
    kv_bytes_per_token: float = 1.0  # bytes of a token's KV in memory
    copy_bytes_per_token: float | None = None  # bytes of a token's KV on a link; None: the same
    state_bytes: float = 0.0  # bytes of a request's states of linear attention
    attention_overlap: float = 0.0
    max_context: int = 1 << 40
    latency_s: float = 0.0
    link_sharing: str = "fair"  # fair or fifo
    fabric_bytes_s: float | None = None  # bandwidth of all copies together; None: no limit
    layerwise_tokens: int | None = None  # prompts of at least this many tokens send KV layer by layer
    layers: int = 1
    request_s: float = 0.0  # between a client's sending a request and its arrival
    intake_s: float = 0.0  # seconds of the front end for each request, one after another
    intake_token_s: float = 0.0  # seconds of the front end for each token of the prompt
    late_s: Sequence[float] = ()  # by how much each request is late; empty: none is
    start_draws: Sequence[tuple[float, float]] = ()  # by how much starts are longer, and how often each is tried
    asynchronous: bool = False  # a step is formed while the one before it runs
    admission_wait_steps: int = 0
    drafts: Drafts = field(default_factory=Drafts)
    tiers: tuple[Tier, ...] = ()  # the fastest first
    loads_layer_wise: bool = True
    role_change_s: float = 0.0
    clients: int | None = None  # None: requests arrive when the trace says
    horizon_s: float = math.inf  # arrivals from this time on are not sent
    backoff_s: float = 0.0  # seconds that a client waits after a rejection
    patience_s: float = math.inf  # seconds that a client waits for the end of its prefill
    retries: int = 0  # number of times that a client that gave up sends its request again
    retry_backoff_s: float = 1.0  # seconds before the first retry; doubles with each further one
    prefill_percent: int = 50  # percent of the SMs for prefills concurrent with decodes, until a plan changes it
    prefill_slowdown: Sequence[float] = (1.0,) * 101  # slowdown by the percent of the SMs
    decode_slowdown: Sequence[float] = (1.0,) * 101
    weight_bytes: float = 0.0
    faults: Sequence[FaultEvent] = ()  # in the order in which they come
    narrow: Mapping[tuple[int, int], Spec] = field(default_factory=dict)  # of instances without so many GPUs, by pool
    engine: EngineConfig = field(default_factory=EngineConfig)  # options that have no field of their own here
    chosen_share: float = 0.0  # share of a layer's experts that one token chooses; 0: there are no experts
