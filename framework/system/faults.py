"""Faults of a run: instances that crash and come back, or are slow for a while, and what happens to requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from framework.checks import Count, NotNegative, Positive, Whole, at_least, between, check_fields
from framework.errors import InputError, shown
from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.fewer_gpus import FewerGpus

Recovery = Literal["recompute", "restore", "fail"]
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)  # RECOMPUTED, RESTORED and LOST of `framework.codes`
What = Literal["repair", "crash", "detection", "hang", "link", "slowdown"]  # in the order of one time and instance
_ORDER: tuple[str, ...] = get_args(What)


class FaultEvent(NamedTuple):
    """A fault of an instance at `at_s`. `value`: for a crash when it comes back, for a slow-down its factor, for a link
    the share of its bandwidth.

    A crash that is noticed later is a hang, which began at `since_s`, and its detection. `gpus`: that a crash takes, 0:
    the whole instance; they work again from their repair on.
    """

    at_s: float
    instance: int
    what: What
    value: float
    since_s: float = 0.0
    gpus: int = 0


@dataclass(frozen=True, order=True)
class Crash:
    """An instance makes no progress from `at_s` on, seconds from the start of the trace.

    The crash is not detected for `detected_after_s`. Then the instance loses everything that it holds, and is down for
    `down_s`. With `gpus` above 0 only so many of its GPUs have failed, and are repaired after `down_s`: before that the
    instance may go on with the others. Raises InputError for a value out of range.
    """

    at_s: NotNegative
    instance: Whole
    down_s: Positive
    detected_after_s: NotNegative = 0.0
    gpus: Whole = 0

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.crashes: ")

    @property
    def back_s(self) -> float:
        """When the instance comes back."""
        return self.detected_s + self.down_s

    @property
    def detected_s(self) -> float:
        """When the crash is noticed."""
        return self.at_s + self.detected_after_s

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """What happens to the instance."""
        at_s, i = self.at_s, self.instance
        repairs = (FaultEvent(self.back_s, i, "repair", 0.0, self.back_s, self.gpus),) * (self.gpus > 0)
        if self.detected_after_s == 0:
            return FaultEvent(at_s, i, "crash", self.back_s, at_s, self.gpus), *repairs
        detection = FaultEvent(self.detected_s, i, "detection", self.back_s, at_s, self.gpus)
        return FaultEvent(at_s, i, "hang", self.back_s, at_s), detection, *repairs


@dataclass(frozen=True, order=True)
class _Lasting:
    """A state of an instance from `at_s` on, for `for_s`."""

    at_s: NotNegative
    instance: Whole
    for_s: Positive

    @property
    def back_s(self) -> float:
        """When the instance is as before."""
        return self.at_s + self.for_s


@dataclass(frozen=True, order=True)
class Slowdown(_Lasting):
    """Steps that an instance starts from `at_s` on, within `for_s`, take `factor` times as long.

    Raises InputError for a value out of range.
    """

    factor: Annotated[float, at_least(1)]

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.slowdowns: ")

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """What happens to the instance."""
        begin = FaultEvent(self.at_s, self.instance, "slowdown", self.factor)
        return begin, FaultEvent(self.back_s, self.instance, "slowdown", 1.0)


@dataclass(frozen=True, order=True)
class LinkFault(_Lasting):
    """The network of an instance has the `share` of its bandwidth, in both directions, for `for_s`; 0: it is cut off.

    Raises InputError for a value out of range.
    """

    share: Annotated[float, between(0, 1)]

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.links: ")

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """What happens to the network of the instance."""
        begin = FaultEvent(self.at_s, self.instance, "link", self.share)
        return begin, FaultEvent(self.back_s, self.instance, "link", 1.0)


@dataclass(frozen=True)
class Schedule:
    """All faults on one cluster, each kind by (time, instance)."""

    crashes: tuple[Crash, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    links: tuple[LinkFault, ...] = ()

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """All events of instances, in order."""
        faults: tuple[Crash | Slowdown | LinkFault, ...] = (*self.crashes, *self.slowdowns, *self.links)
        events = [event for one in faults for event in one.events]
        return tuple(sorted(events, key=_place))

    def losses(self, cluster: ClusterSpec) -> tuple[tuple[int, int], ...]:
        """The numbers of GPUs that instances of each pool may lack, as (pool, GPUs), in order."""
        pools = cluster.pool_of_instance
        return tuple(sorted({(int(pools[one.instance]), one.gpus) for one in self.crashes if one.gpus}))


def _place(event: FaultEvent) -> tuple[float, ...]:
    """By which events are in order: by time, instance and kind."""
    return event.at_s, event.instance, _ORDER.index(event.what), event.value < 1, event.value


@dataclass(frozen=True)
class Faults:
    """The faults of a run: none.

    `recovery`: whether requests of a crashed instance are computed again, are restored from a backup of their KV, or
    fail. KV is backed up in whole blocks of `backup_tokens`, and read back at `restore_bytes_s` (None: the bandwidth of
    all PCIe links of the instance that reads). `fewer`: what becomes of an instance that loses some of its GPUs. Raises
    InputError for a value out of range.
    """

    recovery: Recovery = "recompute"
    backup_tokens: Count = 16
    restore_bytes_s: Positive | None = None
    fewer: FewerGpus = field(default_factory=FewerGpus)

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.")

    def __bool__(self) -> bool:
        """Whether anything may fail."""
        return type(self) is not Faults

    def schedule(self, cluster: ClusterSpec) -> Schedule:
        """The faults of a run on this cluster. Raises InputError if they do not fit it."""
        return Schedule()

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {
            "recovery": RECOVERIES.index(self.recovery),
            "backup_tokens": self.backup_tokens,
            "restore_bytes_s": self.restore_bytes_s or 0.0,
            "goes_on": self.fewer.after_loss == "go_on",
        }


@dataclass(frozen=True, kw_only=True)
class FaultSchedule(Faults):
    """Each crash of the run is a Crash, or a mapping of its fields; so is each slow-down, and each fault of a network.

    Raises InputError for anything else, and for a value out of range.
    """

    crashes: Sequence[Crash | Mapping[str, Any]] = ()
    slowdowns: Sequence[Slowdown | Mapping[str, Any]] = ()
    links: Sequence[LinkFault | Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "crashes", _read("crashes", self.crashes, Crash, _CRASH))
        object.__setattr__(self, "slowdowns", _read("slowdowns", self.slowdowns, Slowdown, _SLOWDOWN))
        object.__setattr__(self, "links", _read("links", self.links, LinkFault, _LINK))

    def schedule(self, cluster: ClusterSpec) -> Schedule:
        """The faults, by (time, instance).

        Raises InputError for an instance that the cluster does not have, for one that crashes while it is down, and for
        one with two slow-downs or network faults at once; and for faults of networks that copies do not share. Ranks in
        lockstep are down together.
        """
        crashes = [one for one in self.crashes if isinstance(one, Crash)]
        slowdowns = [one for one in self.slowdowns if isinstance(one, Slowdown)]
        links = [one for one in self.links if isinstance(one, LinkFault)]
        _require_instances("crashes", crashes, cluster)
        _require_instances("links", links, cluster)
        _require_instances("slowdowns", slowdowns, cluster)
        for one in crashes:
            require_gpus(one, cluster.pools[cluster.pool_of_instance[one.instance]])
        for group in cluster.groups:
            _require_apart("crashes", (one for one in crashes if one.instance in group), "crashes", "down")
        for i in range(cluster.instances):
            _require_apart("slowdowns", (one for one in slowdowns if one.instance == i), "is slowed down", "slow")
            _require_apart("links", (one for one in links if one.instance == i), "loses bandwidth", "short of it")
        if links and cluster.link.sharing != "fair":
            raise InputError("engine.faults.links needs copies that share links; choose cluster.link_sharing=fair")
        return Schedule(tuple(crashes), tuple(slowdowns), tuple(links))


def require_gpus(crash: Crash, pool: PoolSpec) -> None:
    """Raise InputError if the crash takes GPUs of an instance that cannot lose just these."""
    split = pool.parallelism
    if crash.gpus and split.pp * split.dp > 1:
        raise InputError(
            f"engine.faults: instances of pool {pool.name} ({split}) cannot lose {crash.gpus} of their GPUs and go on;"
            " set cluster.pp=1 cluster.dp=1, or leave gpus out, and the whole instance crashes"
        )
    if crash.gpus and crash.gpus >= split.tp:
        raise InputError(
            f"engine.faults.crashes: instance {crash.instance} has {split.tp} GPUs and cannot lose {crash.gpus} of them"
            " and go on; leave gpus out, and the whole instance crashes"
        )


_CRASH = "a crash is written {instance: 0, at_s: 60.0, down_s: 120.0}, and may have detected_after_s and gpus"
_SLOWDOWN = "a slow-down is written {instance: 0, at_s: 60.0, for_s: 600.0, factor: 1.5}"
_LINK = "a fault of a network is written {instance: 0, at_s: 60.0, for_s: 600.0, share: 0.5}"
_T = TypeVar("_T", Crash, Slowdown, LinkFault)


def _read(name: str, given: object, kind: Callable[..., _T], example: str) -> tuple[_T, ...]:
    """Faults of one kind as a configuration states them, by (time, instance)."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"engine.faults.{name} must be a list of {name}, got {shown(given)}")
    return tuple(sorted(_one(name, one, kind, example) for one in given))


def _one(name: str, given: Any, kind: Any, example: str) -> Any:
    if isinstance(given, kind):
        return given
    names = {field.name: field.default is MISSING for field in fields(kind)}
    if not isinstance(given, Mapping) or not {name for name, needed in names.items() if needed} <= set(given) <= set(
        names
    ):
        raise InputError(f"engine.faults.{name}: {example}, got {shown(given)}")
    return kind(**given)


def _require_instances(name: str, faults: Iterable[_T], cluster: ClusterSpec) -> None:
    for one in faults:
        if one.instance >= cluster.instances:
            raise InputError(
                f"engine.faults.{name}: there is no instance {one.instance};"
                f" the cluster has instances 0 to {cluster.instances - 1}"
            )


def _require_apart(name: str, faults: Iterable[_T], happens: str, state: str) -> None:
    for before, after in pairwise(faults):
        if after.at_s < before.back_s:
            raise InputError(
                f"engine.faults.{name}: instance {after.instance} {happens} at {after.at_s:g} s,"
                f" but is {state} from {before.at_s:g} s to {before.back_s:g} s"
            )
