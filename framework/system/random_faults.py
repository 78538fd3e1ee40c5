"""What fails at random: crashes and slow-downs of GPUs at exponential times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from framework.checks import Positive, Whole, at_least
from framework.errors import InputError
from framework.system.cluster import ClusterSpec
from framework.system.faults import Crash, Faults, Schedule, Slowdown

MOST_FAULTS = 100_000  # most faults of one kind in a run
_CRASHES, _SLOWDOWNS = range(2)  # streams of draws


@dataclass(frozen=True, kw_only=True)
class RandomFaults(Faults):
    """A GPU fails every `gpu_mtbf_s` seconds that it is up, and is slow every `gpu_slow_mtbf_s`, on average.

    The instance of a failed GPU is down for `down_s`; that of a slow one takes `slow_factor` times as long for its
    steps, for `slow_for_s`. None: that does not happen. Nothing begins later than `until_s` after the start of the
    trace. Times between faults are exponential, so an instance of G GPUs crashes every `gpu_mtbf_s` / G seconds. Ranks
    that step together crash as one instance, and are slow each on its own. The same `seed` gives the same faults.
    Raises InputError for a value out of range.
    """

    gpu_mtbf_s: Positive | None
    down_s: Positive
    until_s: Positive
    gpu_slow_mtbf_s: Positive | None = None
    slow_for_s: Positive = 600.0
    slow_factor: Annotated[float, at_least(1)] = 1.34
    seed: Whole = 0

    def schedule(self, cluster: ClusterSpec) -> Schedule:
        """What fails, by (time, instance). Raises InputError where more than `MOST_FAULTS` would of one kind."""
        gpus = [cluster.pools[k].own_parallelism.gpus for k in cluster.pool_of_instance]
        groups = {group.start: sum(gpus[i] for i in group) for group in cluster.groups}
        crashes = self._drawn("gpu_mtbf_s", self.gpu_mtbf_s, self.down_s, groups, _CRASHES)
        slow = self._drawn("gpu_slow_mtbf_s", self.gpu_slow_mtbf_s, self.slow_for_s, dict(enumerate(gpus)), _SLOWDOWNS)
        return Schedule(
            tuple(sorted(Crash(at_s, i, self.down_s) for at_s, i in crashes)),
            tuple(sorted(Slowdown(at_s, i, self.slow_for_s, self.slow_factor) for at_s, i in slow)),
        )

    def _drawn(
        self, name: str, mtbf_s: float | None, lasts_s: float, gpus: dict[int, int], stream: int
    ) -> Iterator[tuple[float, int]]:
        """Times of faults that last so long, each with an instance: one with G GPUs has G times as many."""
        if mtbf_s is None:
            return
        expected = sum(self.until_s / (mtbf_s / count + lasts_s) for count in gpus.values())
        if expected > MOST_FAULTS:
            raise InputError(
                f"engine.faults: {name}={mtbf_s:g} and until_s={self.until_s:g} make about {expected:.0f} faults;"
                f" {MOST_FAULTS} are allowed: raise {name}, or lower until_s"
            )
        for i, count in gpus.items():
            rng = np.random.default_rng([self.seed, i, stream] if stream else [self.seed, i])
            at_s = float(rng.exponential(mtbf_s / count))
            while at_s < self.until_s:
                yield at_s, i
                at_s = at_s + lasts_s + float(rng.exponential(mtbf_s / count))
