"""An upper bound on goodput: what no schedule can beat on the same cluster, requests, step times, engine and SLO.

Of three bounds the least holds. Requests that cannot keep the SLO even alone on an idle cluster are never good
(`bound_requests`). Prompts must be prefilled between arrival and deadline, for which the GPUs have only so much time
(`bound_windows`). And all that good requests need must fit into the time that the run takes (`bound_fluid`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framework.bound.demand import demand_of, least_chain_s, most_started, use_names
from framework.bound.fluid import Fluid, least_duration, most_good
from framework.bound.requests import Needs, Pool, Setting, least_needs, make_pools
from framework.engine.config import EngineConfig
from framework.metrics.slo import Slo
from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.model import Model
from framework.timing.table import Timing
from framework.workload import Load, Workload, within_context

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ROUNDING = 1e-6
_NO_BUDGET = 10**12
_ALONE, _BURSTS = "latency alone", "prefill GPU time in bursts"
_TIMES = {"prefill": "prefill GPU time", "decode": "decode GPU time", "mixed": "GPU time", "off": "GPU time"}


@dataclass(frozen=True)
class Bound:
    """What no schedule can beat.

    `good` of `offered` requests at most, and `goodput` a second of a run, or of `duration_s` where a run takes less:
    only one that rejects what could be served does. `alone` (N,): which requests could keep the SLO alone. `limit`:
    what `goodput` comes from.
    """

    good: int
    offered: int
    duration_s: float
    goodput: float
    alone: Flags
    limit: str

    @property
    def attainment(self) -> float:
        return self.good / self.offered

    def share(self, goodput: float) -> float:
        """A goodput as a share of the bound; 1 where nothing can be good."""
        return goodput / self.goodput if self.goodput > 0 else 1.0

    def describe(self, goodput: float) -> str:
        """For a reader: "91 % of what any schedule could reach (prefill GPU time)"."""
        return f"{100 * self.share(goodput):.0f} % of what any schedule could reach ({self.limit})"


def any_plan(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster for a policy that forms steps by plans of its own: budgets without limit, prompts cut at will."""
    pools = [replace(pool, token_budget=_NO_BUDGET, batching="decode_first") for pool in cluster.pools]
    return replace(cluster, pools=tuple(pools))


