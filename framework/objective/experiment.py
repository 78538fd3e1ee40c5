"""One experiment: what is simulated, and the SLO that judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from framework.bound.setting import Setting
from framework.metrics.invariants import check_result
from framework.policy.base import Policy
from framework.policy.predictor import Predictor
from framework.policy.request_view import Limits
from framework.policy.watching import Watch
from framework.result import Result
from framework.simulate import laid_out, replay
from framework.sizing.by_load import sized
from framework.timing.fit_domain import Place
from framework.timing.measured import placed
from framework.workload import Workload, at_rate


@dataclass(frozen=True, kw_only=True)
class Experiment(Setting):
    """What a run is given, its SLO, and its policy; `cluster` is not laid out.

    `renew` makes another policy and predictor of the same configuration, since each of these serves one run. `sample(k,
    block_s)`, k >= 1, makes other requests of the same kind, different for each k: a distribution or a fitted trace is
    drawn again, and a recording's blocks of `block_s` seconds are drawn.
    """

    policy: Policy
    predictor: Predictor | None
    renew: Callable[[], tuple[Policy, Predictor | None]]
    sample: Callable[[int, float], Workload]

    def on(self, workload: Workload) -> Experiment:
        """The experiment on another workload and the same cluster, with a policy and a predictor of its own."""
        policy, predictor = self.renew()
        return replace(self, workload=workload, policy=policy, predictor=predictor)

    def at_rate(self, rate_rps: float) -> Experiment:
        """The same requests at another rate, on a cluster that is sized for it. Raises as `workload.at_rate` does."""
        return self.on(at_rate(self.workload, rate_rps)).sized().placed()

    def sized(self) -> Experiment:
        """The experiment on a cluster whose automatic split is the one that the load needs."""
        return replace(self, cluster=sized(self.cluster, self.setting)) if self.cluster.auto else self

    def placed(self) -> Experiment:
        """The experiment with step times that know how its load relates to those of their fit."""
        cluster = self.setting.cluster
        pool = cluster.pools[cluster.entrance]
        instances = pool.instances // pool.group  # Step times were fitted to whole groups of ranks.
        place = Place.of(self.workload, self.load, instances, prefix_cache=bool(self.engine.prefix_cache))
        return replace(self, timing=placed(self.timing, place))

    @property
    def setting(self) -> Setting:
        """What the run is given: the cluster is as the policy lays it out."""
        return replace(self, cluster=laid_out(self, self.policy))

    def run(self, progress: Callable[[int, int], None] | None = None, watch: Watch | None = None) -> Result:
        """Simulate and check the engine's invariants; `progress(ended, total)` is called now and then. `watch` sees the
        routing decisions.
        """
        result = replay(self, self.policy, self.predictor, progress, self._limits, watch)
        check_result(result)
        return result

    def _limits(self) -> Limits:
        """Those of the SLO, of each request."""
        classes, count = self.workload.slo_class, len(self.workload)
        return Limits(*(self.slo.limits_s(name, classes, count) for name in ("ttft_s", "tpot_s")))
