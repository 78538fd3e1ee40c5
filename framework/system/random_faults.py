"""Random faults: crashes and slow-downs of GPUs, and faults of networks, at exponential times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import numpy as np

from framework.checks import NotNegative, Positive, Whole, at_least, between
from framework.errors import InputError
from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.faults import Crash, Faults, LinkFault, Schedule, Slowdown, require_gpus

MOST_FAULTS = 100_000  # most faults of one kind in a run
_T = TypeVar("_T", Crash, Slowdown, LinkFault)
_CRASHES, _SLOWDOWNS, _LINKS = range(3)  # streams of draws


@dataclass(frozen=True, kw_only=True)
class RandomFaults(Faults):
    """A GPU fails every `gpu_mtbf_s` seconds of its up time, and is slow every `gpu_slow_mtbf_s`, and the network of an
    instance has a fault every `link_mtbf_s`, on average.

    The instance of a failed GPU makes no progress, which is noticed after `detected_after_s`, and is then down for
    `down_s`. A restart fails with probability `start_fails`, at its end, and is tried again. The instance of a slow GPU
    takes `slow_factor` times as long for its steps, for `slow_for_s`. A network has `link_share` of its bandwidth for
    `link_for_s`. None: that does not happen. Nothing begins later than `until_s` after the start of the trace. Times
    between faults are exponential, so an instance of G GPUs crashes every `gpu_mtbf_s` / G seconds. With `gpus` above 0
    a failure takes so many of its GPUs if it has more, and it fails again after their repair. Ranks in lockstep crash
    as one instance, and are slow each on its own. The same `seed` gives the same faults.
    Raises InputError for a value out of range.
    """

    gpu_mtbf_s: Positive | None
    down_s: Positive
    until_s: Positive
    detected_after_s: NotNegative = 0.0
    start_fails: Annotated[float, between(0, 0.99)] = 0.0
    gpu_slow_mtbf_s: Positive | None = None
    slow_for_s: Positive = 600.0
    slow_factor: Annotated[float, at_least(1)] = 1.34
    link_mtbf_s: Positive | None = None
    link_for_s: Positive = 60.0
    link_share: Annotated[float, between(0, 1)] = 0.0
    gpus: Whole = 0
    seed: Whole = 0

    def schedule(self, cluster: ClusterSpec) -> Schedule:
        """The faults, by (time, instance). Raises InputError if there would be more than `MOST_FAULTS` of one kind."""
        gpus = [cluster.pools[k].own_parallelism.gpus for k in cluster.pool_of_instance]
        groups = {group.start: sum(gpus[i] for i in group) for group in cluster.groups}
        instances = dict(enumerate(gpus))
        crashes = [
            self._of(cluster.pools[cluster.pool_of_instance[crash.instance]], crash)
            for crash in self._drawn("gpu_mtbf_s", self.gpu_mtbf_s, self._crash, groups, _CRASHES)
        ]
        slowdowns = self._drawn("gpu_slow_mtbf_s", self.gpu_slow_mtbf_s, self._slowdown, instances, _SLOWDOWNS)
        links = self._drawn("link_mtbf_s", self.link_mtbf_s, self._link, dict.fromkeys(instances, 1), _LINKS)
        return Schedule(tuple(sorted(crashes)), tuple(sorted(slowdowns)), tuple(sorted(links)))

    def _of(self, pool: PoolSpec, crash: Crash) -> Crash:
        """The crash of an instance of the pool, of some of its GPUs if that is set and it has more."""
        if self.gpus == 0 or pool.own_parallelism.gpus <= self.gpus:
            return crash
        partial = replace(crash, gpus=self.gpus)
        require_gpus(partial, pool)
        return partial

    def _crash(self, at_s: float, instance: int, rng: np.random.Generator) -> Crash:
        starts = int(rng.geometric(1 - self.start_fails)) if self.start_fails > 0 else 1
        return Crash(at_s, instance, starts * self.down_s, self.detected_after_s)

    def _slowdown(self, at_s: float, instance: int, rng: np.random.Generator) -> Slowdown:
        return Slowdown(at_s, instance, self.slow_for_s, self.slow_factor)

    def _link(self, at_s: float, instance: int, rng: np.random.Generator) -> LinkFault:
        return LinkFault(at_s, instance, self.link_for_s, self.link_share)

    def _drawn(
        self,
        name: str,
        mtbf_s: float | None,
        make: Callable[[float, int, np.random.Generator], _T],
        gpus: dict[int, int],
        stream: int,
    ) -> Iterator[_T]:
        """Faults that `make` makes of a time and an instance; an instance with G GPUs has G times as many."""
        if mtbf_s is None:
            return
        one = make(0.0, 0, np.random.default_rng(0))
        expected = sum(self.until_s / (mtbf_s / count + one.back_s) for count in gpus.values())
        if expected > MOST_FAULTS:
            raise InputError(
                f"engine.faults: {name}={mtbf_s:g} and until_s={self.until_s:g} make about {expected:.0f} faults;"
                f" {MOST_FAULTS} are allowed: raise {name}, or lower until_s"
            )
        for i, count in gpus.items():
            rng = np.random.default_rng([self.seed, i, stream] if stream else [self.seed, i])
            at_s = float(rng.exponential(mtbf_s / count))
            while at_s < self.until_s:
                found = make(at_s, i, rng)
                yield found
                at_s = found.back_s + float(rng.exponential(mtbf_s / count))
