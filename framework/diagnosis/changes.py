"""Changes of an experiment, each of which removes one cause of lost goodput.

A change returns the experiment without the cause, and None if the cause cannot be there. It receives what was seen of
the run that lost the goodput.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.diagnosis.phase_times import (
    ChangedTiming,
    RowChange,
    all_faster,
    context_faster,
    decode_faster,
    prefill_faster,
    unchanged,
    without_host,
    without_work_between,
)
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import Tier
from framework.engine.parallel.sm_sharing import Sharing
from framework.objective.experiment import Experiment
from framework.policy.base import Policy, overrides
from framework.policy.decision import decode_least_kv, prefill_least_queued
from framework.policy.laying_out import lay_out
from framework.policy.predictor import Predictor
from framework.policy.view import Cluster
from framework.system.cluster import ClusterSpec, LinkSpec
from framework.system.faults import Faults
from framework.system.start_cost import StartCost

FASTER = 10.0  # this many times as fast counts as removed
OFTEN, VERY_OFTEN = 10.0, 100.0  # times as many ticks
_ENDLESS_BYTES_S = 1e18
_NO_LIMIT_S = 1e6  # TTFT limit, as a key of a queue, that means no limit
_MOST_TICKS = 5_000  # most ticks of a run


@dataclass(frozen=True)
class Seen:
    """The duration of a run, and the mean number of `decodes` in its steps."""

    duration_s: float
    decodes: float


Change = Callable[[Experiment, Seen], Experiment | None]


def fresh(experiment: Experiment) -> Experiment:
    """The experiment with a policy and a predictor that have served no run."""
    return experiment.on(experiment.workload)


# --- step times -------------------------------------------------------------------------------------------------------


def prefill_is_fast(experiment: Experiment, seen: Seen) -> Experiment:
    """Make prefills ten times as fast."""
    of_role: dict[str, RowChange] = {"prefill": partial(all_faster, times=FASTER), "decode": unchanged}
    return _retimed(experiment, of_role, partial(prefill_faster, times=FASTER, decodes=seen.decodes))


def decode_is_fast(experiment: Experiment, seen: Seen) -> Experiment:
    """Make decodes ten times as fast."""
    of_role: dict[str, RowChange] = {"decode": partial(all_faster, times=FASTER), "prefill": unchanged}
    return _retimed(experiment, of_role, partial(decode_faster, times=FASTER, decodes=seen.decodes))


def contexts_are_fast(experiment: Experiment, seen: Seen) -> Experiment:
    """Let decodes read contexts ten times as fast."""
    return _retimed(experiment, {}, partial(context_faster, times=FASTER))


def host_is_free(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Remove the server's work in addition to the kernels of steps."""
    rows = [experiment.timing.row(experiment.model, pool.gpu, pool.parallelism) for pool in laid_out(experiment).pools]
    change = without_host if experiment.engine.asynchronous else without_work_between
    if all(change(row) == row for row in rows):
        return None
    return _retimed(experiment, {}, change)


def _retimed(experiment: Experiment, of_role: dict[str, RowChange], otherwise: RowChange) -> Experiment:
    """The experiment with the step times of each pool changed by its role; roles that change count as no role."""
    cluster, policy = experiment.cluster, experiment.policy
    roles = {} if policy.changes_roles else {pool.name: pool.role for pool in laid_out(experiment).pools}
    changes: dict[str, Any] = {}
    pools = []
    for pool in cluster.pools:
        gpu = replace(pool.gpu, name=f"{pool.gpu.name} of {pool.name}")
        changes[gpu.name] = (pool.gpu, of_role.get(roles.get(pool.name, "mixed"), otherwise))
        pools.append(replace(pool, gpu=gpu))
    timing = ChangedTiming(experiment.timing, changes)
    return replace(fresh(experiment), cluster=replace(cluster, pools=tuple(pools)), timing=timing)


# --- memory and links -------------------------------------------------------------------------------------------------


def memory_is_endless(experiment: Experiment, seen: Seen) -> Experiment:
    """Give each instance KV memory for all tokens of the run at once."""
    workload, engine = experiment.workload, experiment.engine
    tokens = int(workload.input_tokens.sum() + workload.output_tokens.sum())
    endless = 2 * tokens + engine.block_tokens * (len(workload) + 1)
    return replace(fresh(experiment), engine=replace(engine, kv_tokens=max(endless, engine.kv_tokens or 0)))


