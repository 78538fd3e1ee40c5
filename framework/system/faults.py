"""What fails in a run: instances that crash and come back, and what becomes of the requests that they had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from framework.checks import NotNegative, Positive, Whole, check_fields
from framework.errors import InputError, shown
from framework.system.cluster import ClusterSpec

Recovery = Literal["recompute", "fail"]
MOST_CRASHES = 100_000  # most crashes of a run


@dataclass(frozen=True, order=True)
class Crash:
    """An instance loses all that it holds at `at_s`, seconds from the start of the trace, and is down for `down_s`.

    Raises InputError for a value out of range.
    """

    at_s: NotNegative
    instance: Whole
    down_s: Positive

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.crashes: ")

    @property
    def back_s(self) -> float:
        """When the instance comes back."""
        return self.at_s + self.down_s


@dataclass(frozen=True)
class Faults:
    """What fails in a run: nothing. `recovery`: what becomes of the requests that a crashed instance had: they are
    computed again, or fail.
    """

    recovery: Recovery = "recompute"

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.")

    def __bool__(self) -> bool:
        """Whether anything may fail."""
        return type(self) is not Faults

    def schedule(self, cluster: ClusterSpec) -> tuple[Crash, ...]:
        """The crashes of a run on this cluster, by (time, instance). Raises InputError where they do not fit it."""
        return ()

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {"fails_dropped": self.recovery == "fail"}


@dataclass(frozen=True, kw_only=True)
class Crashes(Faults):
    """`crashes`: those of the run, each a Crash, or a mapping of its fields.

    Raises InputError for what is no crash, and for a value out of range.
    """

    crashes: Sequence[Crash | Mapping[str, Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.crashes
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InputError(f"engine.faults.crashes must be a list of crashes, got {shown(given)}")
        object.__setattr__(self, "crashes", tuple(sorted(_crash(one) for one in self.crashes)))

    def schedule(self, cluster: ClusterSpec) -> tuple[Crash, ...]:
        """The crashes by (time, instance).

        Raises InputError for an instance that the cluster does not have, and for one that crashes while it is down.
        Ranks that step together are down together.
        """
        crashes: list[Crash] = [one for one in self.crashes if isinstance(one, Crash)]
        for one in crashes:
            if one.instance >= cluster.instances:
                raise InputError(
                    f"engine.faults.crashes: there is no instance {one.instance};"
                    f" the cluster has instances 0 to {cluster.instances - 1}"
                )
        for group in cluster.groups:
            for before, after in pairwise(one for one in crashes if one.instance in group):
                if after.at_s < before.back_s:
                    raise InputError(
                        f"engine.faults.crashes: instance {after.instance} crashes at {after.at_s:g} s,"
                        f" but is down from {before.at_s:g} s to {before.back_s:g} s"
                    )
        return tuple(crashes)


@dataclass(frozen=True, kw_only=True)
class RandomCrashes(Faults):
    """Crashes drawn at random: a GPU fails every `gpu_mtbf_s` seconds that it is up, on average.

    The instance of a failed GPU is down for `down_s`. No GPU fails later than `until_s` after the start of the trace.
    Times between failures are exponential, so an instance of G GPUs crashes every `gpu_mtbf_s` / G seconds. Ranks that
    step together count as one instance. The same `seed` gives the same crashes. Raises InputError for a value out of
    range.
    """

    gpu_mtbf_s: Positive
    down_s: Positive
    until_s: Positive
    seed: Whole = 0

    def schedule(self, cluster: ClusterSpec) -> tuple[Crash, ...]:
        """The crashes by (time, instance). Raises InputError where there would be more than `MOST_CRASHES`."""
        own = [cluster.pools[k].own_parallelism.gpus for k in cluster.pool_of_instance]
        rates = [sum(own[i] for i in group) for group in cluster.groups]
        expected = sum(self.until_s / (self.gpu_mtbf_s / gpus + self.down_s) for gpus in rates)
        if expected > MOST_CRASHES:
            raise InputError(
                f"engine.faults: gpu_mtbf_s={self.gpu_mtbf_s:g} and until_s={self.until_s:g} make about {expected:.0f}"
                f" crashes; {MOST_CRASHES} are allowed: raise gpu_mtbf_s, or lower until_s"
            )
        found: list[Crash] = []
        for group, gpus in zip(cluster.groups, rates, strict=True):
            rng = np.random.default_rng([self.seed, group.start])
            at_s = rng.exponential(self.gpu_mtbf_s / gpus)
            while at_s < self.until_s:
                found.append(Crash(float(at_s), group.start, self.down_s))
                at_s = found[-1].back_s + rng.exponential(self.gpu_mtbf_s / gpus)
        return tuple(sorted(found))


def _crash(given: Any) -> Crash:
    """A crash as it is written in a configuration."""
    if isinstance(given, Crash):
        return given
    if not isinstance(given, Mapping) or set(given) != {"instance", "at_s", "down_s"}:
        raise InputError(
            "engine.faults.crashes: a crash is written {instance: 0, at_s: 60.0, down_s: 120.0}, got " + shown(given)
        )
    return Crash(given["at_s"], given["instance"], given["down_s"])
