"""Options of the engine that hold for every instance of a run."""

from __future__ import annotations

import functools
import math
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from framework.checks import Count, NotNegative, Share, Whole, check_fields, up_to
from framework.engine.durations.attention_overlap import Attention
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.kv_compression import KvFormat
from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.engine.parallel.sm_sharing import Sharing
from framework.errors import InputError
from framework.load import Load, Open
from framework.policy.reports import CURRENT, Views
from framework.system.cluster import BATCHINGS, PLANS, Batching, ClusterSpec, Phase, PoolSpec
from framework.system.faults import Faults
from framework.system.fewer_gpus import Fewer
from framework.system.gateway import OPEN, Gateway
from framework.system.model import Model
from framework.system.start_cost import StartCost
from framework.timing.rank_row import instance_row, on_fewer_gpus
from framework.timing.table import StepRow, Timing
from framework.workload import Workload

__all__ = [
    "BATCHINGS",
    "PLANS",
    "Batching",
    "EngineConfig",
    "FirstToken",
    "Implementation",
    "Log",
    "Phase",
    "Preemption",
]

Preemption = Literal["recompute", "swap"]
PrefixCache = bool | Literal["auto"]
PrefixUnit = Literal["trace", "engine"]
Recompute = Literal["there", "routed"]
Victim = Literal["latest", "least_urgent", "fewest_tokens"]
Requeue = Literal["first", "last"]
StepOrder = Literal["decodes_first", "admission"]
AdmissionRoom = Literal["prompt", "chunk"]
FirstToken = Literal["prefill", "join", "decode", "recomputed"]
Transfers = Literal["sent", "pulled"]
WindowKv = Literal["freed", "kept"]
Log = Literal["full", "reduced"]
Implementation = Literal["compiled", "reference"]


