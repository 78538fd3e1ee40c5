"""An upper bound on the goodput of any schedule, for the same cluster, requests, step times, engine and SLO.

The bound is the least of three. Requests that miss the SLO even alone on an idle cluster are never good
(`bound_requests`). Prompts must be prefilled between arrival and deadline, and the GPUs have limited time for this
(`bound_windows`). All work of good requests must fit into the time that the run takes (`bound_fluid`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framework.bound.chains import least_chain_s, least_program_s
from framework.bound.demand import demand_of, most_started, use_names
from framework.bound.fluid import Fluid, least_duration, most_good
from framework.bound.requests import Needs, Pool, least_needs, make_pools
from framework.bound.setting import Setting
from framework.engine.setup.config import EngineConfig
from framework.load import Window
from framework.metrics.clock import allowed_latency_s
from framework.system.cluster import ClusterSpec, PoolSpec
from framework.workload import within_context

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ROUNDING = 1e-6
_NO_BUDGET = 10**12
NOT_KNOWN = "none is known where instances share requests"
_ALONE, _BURSTS = "latency alone", "prefill GPU time in bursts"
_TIMES = {"prefill": "prefill GPU time", "decode": "decode GPU time", "mixed": "GPU time", "off": "GPU time"}


@dataclass(frozen=True)
class Bound:
    """An upper bound for every schedule.

    At most `good` of `offered` requests, and at most `goodput` a second of the clock of `framework.metrics.clock`.
    `alone` (N,): which requests could keep the SLO alone. `limit`: which limit sets `goodput`.
    """

    good: int
    offered: int
    goodput: float
    alone: Flags
    limit: str

    @property
    def attainment(self) -> float:
        return self.good / self.offered

    def share(self, goodput: float) -> float:
        """A goodput as a share of the bound; 1 if no request can be good."""
        return goodput / self.goodput if self.goodput > 0 else 1.0

    def describe(self, goodput: float) -> str:
        """The sentence for a reader: "91 % of what any schedule could reach (prefill GPU time)"."""
        return f"{100 * self.share(goodput):.0f} % of what any schedule could reach ({self.limit})"


def any_plan(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster for a policy that plans its own steps: no limit on budgets, and prompts may be cut anywhere."""
    pools = [replace(pool, token_budget=_NO_BUDGET, batching="decode_first") for pool in cluster.pools]
    return replace(cluster, pools=tuple(pools))


