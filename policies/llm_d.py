"""Endpoints chosen by filters, scorers with weights and a picker (llm-d's inference scheduler, the endpoint picker of
the Gateway API Inference Extension).

A scheduling profile filters the instances, adds up their weighted scores, each from 0 to 1, and picks one. Without a
file the profile is the extension's default (config/charts/inferencepool): `queue-scorer` and
`kv-cache-utilization-scorer` of weight 2, `prefix-cache-scorer` of weight 3, `max-score-picker`. `policy.profile` names
a file with an `EndpointPickerConfig`. Of several profiles, `prefill` chooses where a prompt is computed and `decode`
where it decodes on disaggregated instances, which both use a profile that is alone.

Simplified: a request that filters leave no instance for is rejected (`no endpoint`), unless it was preempted or dropped
by a crash. llm-d picks the instance to decode first, and one to prefill only if enough of the prompt is not cached.
Steps are unified, as in `vllm_v1`. The queue before the endpoint picker is `gateway=flow_control`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from framework.checks import Whole, checked
from framework.engine.setup.config import Batching
from framework.errors import InputError
from framework.policy import Cluster, Policy, Request
from framework.policy.view import Instances
from framework.system.cluster import ClusterSpec
from policies._endpoint_profiles import Profile, read_profiles
from policies._endpoints import Choice

_DEFAULT: Mapping[str, Any] = {
    "plugins": [{"type": f"{name}-scorer"} for name in ("queue", "kv-cache-utilization", "prefix-cache")],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "queue-scorer", "weight": 2},
                {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
                {"pluginRef": "prefix-cache-scorer", "weight": 3},
            ],
        }
    ],
}


class LlmD(Policy):
    """`profile`: a YAML file, or its content; `seed` of the random pickers."""

    batching_mode: ClassVar[Batching | None] = "unified"

    @checked("policy.")
    def __init__(self, profile: str | Mapping[str, Any] | None = None, seed: Whole = 0) -> None:
        self.profiles = read_profiles(_DEFAULT if profile is None else profile)
        self._generator = np.random.default_rng(seed)
        self._chosen: dict[int, int] = {}  # where arriving requests go

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        if any(pool.role == "decode" for pool in spec.pools):
            self._of("decode")
            vars(self)["route_decode"] = self._route_decode
        self._of("prefill")
        return super().layout(spec)

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        chosen = self._pick("prefill", request, cluster, cluster.prefill)
        if chosen is None:
            return "no endpoint"
        self._chosen[request.id] = chosen
        return True

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        chosen = self._chosen.pop(request.id, None)
        return self._anyway("prefill", request, cluster, cluster.prefill) if chosen is None else chosen

    def _route_decode(self, request: Request, cluster: Cluster) -> int:
        return self._anyway("decode", request, cluster, cluster.decode)

    def _anyway(self, phase: str, request: Request, cluster: Cluster, pool: Instances) -> int:
        chosen = self._pick(phase, request, cluster, pool)
        return pool.argmin(pool.queued + pool.running) if chosen is None else chosen

    def _pick(self, phase: str, request: Request, cluster: Cluster, pool: Instances) -> int | None:
        """The instance for a phase of the request; None if filters leave none."""
        profile, choice = self._of(phase), Choice(request, cluster, pool, np.arange(len(pool)))
        position = profile.pick(choice, self._generator) if len(choice) else None
        if position is None:
            return None
        profile.sent(choice, int(pool.ids[position]))
        return int(pool.ids[position])

    def _of(self, phase: str) -> Profile:
        """The profile of a phase: the one of that name, or the only one."""
        if phase in self.profiles or len(self.profiles) == 1:
            return self.profiles.get(phase) or next(iter(self.profiles.values()))
        names = ", ".join(self.profiles)
        raise InputError(f"policy.profile has the profiles {names}; it needs one alone, or prefill and decode")