def any_stream(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster for a policy that lets prefills and decodes share GPUs by plan, in a stream each.

    No stream is faster than alone: two instances can do all that the two streams of one do.
    """
    return any_plan(replace(cluster, pools=tuple(_doubled(pool) for pool in cluster.pools)))


def _doubled(pool: PoolSpec) -> PoolSpec:
    return replace(pool, instances=2 * pool.instances)


def streams_apart(cluster: ClusterSpec, engine: EngineConfig) -> ClusterSpec:
    """Two instances for each whose prefills and decodes share its GPUs as configured."""
    sharing = [(pool.batching or engine.batching) == "concurrent" for pool in cluster.pools]
    pools = [_doubled(pool) if shares else pool for pool, shares in zip(cluster.pools, sharing, strict=True)]
    return replace(cluster, pools=tuple(pools))


def any_role(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster for a policy that changes roles: every instance may do anything at any time, by any plan.

    The pool at which requests arrive comes first, as the time that they spend there is its own.
    """
    first = cluster.entrance
    pools = [cluster.pools[first], *cluster.pools[:first], *cluster.pools[first + 1 :]]
    return any_plan(replace(cluster, pools=tuple(replace(pool, role="mixed") for pool in pools)))


def bound(
    workload: Workload,
    cluster: ClusterSpec,
    model: Model,
    timing: Timing,
    engine: EngineConfig,
    slo: Slo,
    load: Load,
) -> Bound:
    """The bound for a cluster as the policy lays it out. Raises InputError where the model does not fit it.

    It holds for every policy that leaves token budgets and batching as they are configured; for one that plans steps
    itself (`Policy.batching`, `SetTokenBudget`) or cuts prompts (`Policy.split_at`) give `any_plan(cluster)`, for one
    that changes roles `any_role(cluster)`, for one that shares GPUs `any_stream` of that. `Bound.duration_s` is the
    time from the first arrival to the last, or, where arrivals depend on the run (sessions, closed loads), the least
    time to serve all.
    """
    workload = within_context(workload, model.max_context)
    setting = Setting(workload, streams_apart(cluster, engine), model, timing, engine, slo, load)
    pools = make_pools(setting)
    needs = least_needs(setting, pools)
    find = _Search(setting, pools, needs)
    if not needs.good_alone.any():
        return find.nothing()
    return find.recorded() if setting.arrival_s is not None else find.dependent()


class _Search:
    """The best that each of the three bounds leaves."""

    def __init__(self, setting: Setting, pools: Sequence[Pool], needs: Needs) -> None:
        self._setting, self._pools, self._needs = setting, pools, needs
        self._steps = [pool.steps for pool in pools]
        self._instances = np.array([float(pool.spec.instances) for pool in pools])

    def nothing(self) -> Bound:
        """Where no request can be good."""
        arrival_s = self._setting.arrival_s
        duration_s = self._least()[0] if arrival_s is None else float(arrival_s[-1] - arrival_s[0])
        return self._bound(0, duration_s, 0.0, _ALONE)

    def recorded(self) -> Bound:
        """Where arrivals are recorded: the more requests are to be completed, the longer the run."""
        arrival_s, alone = self._setting.arrival_s, self._needs.good_alone
        assert arrival_s is not None
        since_s = arrival_s - arrival_s[0]
        ends_s = np.sort((since_s + self._needs.total_s)[alone])
        started = most_started(self._setting, self._pools, self._needs)
        latest_s = float((since_s + self._latest_s())[alone].max())
        return self._best(np.maximum(ends_s[:started], since_s[-1]), float(since_s[-1]), latest_s, "arrivals")

    def dependent(self) -> Bound:
        """Where arrivals depend on the run, which takes at least what serving all requests takes."""
        least_s, limit = self._least()
        ends_s = np.full(np.count_nonzero(self._needs.good_alone), least_s)
        return self._best(ends_s, least_s, np.inf, limit)

    def _best(self, ends_s: Floats, duration_s: float, latest_s: float, limit: str) -> Bound:
        """`ends_s` (G,): least time for each number of good requests, but for what the fluid program says of it.

        The limit is what costs most good requests; the one given where all can be good.
        """
        counts, good = np.arange(1.0, len(ends_s) + 1), len(ends_s)
        demand = demand_of(self._setting, self._pools, self._needs, self._needs.good_alone)
        fluid, needed_s = most_good(demand, self._steps, self._instances, ends_s[-1]), ends_s
        if fluid is not None:
            needed_s = np.maximum(ends_s, fluid.least_s(counts * (1 - _ROUNDING)))
            if np.isfinite(latest_s):
                good = min(good, int(fluid.most(max(latest_s, duration_s)) * (1 + _ROUNDING) + _ROUNDING))
        at = len(counts) - 1 - int(np.argmax((counts / needed_s)[::-1]))
        alone = int(np.count_nonzero(self._needs.good_alone))
        losses: dict[str, float] = {_ALONE: len(self._needs.good_alone) - alone, _BURSTS: alone - len(ends_s)}
        if fluid is not None:
            losses[self._scarce(fluid)] = len(ends_s) - fluid.most(needed_s[at])
        worst = max(losses, key=losses.__getitem__)
        limit = worst if losses[worst] > _ROUNDING * alone else limit
        return self._bound(good, duration_s, float(counts[at] / needed_s[at]), limit)

    def _bound(self, good: int, duration_s: float, goodput: float, limit: str) -> Bound:
        return Bound(good, len(self._setting.workload), duration_s, goodput, self._needs.good_alone, limit)

    def _least(self) -> tuple[float, str]:
        """Least time to serve all requests that the engine does not reject, and what it comes from."""
        least_s, limit = least_chain_s(self._setting, self._needs), _ALONE
        if self._needs.served.any():
            demand = demand_of(self._setting, self._pools, self._needs, self._needs.served)
            fluid = least_duration(demand, self._steps, self._instances)
            if fluid.least_of_all_s() > least_s:
                least_s, limit = fluid.least_of_all_s(), self._scarce(fluid)
        return least_s, limit

    def _latest_s(self) -> Floats:
        """From sending to the last token of a good request at the latest."""
        later = self._setting.workload.output_tokens - 1
        decoding_s = np.where(later > 0, self._setting.limits_s("tpot_s"), 0.0) * later
        return self._setting.limits_s("ttft_s") + decoding_s

    def _scarce(self, fluid: Fluid) -> str:
        """What most of the prices are paid for."""
        at = int(np.argmax(fluid.earned))
        if at >= len(self._pools):
            return use_names(self._setting, self._pools, self._needs)[at - len(self._pools)]
        pool = self._pools[at]
        scarce = pool.steps.scarce(pool.steps.own(fluid.prices), fluid.duals.second[at])
        if scarce is None and fluid.duals.pace > 0 and pool.spec.role != "prefill":
            return "TPOT"
        return scarce or _TIMES[pool.spec.role]
