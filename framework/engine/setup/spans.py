"""What does not go together with spans; docs/spans.md has the reasons."""

from __future__ import annotations

from dataclasses import replace

from framework.engine.durations.speculation import Speculation
from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.policy.base import Policy, overrides
from framework.system.cluster import ClusterSpec
from framework.system.model import Model

_ALONE = ("route_decode", "split_at", "fetch_prefix", "select")  # hooks that decide what a span decides


def require_what_spans_need(policy: Policy, cluster: ClusterSpec, engine: EngineConfig, model: Model) -> None:
    """Raise InputError, one line, if the policy gives requests spans and something else has no meaning with them."""
    if not overrides(policy, "span"):
        return
    conflicts = [*_of_policy(policy), *_of_instances(cluster, engine), *_of_engine(cluster, engine, model)]
    for applies, what, remedy in conflicts:
        if applies:
            raise InputError(
                f"policy {policy.name}: instances that share requests and {what} do not go together; {remedy}"
            )


def engine_for_spans(engine: EngineConfig) -> EngineConfig:
    """The options of an engine without those that do not go together with spans."""
    return replace(
        engine,
        prefix_cache=False,
        prefix_stores=PrefixStores(),
        asynchronous=False,
        step_order="decodes_first",
        preemption="recompute",
        speculation=Speculation(),
        output_reserve=OutputReserve(),
    )


Conflict = tuple[bool, str, str]  # whether it applies, what conflicts, what to do about it


def _of_policy(policy: Policy) -> list[Conflict]:
    own = [(overrides(policy, hook), f"the hook {hook}", f"leave out {hook} or span") for hook in _ALONE]
    return [
        *own,
        (policy.changes_roles, "changes of role", "leave out changes_roles or span"),
        (policy.shares_gpus, "plans with concurrent prefills", "leave out shares_gpus or span"),
    ]


def _of_instances(cluster: ClusterSpec, engine: EngineConfig) -> list[Conflict]:
    pools = cluster.pools
    return [
        (
            any(pool.role != "mixed" for pool in pools),
            "instances that only prefill, only decode or are off",
            "choose cluster=mixed cluster.spare=0",
        ),
        (
            any(pool.parallelism.dp > 1 or pool.parallelism.pp > 1 for pool in pools),
            "data-parallel ranks and pipeline stages",
            "set cluster.dp=1 cluster.pp=1",
        ),
        (
            any(engine.batching_of(pool) == "concurrent" for pool in pools),
            "concurrent prefills",
            "set engine.batching=decode_first",
        ),
        (
            any(pool.reserve_tokens is not None for pool in pools),
            "instances that reserve KV for each request",
            "leave out reserve_tokens",
        ),
    ]


def _of_engine(cluster: ClusterSpec, engine: EngineConfig, model: Model) -> list[Conflict]:
    faults = engine.faults.schedule(cluster)
    hangs = any(event.what == "hang" for event in faults.events)
    return [
        (bool(engine.prefix_cache), "a prefix cache", "set engine.prefix_cache=false"),
        (engine.asynchronous, "asynchronous scheduling", "set engine.asynchronous=false, or server=none"),
        (engine.step_order == "admission", "engine.step_order=admission", "set engine.step_order=decodes_first"),
        (engine.preemption == "swap", "engine.preemption=swap", "set engine.preemption=recompute"),
        (engine.speculation.most > 0, "speculation", "set engine/speculation=none"),
        (engine.output_reserve.ratio != 0, "an output reserve", "set engine/output_reserve=none"),
        (bool(faults.losses(cluster)), "instances that lose GPUs", "leave gpus out of engine.faults"),
        (hangs, "crashes that are detected late", "set detected_after_s=0"),
        (model.linear is not None, f"the states of linear attention of {model.name}", "choose another model"),
    ]