def evicted_kv_comes_back(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Keep what instances evict in memory of their own without end, which they read in no time, where calls follow
    others.
    """
    engine = experiment.engine
    if experiment.workload.previous is None or not engine.prefix_cache:
        return None
    tiers = engine.prefix_stores.tiers or {"endless": Tier(write="back")}
    endless = {
        name: replace(
            tier, capacity_tokens=None, capacity_bytes=None, bandwidth_bytes_s=_ENDLESS_BYTES_S, latency_s=0.0
        )
        for name, tier in tiers.items()
    }
    stores = replace(engine.prefix_stores, tiers=endless)
    return replace(fresh(experiment), engine=replace(engine, prefix_stores=stores))


def batch_is_endless(experiment: Experiment, seen: Seen) -> Experiment:
    """Let each instance hold as many requests at once as there is memory for."""
    pools = tuple(replace(pool, max_batch=None) for pool in experiment.cluster.pools)
    engine = replace(experiment.engine, max_batch=max(experiment.engine.max_batch, len(experiment.workload)))
    return replace(fresh(experiment), cluster=replace(experiment.cluster, pools=pools), engine=engine)


def network_is_free(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Give links no latency and unlimited bandwidth."""
    spec = laid_out(experiment)
    if spec.instances < 2:
        return None
    pools = tuple(replace(pool, link_bytes_s=_ENDLESS_BYTES_S) for pool in experiment.cluster.pools)
    return replace(fresh(experiment), cluster=replace(experiment.cluster, pools=pools, link=LinkSpec(_ENDLESS_BYTES_S)))


# --- steps ------------------------------------------------------------------------------------------------------------


def phases_are_apart(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Give each phase its own steps on instances that prefill and decode, as fast as if the other phase were absent."""
    pools = laid_out(experiment).pools
    if not any(pool.role == "mixed" for pool in pools) or overrides(experiment.policy, "batching"):
        return None
    if any(pool.has_ranks or pool.group > 1 or pool.parallelism.pp > 1 for pool in pools):
        return None
    whole = {1: 1.0, 100: 1.0}
    sharing = Sharing(prefill_slowdown=whole, decode_slowdown=whole, contention=False)
    engine = replace(experiment.engine, sharing=sharing)
    apart = replace(fresh(experiment), engine=engine)
    mixed = {pool.name for pool in pools if pool.role == "mixed"}
    return replace(apart, cluster=_apart(apart.cluster, mixed))


def _apart(cluster: ClusterSpec, mixed: set[str]) -> ClusterSpec:
    """The cluster whose `mixed` pools have two streams."""
    pools = (replace(pool, batching="concurrent") if pool.name in mixed else pool for pool in cluster.pools)
    return replace(cluster, pools=tuple(pools))


def drafts_are_off(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Draft nothing."""
    if experiment.engine.speculation.most == 0:
        return None
    return replace(fresh(experiment), engine=replace(experiment.engine, speculation=Speculation()))


def ranks_are_even(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Give all ranks of an instance an equal share of its work."""
    if not any(pool.has_ranks for pool in laid_out(experiment).pools):
        return None
    pools = tuple(replace(pool, rank_choice="even") for pool in experiment.cluster.pools)
    return replace(fresh(experiment), cluster=replace(experiment.cluster, pools=pools))


# --- decisions --------------------------------------------------------------------------------------------------------


def routing_is_by_load(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Route prompts to the instance with the fewest waiting tokens, decodes to the one with the least KV."""
    policy = experiment.policy
    if laid_out(experiment).instances < 2:
        return None
    if policy.route_prefill is prefill_least_queued and policy.route_decode is decode_least_kv:
        return None
    by_load = {"route_prefill": prefill_least_queued}
    if policy.route_decode is not Policy.route_decode:  # some policies are asked only if they override it
        by_load["route_decode"] = decode_least_kv
    return _deciding(experiment, lambda one: vars(one).update(by_load))


def order_is_by_deadline(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Read queues by the time at which the TTFT limit of each request ends."""
    workload, slo = experiment.workload, experiment.slo
    limits_s = slo.limits_s("ttft_s", workload.slo_class, len(workload))
    if not np.isfinite(limits_s).any():
        return None
    if not overrides(experiment.policy, "prioritize") and np.all(limits_s == limits_s[0]):
        return None
    limits_s = np.minimum(limits_s, _NO_LIMIT_S)

    def deadline_s(queue: NDArray[np.int64], cluster: Cluster) -> Any:
        return cluster.requests.arrival_s[queue] + limits_s[queue]

    return _deciding(experiment, lambda one: vars(one).update(prioritize=deadline_s))


def ticks_are_frequent(experiment: Experiment, seen: Seen, often: float = OFTEN) -> Experiment | None:
    """Make `often` times as many ticks, up to an affordable total."""
    policy = experiment.policy
    if policy.tick_s is None or not overrides(policy, "on_tick"):
        return None
    tick_s = max(policy.tick_s / often, seen.duration_s / _MOST_TICKS)
    return _deciding(experiment, lambda one: vars(one).update(tick_s=tick_s)) if tick_s < policy.tick_s else None


def changes_take_no_time(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Let instances start, and change their roles, at once."""
    at_once = replace(experiment.engine, start_s=0.0, start=StartCost(), role_change_s=0.0)
    if experiment.engine == at_once or not experiment.policy.changes_roles:
        return None
    return replace(fresh(experiment), engine=at_once)


def nothing_fails(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Let no instance crash or be slow, and no network fail."""
    if not experiment.engine.faults.schedule(laid_out(experiment)).events:
        return None
    return replace(fresh(experiment), engine=replace(experiment.engine, faults=Faults()))


def all_are_admitted(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Turn no request away on its arrival."""
    if not overrides(experiment.policy, "admit"):
        return None
    return _deciding(experiment, lambda one: vars(one).update(admit=lambda request, cluster: True))


def laid_out(experiment: Experiment) -> ClusterSpec:
    """The cluster as the policy lays it out."""
    policy, _ = experiment.renew()
    return lay_out(policy, experiment.cluster)


def _deciding(experiment: Experiment, change: Callable[[Policy], None]) -> Experiment:
    """The experiment with a changed policy, and the same change in every renewed one."""

    def renew() -> tuple[Policy, Predictor | None]:
        policy, predictor = experiment.renew()
        change(policy)
        return policy, predictor

    return fresh(replace(experiment, renew=renew))
