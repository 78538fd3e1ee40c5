"""The runs of one policy that a suite of tests makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from framework.engine.setup.spans import engine_for_spans
from framework.errors import InputError
from framework.policy import Policy, overrides
from framework.policy.predictor import Predictor
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from servelab.testing.named import new_part
from servelab.testing.recording import (
    LearnedMean,
)
from servelab.testing.worlds import CLUSTERS, MODEL, TIMING, Scenario


class PolicyRuns:
    """New policies and predictors of one kind, the clusters that they accept, and their runs there."""

    policy_name: ClassVar[str | None] = None
    config_dir: ClassVar[str | None] = None
    policy_factory: ClassVar[Callable[[], Policy] | None] = None
    predictor_factory: ClassVar[Callable[[], Predictor | None]] = LearnedMean

    def new_policy(self) -> Policy:
        """A new policy."""
        factory = type(self).policy_factory
        if factory is not None:
            made, maker = factory(), "policy_factory"
        else:
            assert self.policy_name is not None, "set policy_name or policy_factory"
            made, maker = new_part(self.policy_name, self.config_dir, "policy"), f"policy={self.policy_name}"
        assert isinstance(made, Policy), f"{maker} makes {made!r}; inherit servelab.Policy, Aggregated or Disaggregated"
        return made

    def new_predictor(self) -> Predictor | None:
        """A new predictor, as the policy's YAML chooses it."""
        if self.policy_name is None:
            return type(self).predictor_factory()
        predictor: Predictor | None = new_part(self.policy_name, self.config_dir, "predictor")
        return predictor

    def usable_clusters(self) -> dict[str, ClusterSpec]:
        """The clusters of this suite that the policy's layout accepts."""
        usable = {}
        for name, cluster in CLUSTERS.items():
            try:
                self.new_policy().layout(cluster)
            except InputError:
                continue
            usable[name] = cluster
        assert usable, f"{self.new_policy().name}: layout refuses every cluster of the suite: {', '.join(CLUSTERS)}"
        return usable

    def play(
        self,
        scenario: Scenario,
        cluster: ClusterSpec,
        policy: Policy | None = None,
        predictor: Predictor | None = None,
    ) -> Result:
        """One run, of a new policy and a new predictor unless they are given.

        If instances share requests by this policy, the engine has what they need.
        """
        policy = policy or self.new_policy()
        return simulate(
            scenario.workload,
            cluster,
            MODEL,
            TIMING,
            engine_for_spans(scenario.engine) if overrides(policy, "span") else scenario.engine,
            policy,
            predictor or self.new_predictor(),
            seed=7,
        )

    def played_if_it_can(self, scenario: Scenario, cluster: ClusterSpec, policy: Policy | None = None) -> Result | None:
        """The run; None if the engine's options and the batching mode of the policy exclude each other."""
        try:
            return self.play(scenario, cluster, policy)
        except InputError as refusal:
            if "do not go together" not in str(refusal):
                raise
            return None
