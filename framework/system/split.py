"""The division of a cluster's instances into those that prefill and those that decode."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from framework.checks import require_count
from framework.errors import InputError

Auto = Literal["auto"]
AUTO: Auto = "auto"
INSTANCES = 5  # instances if no number is given


class Counts(NamedTuple):
    """Instances that prefill and that decode; `is_auto`: as equal as possible, until a load decides."""

    prefill: int
    decode: int
    is_auto: bool


def counted(prefill: int | Auto, decode: int | None, instances: int | None, most: int) -> Counts:
    """The instances of each kind, at most `most`, from the values of `cluster.prefill`, `.decode` and `.instances`.

    Raises InputError for invalid counts, and for numbers that contradict each other.
    """
    if isinstance(prefill, str) and prefill != AUTO:
        raise InputError(f"cluster.prefill must be auto or a whole number of at least 1, got {prefill!r}")
    given = {"prefill": None if prefill == AUTO else prefill, "decode": decode, "instances": instances}
    for name, value in given.items():
        if value is not None:
            require_count(f"cluster.{name}", value, most)
    if prefill != AUTO and decode is not None:
        if instances not in (None, prefill + decode):
            raise InputError(
                f"cluster.prefill={prefill} and cluster.decode={decode} are {prefill + decode} instances, not"
                f" cluster.instances={instances}; leave one out"
            )
        return Counts(prefill, decode, is_auto=False)
    total = INSTANCES if instances is None else instances
    if prefill == AUTO and decode is None:
        if total < 2:
            raise InputError(f"cluster.instances={total}: one instance cannot prefill for another; set 2 or more")
        return Counts(total - total // 2, total // 2, is_auto=True)
    known = decode if prefill == AUTO else prefill
    assert isinstance(known, int)
    if known >= total:
        name = "decode" if prefill == AUTO else "prefill"
        raise InputError(f"cluster.{name}={known} leaves none of {total} instances; raise cluster.instances")
    return Counts(total - known, known, False) if prefill == AUTO else Counts(known, total - known, False)


@dataclass(frozen=True)
class Split:
    """The split that a load needs: numbers of prefill and of decode instances, and their basis.

    On average, a request takes `prefill_s` seconds of a prefill instance and `decode_s` of a decode instance, where
    `batch` requests decode at once, no more because of `batch_limit`; that instance's link takes `transfer_s` for its
    KV. `rate_rps` is that of arrivals, None: the load has none. `decode_prefills`: decode instances also prefill.
    """

    prefill: int
    decode: int
    rate_rps: float | None
    prefill_s: float
    decode_s: float
    batch: int
    batch_limit: str
    transfer_s: float
    decode_prefills: bool = False

    @property
    def loads(self) -> tuple[float, float] | None:
        """The load of each pool as a share of its time, of both together if both prefill; None without a rate."""
        if self.rate_rps is None:
            return None
        if self.decode_prefills:
            together = self.rate_rps * (self.prefill_s + self.decode_s) / (self.prefill + self.decode)
            return together, together
        return self.rate_rps * self.prefill_s / self.prefill, self.rate_rps * self.decode_s / self.decode

    def figures(self) -> dict[str, Any]:
        """All of it, by name."""
        loads = self.loads or (None, None)
        return asdict(self) | {"prefill_load": loads[0], "decode_load": loads[1]}
