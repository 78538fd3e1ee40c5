"""A cluster: pools of equal instances and the links between instances."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, check_fields, checked, up_to
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.links import LinkSharing as LinkSharing
from framework.system.links import LinkSpec as LinkSpec
from framework.system.model import Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.system.split import Auto, Split, counted

Role = Literal["mixed", "prefill", "decode", "off"]
Batching = Literal["decode_first", "prefill_first", "mixed", "static", "unified", "concurrent", "chunks_first"]
Phase = Literal["decode_only"]  # mode of a plan that changes with time; configured, it would never prefill
BATCHINGS: tuple[str, ...] = get_args(Batching)
PLANS: tuple[str, ...] = (*BATCHINGS, "decode_only")
RankChoice = Literal["even", "kv", "requests", "round_robin", "routed"]
RANK_CHOICES: tuple[str, ...] = get_args(RankChoice)


MOST_INSTANCES, MOST_GPUS = 100_000, 10_000
Gpus = Annotated[int, up_to(MOST_GPUS)]
Spare = Annotated[int, up_to(MOST_INSTANCES, least=0)]


@dataclass(frozen=True)
class ChunkSchedule:
    """Tokens up to which a chunk may be added to a step, `sizes`, by the stage of the chunk's prompt.

    A stage is `stage_tokens` tokens; the last size holds for all later stages."""

    sizes: tuple[Count, ...]
    stage_tokens: Count

    def __post_init__(self) -> None:
        check_fields(self, "chunk_schedule.")
        if not self.sizes:
            raise InputError("chunk_schedule.sizes must name at least one size")


@dataclass(frozen=True)
class PoolSpec:
    """`instances` equal instances, each with `parallelism` on GPUs of one kind, that begin in one role.

    An option that is None is the engine's or the cluster's, with two exceptions. `reserve_tokens`: the KV tokens that
    every request reserves from its admission to its end instead of paging (at most what an instance can admit).
    `chunk_schedule`: none. `token_budget` and `max_batch` are those of one data-parallel rank, as servers count them.
    `rank_choice`: the dp rank of an instance for a request: the one with the least `kv` or the fewest `requests`, or
    each in turn; `even`: ranks are not distinguished, all have an equal share; `routed`: as the policy says, since each
    rank is an instance of its own. Then `instances` counts ranks, `parallelism` is that of the dp ranks in lockstep, a
    *group* of consecutive instances, and all options are those of one rank. `on_at_start`: the first so many instances
    are on when the run begins, and a policy may switch on the others; None: all are on. `provisioning_s`: of its
    machines, in place of that of `engine.start`; None: that.
    """

    name: str
    role: Role
    instances: Annotated[int, up_to(MOST_INSTANCES)]
    gpu: Gpu
    parallelism: Parallelism = field(default_factory=Parallelism)
    token_budget: Count | None = None
    max_batch: Count | None = None
    batching: Batching | None = None
    link_bytes_s: Positive | None = None  # bandwidth of an instance in each direction
    reserve_tokens: Count | None = None
    chunk_schedule: ChunkSchedule | None = None
    rank_choice: RankChoice = "even"
    on_at_start: Spare | None = None
    provisioning_s: NotNegative | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.gpu, Gpu):
            raise InputError(f"pool {self.name}: gpu must be one of conf/gpu, got {self.gpu!r}")
        check_fields(self, f"pool {self.name}: ")
        if not isinstance(self.parallelism, Parallelism):
            raise InputError(f"pool {self.name}: parallelism must be a Parallelism, got {self.parallelism!r}")
        if self.group > 1:
            self._require_whole_groups()
        if self.on_at_start is not None and self.on_at_start > self.instances:
            raise InputError(
                f"pool {self.name}: {self.on_at_start} instances cannot be on at the start, there are {self.instances};"
                " lower on_at_start"
            )

    def _require_whole_groups(self) -> None:
        if self.instances % self.group:
            raise InputError(
                f"pool {self.name}: {self.instances} ranks are no whole number of groups of dp = {self.group}, which"
                " rank_choice=routed lets step together"
            )
        if self.role == "off" or self.begins_on < self.instances:
            raise InputError(
                f"pool {self.name}: ranks that step together cannot be off; set cluster.spare=0, leave on_at_start"
                " unset, or set another cluster.rank_choice"
            )

    @property
    def begins_on(self) -> int:
        """How many of its instances are on at the start."""
        if self.role == "off":
            return 0
        return self.instances if self.on_at_start is None else self.on_at_start

    @property
    def has_ranks(self) -> bool:
        """Whether its instances have data-parallel ranks with their own requests."""
        return self.rank_choice not in ("even", "routed") and self.parallelism.dp > 1

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of one instance that each schedule their requests; 1: it has none, or is one."""
        return 1 if self.rank_choice == "routed" else self.parallelism.dp

    @property
    def group(self) -> int:
        """Instances in lockstep, which are the ranks of one model; 1: each steps alone."""
        return self.parallelism.dp if self.rank_choice == "routed" else 1

    @property
    def own_parallelism(self) -> Parallelism:
        """How the GPUs of one instance share the model: all of `parallelism`, or one of its ranks."""
        return replace(self.parallelism, dp=1, ep=1) if self.group > 1 else self.parallelism

    @property
    def gpus(self) -> int:
        return self.instances * self.own_parallelism.gpus

    @property
    def host_bytes_s(self) -> float:
        """Bandwidth between an instance and its hosts' memory: the PCIe links of its GPUs together."""
        return self.gpu.pcie_bytes_s * self.own_parallelism.gpus

    def kv_tokens(self, model: Model, kv_fraction: float, memory_share: float = 1.0) -> int:
        """KV tokens that an instance holds next to the weights; arguments and errors as of `kv_capacity_tokens`."""
        return kv_capacity_tokens(model, self.gpu, self.parallelism, kv_fraction, memory_share) // self.group


