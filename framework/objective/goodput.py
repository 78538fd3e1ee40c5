"""What a run is measured for: one figure, and the run behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.bound.bound import (
    NOT_KNOWN,
    Bound,
    any_plan,
    any_role,
    any_stream,
    bound,
    shortest_programs_s,
    shortest_time_s,
)
from framework.metrics.parts import Seconds, by_length, require_edges
from framework.metrics.request_table import counted, is_counted
from framework.metrics.service.programs import program_slowdowns
from framework.metrics.service.tenants import by_tenant
from framework.metrics.slo import Slo
from framework.metrics.slowdown import alone_s
from framework.metrics.summary import Evaluation, evaluate
from framework.objective.experiment import Experiment
from framework.policy.base import Policy, overrides
from framework.result import Result
from framework.system.cluster import ClusterSpec
from framework.workload import chosen

Progress = Callable[[int, int], None]  # (done, total)


@dataclass(frozen=True)
class Measurement:
    """The result of an objective: its figure, and the run behind it.

    The evaluation's summary also has the objective's own keys. `notes`: lines for a reader, in order. `probes`: one row
    for each setting that was tried, in order; None for a single run.
    """

    value: float
    result: Result
    evaluation: Evaluation
    slo: Slo
    notes: tuple[str, ...] = ()
    probes: pl.DataFrame | None = None


class Objective(ABC):
    """A figure of an experiment, and how it is found."""

    key: ClassVar[str]  # key of the summary

    @abstractmethod
    def measure(self, experiment: Experiment, progress: Progress | None = None) -> Measurement:
        """Run the experiment as often as needed. Raises InputError if there is no such figure."""


@dataclass(frozen=True)
class Goodput(Objective):
    """Good requests per second of one run at the rate of its trace.

    The summary's `buckets` distinguish requests by the length of their prompts, at `prompt_edges_tokens`
    (`framework.metrics.parts.by_length`).
    """

    key: ClassVar[str] = "goodput_rps"

    prompt_edges_tokens: Sequence[int] = (512, 4096)

    def __post_init__(self) -> None:
        require_edges("objective.prompt_edges_tokens", self.prompt_edges_tokens)

    def measure(self, experiment: Experiment, progress: Progress | None = None) -> Measurement:
        result = experiment.run(progress)
        evaluation = evaluated(experiment, result)
        seconds = Seconds(evaluation.summary["duration"], evaluation.summary["window_s"])
        buckets = by_length(counted(evaluation.requests), self.prompt_edges_tokens, seconds)
        evaluation = replace(evaluation, summary=evaluation.summary | {"buckets": buckets})
        return Measurement(evaluation.summary[self.key], result, evaluation, experiment.slo)


def judged(experiment: Experiment, result: Result) -> Evaluation:
    """The evaluation of a run without its bound."""
    evaluation = evaluate(result, experiment.slo, partial(shortest_s, experiment, result))
    if result.workload.tenant is None:
        return evaluation
    seconds = Seconds(evaluation.summary["duration"], evaluation.summary["window_s"])
    pool = result.cluster.pools[result.cluster.entrance]
    row = experiment.timing.row(experiment.model, pool.gpu, pool.parallelism)
    first_s, later_s = alone_s(row, result.workload.input_tokens, result.workload.output_tokens)
    fairness = by_tenant(result, counted(evaluation.requests), seconds, first_s + later_s)
    return replace(evaluation, summary=evaluation.summary | fairness)


def evaluated(experiment: Experiment, result: Result) -> Evaluation:
    """The evaluation of a run, with its goodput and the bound of every schedule (`framework.bound.bound`).

    The summary gets `goodput_bound`, `share_of_bound` (None if no request can be good) and `bound_limit`; `split` if
    that of the cluster is automatic; and the slowdowns of programs (`framework.metrics.service.programs`).
    """
    best = bound_of(experiment)
    evaluation = judged(experiment, result)
    goodput_rps = evaluation.summary["goodput_rps"]
    added = {
        "goodput_bound": best.goodput if np.isfinite(best.goodput) else None,
        "share_of_bound": best.share(goodput_rps) if 0 < best.goodput < np.inf else None,
        "bound_limit": best.limit,
    }
    split = {} if experiment.cluster.split is None else {"split": experiment.cluster.split.figures()}
    return replace(evaluation, summary=evaluation.summary | added | split | _slowdowns(experiment, result, evaluation))


def _slowdowns(experiment: Experiment, result: Result, evaluation: Evaluation) -> dict[str, float | None]:
    """Of programs, relative to the least time that each takes if every GPU may do anything."""
    if result.workload.trigger is None or overrides(experiment.policy, "span"):
        return {}
    setting = experiment.setting
    own = replace(setting, workload=result.workload, cluster=any_role(setting.cluster))
    return program_slowdowns(result, is_counted(evaluation.requests), shortest_programs_s(own))


def bound_of(experiment: Experiment) -> Bound:
    """The bound of every schedule, on the cluster as the policy may use it; inf if instances share requests."""
    if overrides(experiment.policy, "span"):
        count = len(experiment.workload)
        return Bound(count, count, np.inf, np.ones(count, np.bool_), NOT_KNOWN)
    return bound(replace(experiment.setting, cluster=_as_planned(experiment.policy, experiment.setting.cluster)))


def shortest_s(experiment: Experiment, result: Result, some: NDArray[np.bool_]) -> float:
    """The least time in which any policy can serve `some` (N,) of a run's requests, if every GPU may do anything.

    0 if instances share requests, of which no such time is known.
    """
    if overrides(experiment.policy, "span"):
        return 0.0
    setting = experiment.setting
    own = replace(setting, workload=chosen(result.workload, some), cluster=any_role(setting.cluster))
    return shortest_time_s(own)


def _as_planned(policy: Policy, spec: ClusterSpec) -> ClusterSpec:
    """The laid-out cluster on which a bound holds for `policy`, which may plan the steps of instances itself."""
    if policy.changes_roles:
        spec = any_role(spec)
    if policy.shares_gpus:
        return any_stream(spec)
    plans = any(
        getattr(type(policy), hook) is not getattr(Policy, hook)
        for hook in ("batching", "on_tick", "decide", "split_at")
    )
    return any_plan(spec) if plans else spec
