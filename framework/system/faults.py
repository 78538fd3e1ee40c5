"""What fails in a run: instances that crash and come back, and what becomes of the requests that they had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from framework.checks import NotNegative, Positive, Whole, check_fields
from framework.errors import InputError, shown
from framework.system.cluster import ClusterSpec

Recovery = Literal["recompute", "fail"]


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
    """`crashes`: each a Crash, or a mapping of its fields. `recovery`: what becomes of the requests that a crashed
    instance had: they are computed again, or fail.

    Raises InputError for what is no crash, and for a value out of range.
    """

    crashes: Sequence[Crash | Mapping[str, Any]] = ()
    recovery: Recovery = "recompute"

    def __post_init__(self) -> None:
        check_fields(self, "engine.faults.")
        given: object = self.crashes
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InputError(f"engine.faults.crashes must be a list of crashes, got {shown(given)}")
        object.__setattr__(self, "crashes", tuple(sorted(_crash(one) for one in self.crashes)))

    def __bool__(self) -> bool:
        return len(self.crashes) > 0

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

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {"crashes": len(self.crashes), "fails_dropped": self.recovery == "fail"}


def _crash(given: Any) -> Crash:
    """A crash as it is written in a configuration."""
    if isinstance(given, Crash):
        return given
    if not isinstance(given, Mapping) or set(given) != {"instance", "at_s", "down_s"}:
        raise InputError(
            "engine.faults.crashes: a crash is written {instance: 0, at_s: 60.0, down_s: 120.0}, got " + shown(given)
        )
    return Crash(given["at_s"], given["instance"], given["down_s"])
