"""Changes of an experiment, each of which takes one cause of lost goodput away.

A change returns the experiment without the cause, and None where the cause cannot be there. It is given what was seen
of the run that lost the goodput.
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
)
from framework.engine.durations.speculation import Speculation
from framework.engine.parallel.sm_sharing import Sharing
from framework.objective.experiment import Experiment
from framework.policy.base import Policy, decode_least_kv, lay_out, overrides, prefill_least_queued
from framework.policy.predictor import Predictor
from framework.policy.view import Cluster
from framework.system.cluster import ClusterSpec, LinkSpec
from framework.system.faults import Faults

FASTER = 10.0  # times as fast as it is counts as removed
OFTEN, VERY_OFTEN = 10.0, 100.0  # times as many ticks
_ENDLESS_BYTES_S = 1e18
_NO_LIMIT_S = 1e6  # a TTFT limit, as a key of a queue, that stands for none
_MOST_TICKS = 5_000  # most ticks of a run


@dataclass(frozen=True)
class Seen:
    """How long a run lasted, and the `decodes` that its steps had on average."""

    duration_s: float
    decodes: float


Change = Callable[[Experiment, Seen], Experiment | None]


def fresh(experiment: Experiment) -> Experiment:
    """The experiment with a policy and a predictor that have served no run."""
    return experiment.on(experiment.workload)


# --- step times -------------------------------------------------------------------------------------------------------


def prefill_is_fast(experiment: Experiment, seen: Seen) -> Experiment:
    """Prefills ten times as fast."""
    of_role: dict[str, RowChange] = {"prefill": partial(all_faster, times=FASTER), "decode": unchanged}
    return _retimed(experiment, of_role, partial(prefill_faster, times=FASTER, decodes=seen.decodes))


def decode_is_fast(experiment: Experiment, seen: Seen) -> Experiment:
    """Decodes ten times as fast."""
    of_role: dict[str, RowChange] = {"decode": partial(all_faster, times=FASTER), "prefill": unchanged}
    return _retimed(experiment, of_role, partial(decode_faster, times=FASTER, decodes=seen.decodes))


def contexts_are_fast(experiment: Experiment, seen: Seen) -> Experiment:
    """Contexts read ten times as fast by decodes."""
    return _retimed(experiment, {}, partial(context_faster, times=FASTER))


def host_is_free(experiment: Experiment, seen: Seen) -> Experiment | None:
    """No work of the server in addition to the kernels of steps."""
    rows = [experiment.timing.row(experiment.model, pool.gpu, pool.parallelism) for pool in laid_out(experiment).pools]
    if all(without_host(row) == row for row in rows):
        return None
    return _retimed(experiment, {}, without_host)


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
    """KV memory that holds all tokens of the run at once, on each instance."""
    workload, engine = experiment.workload, experiment.engine
    tokens = int(workload.input_tokens.sum() + workload.output_tokens.sum())
    endless = 2 * tokens + engine.block_tokens * (len(workload) + 1)
    return replace(fresh(experiment), engine=replace(engine, kv_tokens=max(endless, engine.kv_tokens or 0)))


def batch_is_endless(experiment: Experiment, seen: Seen) -> Experiment:
    """The experiment with as many requests on an instance at once as there is memory for."""
    pools = tuple(replace(pool, max_batch=None) for pool in experiment.cluster.pools)
    engine = replace(experiment.engine, max_batch=max(experiment.engine.max_batch, len(experiment.workload)))
    return replace(fresh(experiment), cluster=replace(experiment.cluster, pools=pools), engine=engine)


def network_is_free(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Links without latency and with endless bandwidth."""
    spec = laid_out(experiment)
    if spec.instances < 2:
        return None
    pools = tuple(replace(pool, link_bytes_s=_ENDLESS_BYTES_S) for pool in experiment.cluster.pools)
    return replace(fresh(experiment), cluster=replace(experiment.cluster, pools=pools, link=LinkSpec(_ENDLESS_BYTES_S)))


# --- steps ------------------------------------------------------------------------------------------------------------


def phases_are_apart(experiment: Experiment, seen: Seen) -> Experiment | None:
    """On instances that prefill and decode each phase has steps of its own, as fast as if the other was not there."""
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
    """Nothing drafted."""
    if experiment.engine.speculation.most == 0:
        return None
    return replace(fresh(experiment), engine=replace(experiment.engine, speculation=Speculation()))


def ranks_are_even(experiment: Experiment, seen: Seen) -> Experiment | None:
    """All ranks of an instance with an equal share of its work."""
    if not any(pool.has_ranks for pool in laid_out(experiment).pools):
        return None
    pools = tuple(replace(pool, rank_choice="even") for pool in experiment.cluster.pools)
    return replace(fresh(experiment), cluster=replace(experiment.cluster, pools=pools))


# --- decisions --------------------------------------------------------------------------------------------------------


def routing_is_by_load(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Prompts to where the fewest tokens wait, decodes to where the least KV is held."""
    policy = experiment.policy
    if laid_out(experiment).instances < 2:
        return None
    if policy.route_prefill is prefill_least_queued and policy.route_decode is decode_least_kv:
        return None
    by_load = {"route_prefill": prefill_least_queued}
    if policy.route_decode is not Policy.route_decode:  # asked of some policies only where they override it
        by_load["route_decode"] = decode_least_kv
    return _deciding(experiment, lambda one: vars(one).update(by_load))


def order_is_by_deadline(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Queues read by the time at which the TTFT limit of each request ends."""
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
    """`often` times as many ticks, but no more in all than can be afforded."""
    policy = experiment.policy
    if policy.tick_s is None or not overrides(policy, "on_tick"):
        return None
    tick_s = max(policy.tick_s / often, seen.duration_s / _MOST_TICKS)
    return _deciding(experiment, lambda one: vars(one).update(tick_s=tick_s)) if tick_s < policy.tick_s else None


def changes_take_no_time(experiment: Experiment, seen: Seen) -> Experiment | None:
    """Instances that start, and change their roles, at once."""
    engine = experiment.engine
    if engine.start_s == engine.role_change_s == 0 or not experiment.policy.changes_roles:
        return None
    return replace(fresh(experiment), engine=replace(engine, start_s=0.0, role_change_s=0.0))


def nothing_fails(experiment: Experiment, seen: Seen) -> Experiment | None:
    """No instance crashes or is slow, and no network fails."""
    if not experiment.engine.faults.schedule(laid_out(experiment)).events:
        return None
    return replace(fresh(experiment), engine=replace(experiment.engine, faults=Faults()))


def all_are_admitted(experiment: Experiment, seen: Seen) -> Experiment | None:
    """No request turned away on its arrival."""
    if not overrides(experiment.policy, "admit"):
        return None
    return _deciding(experiment, lambda one: vars(one).update(admit=lambda request, cluster: True))


def laid_out(experiment: Experiment) -> ClusterSpec:
    """The cluster as the policy lays it out."""
    policy, _ = experiment.renew()
    return lay_out(policy, experiment.cluster)


def _deciding(experiment: Experiment, change: Callable[[Policy], None]) -> Experiment:
    """The experiment with a policy that has been changed so, as has every renewed one."""

    def renew() -> tuple[Policy, Predictor | None]:
        policy, predictor = experiment.renew()
        change(policy)
        return policy, predictor

    return fresh(replace(experiment, renew=renew))