@dataclass(frozen=True)
class EngineConfig:
    """How instances form steps and hold KV. Raises InputError for a value out of range."""

    # Of one data-parallel rank; an instance has dp times as many.
    token_budget: Annotated[int, up_to(10**9)] = 2048  # tokens of a step
    max_batch: Annotated[int, up_to(10**6)] = 256  # sequences at once
    block_tokens: Annotated[int, up_to(10**6)] = 16  # tokens of a KV block
    preemption: Preemption = "recompute"  # what happens to the KV of a preempted request
    recompute: Recompute = "there"  # instance of the recomputation of a preempted request with emitted tokens
    victim: Victim = "latest"  # preempted first: admitted last, last of a queue, or with the fewest emitted tokens
    requeue: Requeue = "first"  # a preempted request goes before all others of a queue, or behind those of its key
    prefix_cache: PrefixCache = False  # share the KV of equal prefixes; auto: if requests have prefixes (`on`)
    # share whole blocks of the trace once computed, or KV blocks from their allocation on
    prefix_unit: PrefixUnit = "trace"
    watermark: NotNegative = 0.01  # fraction of blocks that admissions leave free
    idle_watermark: bool = True  # True: the watermark also holds if nothing runs
    kv_fraction: Share = 0.9  # share of GPU memory for weights and KV together
    kv_tokens: Count | None = None  # KV tokens of an instance, instead of those that fit
    window_kv: WindowKv = "freed"  # KV behind the window of layers that have one: freed, or kept as for other layers
    batching: Batching = "decode_first"  # work that a step takes first: a batching mode of SEMANTICS.md
    step_order: StepOrder = "decodes_first"  # order of running requests in a unified step
    longest_chunk: Count | None = None  # most tokens of a prompt in one step, None: no limit but the budget
    chunked_prefill: bool = True  # False: a prompt is admitted only if the rest of the budget holds all of it
    # blocks that a prompt needs for admission to a unified step: for all of it, or for one chunk
    admission_room: AdmissionRoom = "prompt"
    asynchronous: bool = False  # a step is formed while the one before it runs, from the state at its start
    # decode steps that the first of a queue waits for more requests before it is admitted
    admission_wait_steps: Whole = 0
    first_token: FirstToken = "prefill"  # when and from where token 1 comes, if the request decodes elsewhere
    # sent once a seat and blocks are free, or pulled as steps are formed, before a seat is taken
    transfers: Transfers = "sent"
    # seconds between an instance's last work in its old role and its start in the new one
    role_change_s: NotNegative = 0.0
    start_s: NotNegative = 0.0  # seconds between switching an instance on and its start
    # prompts of at least that many tokens send KV layer by layer, None: no prompts do
    layerwise_tokens: Count | None = None
    log: Log = "full"  # the step log is kept, or reduced during the run
    implementation: Implementation = "compiled"  # the engine; `reference`: slow, with the whole log
    attention: Attention = field(default_factory=Attention)  # attention of steps that prefill and decode
    kv_compression: KvFormat = field(default_factory=KvFormat)  # how KV is kept and sent
    speculation: Speculation = field(default_factory=Speculation)  # speculation in decode steps
    prefix_stores: PrefixStores = field(default_factory=PrefixStores)  # stores below GPU memory; need `prefix_cache`
    sharing: Sharing = field(default_factory=Sharing)  # sharing of GPUs by two streams
    output_reserve: OutputReserve = field(default_factory=OutputReserve)  # room that admissions leave for later output
    start: StartCost = field(default_factory=StartCost)  # what it takes to start an instance, in place of `start_s`
    faults: Faults = field(default_factory=Faults)  # faults of instances and networks
    views: Views = CURRENT  # age of what routing and ticks see of instances
    gateway: Gateway = OPEN  # requests wait before they are routed

    def __post_init__(self) -> None:
        check_fields(self, "engine.")
        if self.implementation == "reference" and self.log != "full":
            raise InputError("engine.implementation=reference keeps the whole step log; set engine.log=full")
        if self.watermark >= 1:
            raise InputError(f"engine.watermark must be below 1, got {self.watermark!r}")
        if not isinstance(self.prefix_cache, bool) and self.prefix_cache != "auto":
            raise InputError(f"engine.prefix_cache must be true, false or auto, got {self.prefix_cache!r}")
        for name, kind in _groups():
            _require_group(name, getattr(self, name), kind)
        if self.start_s > 0 and self.start != StartCost():
            raise InputError(f"engine.start_s={self.start_s:g} and engine.start both give a start time; set one")
        if self.prefix_stores.tiers and not self.prefix_cache:
            raise InputError("engine.prefix_stores need engine.prefix_cache=true; or choose engine.prefix_stores=none")

    def on(self, workload: Workload, model: Model) -> EngineConfig:
        """The configuration for these requests: `prefix_cache` true or false (auto: true with prefixes or stores, if
        all layers of the model attend), and the output reserve with a number in place of the longest output.

        Raises InputError for a prefix cache of a model with linear attention.
        """
        cache = self.prefix_cache
        if cache == "auto":
            cache = model.linear is None and (workload.has_prefixes or bool(self.prefix_stores.tiers))
        if cache and model.linear is not None:
            raise InputError(
                f"engine.prefix_cache=true: {model.name} has linear attention, whose states are not shared between"
                " requests; set engine.prefix_cache=false, or leave it at auto"
            )
        return replace(self, prefix_cache=cache, output_reserve=self.output_reserve.on(workload))

    def memory_share(self, model: Model) -> float:
        """Bytes that a token's KV takes in GPU memory, as a multiple of `model.kv_bytes_per_token`."""
        return self.kv_compression.memory_share * self._kept_layers(model)

    def copy_share(self, model: Model) -> float:
        """Bytes of a token's KV on a link, as the same multiple."""
        return self.kv_compression.copy_share * self._kept_layers(model)

    def _kept_layers(self, model: Model) -> float:
        """The number of layers whose KV stays for the whole context, as a multiple of the layers without a window."""
        kept = model.growing_layers + model.windowed_layers
        return kept / model.growing_layers if self.window_kv == "kept" else 1.0

    @property
    def shares_blocks(self) -> bool:
        """Whether prefixes are shared in KV blocks, from their allocation on."""
        return bool(self.prefix_cache) and self.prefix_unit == "engine"

    @property
    def pulls(self) -> bool:
        """Whether instances fetch KV as they form steps."""
        return self.transfers == "pulled"

    def batching_of(self, pool: PoolSpec) -> Batching:
        """Which work a step of an instance takes first."""
        return pool.batching or self.batching

    def budget_of(self, pool: PoolSpec) -> int:
        """Tokens of a step of an instance, of all its data-parallel ranks."""
        return pool.ranks * (pool.token_budget or self.token_budget)

    def seats_of(self, pool: PoolSpec) -> int:
        """Sequences on an instance at once, on all its data-parallel ranks."""
        return pool.ranks * (pool.max_batch or self.max_batch)

    def largest_request(self, blocks: int) -> int:
        """Most blocks of one request on an instance of `total` blocks without reservation."""
        return blocks - math.floor(self.watermark * blocks) if self.idle_watermark else blocks