def any_stream(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster for a policy whose plans let prefills and decodes share GPUs, in one stream each.

    No stream is faster than alone, so two instances can do the work of the two streams of one instance."""
    return any_plan(replace(cluster, pools=tuple(_doubled(pool) for pool in cluster.pools)))


def _doubled(pool: PoolSpec) -> PoolSpec:
    return replace(pool, instances=2 * pool.instances)


def streams_apart(cluster: ClusterSpec, engine: EngineConfig) -> ClusterSpec:
    """The cluster with two instances for each one whose prefills and decodes share its GPUs as configured."""
    sharing = [engine.batching_of(pool) == "concurrent" for pool in cluster.pools]
    pools = [_doubled(pool) if shares else pool for pool, shares in zip(cluster.pools, sharing, strict=True)]
    return replace(cluster, pools=tuple(pools))


def any_role(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster for a policy that changes roles: every instance may do anything at any time, by any plan.

    The pool where requests arrive comes first, because that pool's host times apply to them.
    """
    first = cluster.entrance
    pools = [cluster.pools[first], *cluster.pools[:first], *cluster.pools[first + 1 :]]
    return any_plan(replace(cluster, pools=tuple(replace(pool, role="mixed") for pool in pools)))


def bound(setting: Setting) -> Bound:
    """The bound for a cluster as the policy lays it out. Raises InputError if the model does not fit it.

    It holds for every policy that keeps the configured token budgets and batching. For a policy that plans its own
    steps (`Policy.batching`, `SetTokenBudget`) or cuts prompts (`Policy.split_at`), give `any_plan(cluster)`. For one
    that changes roles, give `any_role(cluster)`. For one that shares GPUs, give `any_stream` of that cluster.
    """
    find, load = _search(setting), setting.load
    workload = within_context(setting.workload, setting.model.max_context)
    window, allowed_s = load.window(workload), allowed_latency_s(workload, setting.slo)
    if window is not None and window.offer_is_fixed:
        if window.length_s > allowed_s:
            return find.of_window(window.length_s, load.counted(workload, workload.arrival_s))
        if not np.isfinite(allowed_s):
            return find.of_run()
    shortest_s = shortest_time_s(replace(setting, cluster=any_role(setting.cluster)))
    if load.clients is None:
        return find.of_window(max(allowed_s, shortest_s), np.ones(len(workload), np.bool_))
    return find.of_load(window, shortest_s)


def sustained(setting: Setting, period_s: float) -> Bound:
    """The bound of a load that never ends: these requests again every `period_s`, with other prefixes each time.

    Of a trace played so often that its ends do not matter, `attainment` is the most that any schedule can keep, and
    `goodput` counts a period. Errors and the cluster are those of `bound`.
    """
    return _search(setting).of_period(period_s)


def shortest_time_s(setting: Setting) -> float:
    """The least time, from first request to last answer, to serve all requests that the engine does not reject.

    Errors and the cluster are those of `bound`.
    """
    return _search(setting).least()[0]


def shortest_programs_s(setting: Setting) -> Floats:
    """The least time of each program, from its first call to the end of its last, in the order of `Workload.openers`.

    Errors and the cluster are those of `bound`.
    """
    return _search(setting).programs_s()


def _search(setting: Setting) -> _Search:
    workload = within_context(setting.workload, setting.model.max_context)
    setting = replace(setting, workload=workload, cluster=streams_apart(setting.cluster, setting.engine))
    pools = make_pools(setting)
    return _Search(setting, pools, least_needs(setting, pools))


class _Search:
    """The best result that each of the three bounds allows."""

    def __init__(self, setting: Setting, pools: Sequence[Pool], needs: Needs) -> None:
        self._setting, self._pools, self._needs = setting, pools, needs
        self._steps = [pool.steps for pool in pools]
        self._instances = np.array([float(pool.spec.instances) for pool in pools])
        self._alone = int(np.count_nonzero(needs.good_alone))

    def of_window(self, window_s: float, counted: Flags) -> Bound:
        """The bound if trace, load and SLO fix the window and what is sent in it: attainment alone counts."""
        setting, arrival_s = self._setting, self._setting.arrival_s
        started, latest_s, limit = self._alone, np.inf, "arrivals"
        if arrival_s is not None and self._alone:
            started = most_started(setting, self._pools, self._needs)
            latest_s = float((arrival_s - arrival_s[0] + self._latest_s())[self._needs.good_alone].max())
        good, limit = self._most(started, latest_s, limit)
        good = min(good, int(np.count_nonzero(counted & self._needs.good_alone)))
        return self._bound(good, good / window_s, limit)

    def of_period(self, period_s: float) -> Bound:
        """The bound if the work of a period's good requests must fit into a period, on average over all."""
        has_times = self._setting.arrival_s is not None and self._alone > 0
        started = most_started(self._setting, self._pools, self._needs) if has_times else self._alone
        good, limit = self._most(started, period_s, "arrivals")
        return self._bound(good, good / period_s, limit)

    def of_load(self, window: Window | None, shortest_s: float) -> Bound:
        """The bound if clients send until the window is over, or until all is sent: at least `shortest_s`."""
        limit = self.least()[1] if self._alone else _ALONE
        everything = self._alone / shortest_s if shortest_s > 0 else 0.0
        if window is None:
            return self._bound(self._alone, everything, limit)
        latest_s = window.end_s + float(self._latest_s().max(where=self._needs.good_alone, initial=0.0))
        good, within = self._most(self._alone, latest_s, limit)
        if good / window.length_s <= everything:
            return self._bound(self._alone, everything, limit)
        return self._bound(self._alone, good / window.length_s, within)

    def of_run(self) -> Bound:
        """The bound if the end of the run decides; the run takes at least as long as serving all requests."""
        shortest_s, limit = self.least()
        arrival_s, alone = self._setting.arrival_s, self._needs.good_alone
        if not self._alone:
            return self._bound(0, 0.0, _ALONE)
        if arrival_s is None:
            return self._best(self._alone, shortest_s, np.inf, limit)
        since_s = arrival_s - arrival_s[0]
        started = most_started(self._setting, self._pools, self._needs)
        latest_s = max(float((since_s + self._latest_s())[alone].max()), shortest_s)
        return self._best(started, max(shortest_s, float(since_s[-1])), latest_s, limit)

    def _most(self, started: int, latest_s: float, limit: str) -> tuple[int, str]:
        """The most good requests, of those whose prompts can be `started`, if all have ended by `latest_s`; and what
        limits them, which is `limit` if all can be good.
        """
        if not self._alone:
            return 0, _ALONE
        losses: dict[str, float] = {_ALONE: len(self._needs.good_alone) - self._alone, _BURSTS: self._alone - started}
        good = started
        if np.isfinite(latest_s):
            demand = demand_of(self._setting, self._pools, self._needs, self._needs.good_alone)
            fluid = most_good(demand, self._steps, self._instances, latest_s)
            losses[self._scarce(fluid)] = started - fluid.most(latest_s)
            good = min(good, int(fluid.most(latest_s) * (1 + _ROUNDING) + _ROUNDING))
        return good, self._largest(losses, limit)

    def _best(self, started: int, least_s: float, latest_s: float, limit: str) -> Bound:
        """The best number of good requests, of those whose prompts can be `started`, in at least `least_s`.

        The limit is the one that costs the most good requests; `limit` if all can be good.
        """
        counts, good = np.arange(1.0, started + 1), started
        demand = demand_of(self._setting, self._pools, self._needs, self._needs.good_alone)
        fluid = most_good(demand, self._steps, self._instances, least_s)
        needed_s = np.maximum(least_s, fluid.least_s(counts * (1 - _ROUNDING)))
        if np.isfinite(latest_s):
            good = min(good, int(fluid.most(latest_s) * (1 + _ROUNDING) + _ROUNDING))
        at = len(counts) - 1 - int(np.argmax((counts / needed_s)[::-1]))
        losses: dict[str, float] = {
            _ALONE: len(self._needs.good_alone) - self._alone,
            _BURSTS: self._alone - started,
            self._scarce(fluid): started - fluid.most(needed_s[at]),
        }
        return self._bound(good, float(counts[at] / needed_s[at]), self._largest(losses, limit))

    def _largest(self, losses: Mapping[str, float], limit: str) -> str:
        """The limit that costs the most good requests; `limit` if none costs any."""
        worst = max(losses, key=losses.__getitem__)
        return worst if losses[worst] > _ROUNDING * self._alone else limit

    def _bound(self, good: int, goodput: float, limit: str) -> Bound:
        return Bound(good, len(self._setting.workload), goodput, self._needs.good_alone, limit)

    def least(self) -> tuple[float, str]:
        """Least time to serve all requests that the engine does not reject, and which limit sets it."""
        least_s, limit = least_chain_s(self._setting, self._needs), _ALONE
        if self._needs.served.any():
            demand = demand_of(self._setting, self._pools, self._needs, self._needs.served)
            fluid = least_duration(demand, self._steps, self._instances)
            if fluid.least_of_all_s() > least_s:
                least_s, limit = fluid.least_of_all_s(), self._scarce(fluid)
        return least_s, limit

    def programs_s(self) -> Floats:
        """Least times of programs, whatever else there is to serve."""
        return least_program_s(self._setting, self._needs)

    def _latest_s(self) -> Floats:
        """The latest possible time from sending to the last token of a good request."""
        later = self._setting.workload.output_tokens - 1
        decoding_s = np.where(later > 0, self._setting.limits_s("tpot_s"), 0.0) * later
        return self._setting.limits_s("ttft_s") + decoding_s

    def _scarce(self, fluid: Fluid) -> str:
        """The resource with the largest part of the prices."""
        at = int(np.argmax(fluid.earned))
        if at >= len(self._pools):
            return use_names(self._setting, self._pools, self._needs)[at - len(self._pools)]
        pool = self._pools[at]
        scarce = pool.steps.scarce(pool.steps.own(fluid.prices), fluid.duals.second[at])
        if scarce is None and fluid.duals.pace > 0 and pool.spec.role != "prefill":
            return "TPOT"
        return scarce or _TIMES[pool.spec.role]