@dataclass(frozen=True)
class ClusterSpec:
    """Pools in order; instances are numbered pool after pool, ranks in lockstep group after group.

    `auto`: a load decides how many instances of the pools "prefill" and "decode" there are (`framework.sizing`);
    `split` is the result, None: not yet decided, and the pools are as equal as possible. `longest_request_tokens`:
    prompt and output of the longest request that it is for, like a server's maximum length; None: those of the trace.

    Raises InputError for a cluster that cannot serve (nothing to prefill on, nothing to decode on) and for two pools of
    one name.
    """

    pools: tuple[PoolSpec, ...]
    link: LinkSpec
    auto: bool = False
    split: Split | None = None
    longest_request_tokens: Count | None = None

    def __post_init__(self) -> None:
        for phase in ("prefill", "decode"):
            able = [pool for pool in self.pools if pool.role in ("mixed", phase)]
            if not able:
                raise InputError(f"cluster: no pool can {phase}; add a {phase} or a mixed pool")
            if not any(pool.begins_on for pool in able):
                names = " or ".join(pool.name for pool in able)
                raise InputError(f"cluster: no instance can {phase} at the start; set on_at_start of {names} to 1")
        if len({pool.name for pool in self.pools}) != len(self.pools):
            raise InputError("cluster: pool names must differ, got " + ", ".join(pool.name for pool in self.pools))

    @property
    def instances(self) -> int:
        return sum(pool.instances for pool in self.pools)

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    def divided(self, split: Split) -> ClusterSpec:
        """The cluster with this number of prefill instances and of decode instances."""
        counts = {"prefill": split.prefill, "decode": split.decode}
        pools = (
            replace(pool, instances=counts.get(pool.name, 0) * pool.group or pool.instances) for pool in self.pools
        )
        return replace(self, pools=tuple(pools), split=split)

    @property
    def entrance(self) -> int:
        """Index of the pool at which requests arrive: the first that prefills."""
        return next(k for k, pool in enumerate(self.pools) if pool.role in ("mixed", "prefill"))

    @property
    def pool_of_instance(self) -> NDArray[np.int64]:
        """Index of each instance's pool, shape (instances,)."""
        return np.repeat(np.arange(len(self.pools)), [pool.instances for pool in self.pools])

    @property
    def groups(self) -> tuple[range, ...]:
        """The instances of each group, in order; an instance that steps alone is its own group."""
        sizes = [pool.group for pool in self.pools for _ in range(pool.instances // pool.group)]
        ends = np.cumsum(sizes).tolist()
        return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))

    @property
    def link_bytes_s(self) -> NDArray[np.float64]:
        """Network bandwidth of each instance in each direction, shape (instances,)."""
        own = [self.link.bandwidth_bytes_s if pool.link_bytes_s is None else pool.link_bytes_s for pool in self.pools]
        return np.asarray(own, np.float64)[self.pool_of_instance]


@checked("cluster.")
def mixed(
    instances: Annotated[int, up_to(MOST_INSTANCES)],
    gpu: Gpu,
    tp: Gpus = 1,
    pp: Gpus = 1,
    ep: Gpus = 1,
    dp: Gpus = 1,
    link_bandwidth_bytes_s: Positive | None = None,
    link_latency_s: NotNegative = 0.0,
    spare: Spare = 0,
    rank_choice: RankChoice = "even",
    link_sharing: LinkSharing = "fair",
    fabric_bandwidth_bytes_s: Positive | None = None,
    on_at_start: Spare | None = None,
) -> ClusterSpec:
    """Instances that prefill and decode, and `spare` ones that are off; tp, pp, ep, dp as in `Parallelism`.

    `rank_choice` and `on_at_start` are as in `PoolSpec`; with `routed` each of the `instances` becomes dp, which share
    its GPUs and its network. Without `link_bandwidth_bytes_s` an instance has the network of its GPUs; the other
    options of links are those of `LinkSpec`.
    """
    parallelism = Parallelism(tp, pp, ep, dp)
    pool = PoolSpec("mixed", "mixed", instances, gpu, parallelism, on_at_start=on_at_start)
    pools = (pool, *_spare(spare, gpu, parallelism))
    link = Network(link_bandwidth_bytes_s, link_latency_s, link_sharing, fabric_bandwidth_bytes_s)
    return linked(_ranked(pools, rank_choice), link)