@dataclass(frozen=True)
class Setting:
    """What a run is given, except the policy. Engines and bounds take the cluster as the policy lays it out."""

    workload: Workload
    cluster: ClusterSpec
    model: Model
    timing: Timing
    engine: EngineConfig
    load: Load = field(default_factory=Open)
    seed: int = 0

    def kv_tokens(self, pool: PoolSpec) -> int:
        """KV tokens for which an instance has memory. Raises InputError if the model does not fit."""
        tokens = pool.kv_tokens(self.model, self.engine.kv_fraction, self.engine.memory_share(self.model))
        return tokens if self.engine.kv_tokens is None else self.engine.kv_tokens

    def kv_blocks(self, pool: PoolSpec) -> int:
        """The number of whole KV blocks for these tokens; raises as `kv_tokens` does."""
        return self.kv_tokens(pool) // self.engine.block_tokens

    def state_blocks(self, pool: PoolSpec) -> int:
        """KV blocks that a request takes in addition to those of its tokens: its states of linear attention."""
        tokens = self.model.state_tokens(pool.parallelism.tp) / self.engine.memory_share(self.model)
        return math.ceil(round(tokens / self.engine.block_tokens, 6))

    @functools.cached_property
    def fewer(self) -> tuple[tuple[PoolSpec, Fewer], ...]:
        """What instances are without GPUs that they may lose, with their pools, in the order of `Schedule.losses`."""
        engine, found = self.engine, []
        for k, lost in engine.faults.schedule(self.cluster).losses(self.cluster):
            pool, share = self.cluster.pools[k], engine.memory_share(self.model)
            left = engine.faults.fewer.of(self.model, pool, lost, engine.kv_fraction, share)
            if engine.kv_tokens is not None:
                left = left._replace(
                    kv_tokens=engine.kv_tokens * left.gpus // pool.parallelism.tp * (left.kv_tokens > 0)
                )
            found.append((pool, left))
        return tuple(found)

    def start_s(self, pool: PoolSpec) -> float:
        """Seconds from switching an instance on until it takes work."""
        return self.engine.start_s + self.engine.start.seconds(self.model, pool)

    @property
    def copy_bytes_per_token(self) -> float:
        """Bytes of a token's KV on a link."""
        return self.model.kv_bytes_per_token * self.engine.copy_share(self.model)


def step_rows(setting: Setting) -> list[StepRow]:
    """The step times of an instance of each pool, then of those that may have lost GPUs; raises as `timing` does."""
    engine, model, pools = setting.engine, setting.model, setting.cluster.pools
    rows = {pool.name: step_row(engine, setting.timing, model, pool) for pool in pools}
    return [
        *rows.values(),
        *(on_fewer_gpus(rows[pool.name], left.work, left.attention) for pool, left in setting.fewer),
    ]


def step_row(engine: EngineConfig, timing: Timing, model: Model, pool: PoolSpec) -> StepRow:
    """The step times of an instance of `pool`, with its attention and KV format; raises as `timing` does."""
    row = engine.attention.step_row(instance_row(timing, model, pool))
    return engine.kv_compression.step_row(row, model, pool.own_parallelism)


@functools.cache
def _groups() -> tuple[tuple[str, type], ...]:
    """The settings of an engine that are groups of settings, and what each is."""
    made = ((setting.name, setting.default_factory) for setting in fields(EngineConfig))
    return tuple((name, type(make())) for name, make in made if make is not MISSING)


def _require_group(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise InputError(
            f"engine.{name} must be a file of conf/engine/{name}, got {value!r};"
            f" on a command line write engine/{name}=NAME, in a defaults list - override /engine/{name}: NAME"
        )


def require_whole_instances(cluster: ClusterSpec, engine: EngineConfig, shares_gpus: bool) -> None:
    """Raise InputError if an instance's streams, ranks and stages cannot be combined.

    `shares_gpus`: the policy may run prefills concurrently with decodes.
    """
    pools = cluster.pools
    shared = shares_gpus or any(engine.batching_of(pool) == "concurrent" for pool in pools)
    if shared and any(pool.has_ranks or pool.group > 1 for pool in pools):
        raise InputError(
            "concurrent prefills (batching concurrent) and ranks with requests of their own do not go together;"
            " set cluster.rank_choice=even"
        )
    if shared and any(pool.parallelism.pp > 1 for pool in pools):
        raise InputError(
            "concurrent prefills (batching concurrent) and pipeline stages do not go together; set cluster.pp=1"
        )
    if not engine.chunked_prefill and any(pool.chunk_schedule is not None for pool in pools):
        raise InputError("a chunk schedule needs engine.chunked_prefill=true")
    if any((pool.has_ranks or pool.group > 1) and pool.parallelism.pp > 1 for pool in pools):
        raise InputError(
            "pipeline stages and ranks with requests of their own do not go together;"
            " set cluster.pp=1 or cluster.rank_choice=even"
        )
