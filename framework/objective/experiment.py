"""One experiment: what is simulated, and the SLO by which it is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from framework.engine.config import EngineConfig
from framework.load import Load
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.policy.base import Policy
from framework.policy.predictor import Predictor
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from framework.system.model import Model
from framework.timing.table import Timing
from framework.workload import Workload


@dataclass(frozen=True)
class Experiment:
    """What `simulate` needs, and the SLO by which its result is judged.

    `renew` makes another policy and predictor of the same configuration, for each of these serves one run.
    `sample(k, block_s)`, k >= 1, makes other requests of the same kind, each k its own: a law or a twin is drawn from
    again, a recording's blocks of `block_s` seconds are.
    """

    workload: Workload
    cluster: ClusterSpec
    model: Model
    timing: Timing
    engine: EngineConfig
    policy: Policy
    predictor: Predictor | None
    load: Load
    slo: Slo
    seed: int
    renew: Callable[[], tuple[Policy, Predictor | None]]
    sample: Callable[[int, float], Workload]

    def on(self, workload: Workload) -> Experiment:
        """The same on another workload, with a policy and a predictor of its own."""
        policy, predictor = self.renew()
        return replace(self, workload=workload, policy=policy, predictor=predictor)

    def run(self, progress: Callable[[int, int], None] | None = None) -> Result:
        """Simulate and check the engine's invariants; `progress(ended, total)` is called now and then."""
        result = simulate(
            self.workload,
            self.cluster,
            self.model,
            self.timing,
            engine=self.engine,
            policy=self.policy,
            predictor=self.predictor,
            load=self.load,
            seed=self.seed,
            progress=progress,
        )
        check_result(result)
        return result