@checked("cluster.")
def disaggregated(
    prefill: int | Auto,
    decode: int | None,
    gpu: Gpu,
    tp: Gpus = 1,
    pp: Gpus = 1,
    ep: Gpus = 1,
    dp: Gpus = 1,
    prefill_gpu: Gpu | None = None,
    decode_gpu: Gpu | None = None,
    prefill_tp: Gpus | None = None,
    decode_tp: Gpus | None = None,
    link_bandwidth_bytes_s: Positive | None = None,
    link_latency_s: NotNegative = 0.0,
    spare: Spare = 0,
    rank_choice: RankChoice = "even",
    prefill_pp: Gpus | None = None,
    decode_pp: Gpus | None = None,
    prefill_ep: Gpus | None = None,
    decode_ep: Gpus | None = None,
    prefill_dp: Gpus | None = None,
    decode_dp: Gpus | None = None,
    link_sharing: LinkSharing = "fair",
    fabric_bandwidth_bytes_s: Positive | None = None,
    instances: int | None = None,
    prefill_on_at_start: Spare | None = None,
    decode_on_at_start: Spare | None = None,
) -> ClusterSpec:
    """`prefill` instances hand over to `decode` instances; `spare` ones, of `gpu` and `tp`, are off.

    `instances` is the sum of both, None: the sum of the given ones, or else 5. Without `decode` it is what `prefill`
    leaves; with `prefill` "auto" that is what `decode` leaves, and without both the load decides (`ClusterSpec.auto`).

    Both pools have `gpu`, `tp`, `pp`, `ep` and `dp` unless they name their own. The network, `rank_choice` and
    `on_at_start` are as for `mixed`.
    """
    counts = counted(prefill, decode, instances, MOST_INSTANCES)
    prefilling = Parallelism(_own(prefill_tp, tp), _own(prefill_pp, pp), _own(prefill_ep, ep), _own(prefill_dp, dp))
    decoding = Parallelism(_own(decode_tp, tp), _own(decode_pp, pp), _own(decode_ep, ep), _own(decode_dp, dp))
    pools = (
        PoolSpec("prefill", "prefill", counts.prefill, prefill_gpu or gpu, prefilling, on_at_start=prefill_on_at_start),
        PoolSpec("decode", "decode", counts.decode, decode_gpu or gpu, decoding, on_at_start=decode_on_at_start),
        *_spare(spare, gpu, Parallelism(tp, pp, ep, dp)),
    )
    link = Network(link_bandwidth_bytes_s, link_latency_s, link_sharing, fabric_bandwidth_bytes_s)
    return replace(linked(_ranked(pools, rank_choice), link), auto=counts.is_auto)


def _ranked(pools: tuple[PoolSpec, ...], rank_choice: RankChoice) -> tuple[PoolSpec, ...]:
    if rank_choice != "routed":
        return tuple(replace(pool, rank_choice=rank_choice) for pool in pools)
    return tuple(
        replace(pool, rank_choice=rank_choice, instances=pool.instances * pool.parallelism.dp) for pool in pools
    )


def _spare(instances: int, gpu: Gpu, parallelism: Parallelism) -> tuple[PoolSpec, ...]:
    return (PoolSpec("spare", "off", instances, gpu, parallelism),) if instances else ()


def _own(size: int | None, shared: int) -> int:
    return shared if size is None else size


class Network(NamedTuple):
    """The options of a cluster's links; without a bandwidth each instance has the network of its GPUs."""

    bandwidth_bytes_s: float | None
    latency_s: float
    sharing: LinkSharing
    fabric_bytes_s: float | None

    def spec(self, bandwidth_bytes_s: float) -> LinkSpec:
        return LinkSpec(bandwidth_bytes_s, self.latency_s, self.sharing, self.fabric_bytes_s)


def linked(pools: tuple[PoolSpec, ...], network: Network) -> ClusterSpec:
    """The cluster of these pools; each instance has the network of its GPUs, unless all have one bandwidth."""
    bandwidth_bytes_s = network.bandwidth_bytes_s
    if bandwidth_bytes_s is not None:
        shares = [bandwidth_bytes_s / pool.group if pool.group > 1 else None for pool in pools]
        pools = tuple(replace(pool, link_bytes_s=share) for pool, share in zip(pools, shares, strict=True))
        return ClusterSpec(pools, network.spec(bandwidth_bytes_s))
    own = [pool.gpu.nic_bytes_s * pool.own_parallelism.gpus for pool in pools]
    pools = tuple(replace(pool, link_bytes_s=bandwidth) for pool, bandwidth in zip(pools, own, strict=True))
    return ClusterSpec(pools, network.spec(min(own)))
