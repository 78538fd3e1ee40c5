"""Policies that serve fewer requests than they could, each so that some figure might look better for it.

Each is an honest policy, aggregated or disaggregated, but for one decision. They know what no policy may: the lengths
of outputs and when the load ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from framework.codes import OFF
from framework.metrics.slo import Slo
from framework.policy import Action, Plan, Policy, SetRole
from framework.policy.view import Cluster, Request
from framework.workload import Workload

NO = "turned away"


@dataclass(frozen=True)
class Known:
    """What a cheat knows: the requests, the limits by which they are judged, and when the load ends, on its clock."""

    workload: Workload
    slo: Slo
    end_s: float

    def output_tokens(self, request: Request) -> int:
        return int(self.workload.output_tokens[request.id])

    def is_long(self, request: Request, share: float) -> bool:
        """Whether its output is among this share of the longest."""
        return self.output_tokens(request) > float(np.quantile(self.workload.output_tokens, 1 - share))


class Cheat(Policy):
    """`known` is set on the class that a run's policy is made of."""

    known: ClassVar[Known]


class RejectsLate(Cheat):
    """Turns every third request away when its prompt has been computed."""

    def route_decode(self, request: Request, cluster: Cluster) -> int | str:
        return NO if request.id % 3 == 0 else least_kv(cluster)


class RejectsLongPrompts(Cheat):
    """Turns away the longest quarter of prompts."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return request.input_tokens <= float(np.quantile(self.known.workload.input_tokens, 0.75)) or NO


class RejectsLongOutputs(Cheat):
    """Turns away requests with the longest quarter of outputs."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return NO if self.known.is_long(request, 0.25) else True


class RejectsTheLongest(Cheat):
    """Turns away the few requests that would be the last to end."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return NO if self.known.is_long(request, 0.03) else True


class RejectsLongOutputsLate(Cheat):
    """Turns away requests with the longest quarter of outputs when their prompts have been computed."""

    def route_decode(self, request: Request, cluster: Cluster) -> int | str:
        return NO if self.known.is_long(request, 0.25) else least_kv(cluster)


class ServesTheFirst(Cheat):
    """Serves the first half, and turns away the rest."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return True if request.id < len(self.known.workload) // 2 else NO


class ServesSome(Cheat):
    """Serves every fourth request."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return True if request.id % 4 == 0 else NO


class NeverBegins(Cheat):
    """Lets no prompt begin once half of the load is over: what waits then waits for ever."""

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        late = cluster.now_s > self.known.end_s / 2
        return Plan(budget(instance, cluster), "decode_only" if late else self.batching_mode or "decode_first")


class HoldsDecodesBack(Cheat):
    """Computes prompts for as long as the load lasts, and decodes afterwards."""

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        return Plan(budget(instance, cluster), "prefill_first" if cluster.now_s < self.known.end_s else "decode_first")


class AnswersOnce(Cheat):
    """First tokens of all that wait come before any further token."""

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        return Plan(budget(instance, cluster), "prefill_first")


class AdmitsNothingAtTheEnd(Cheat):
    """Turns away what comes in the last fifth of the load."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return True if cluster.now_s < 0.8 * self.known.end_s else NO


class ShedsBeforeTheEnd(Cheat):
    """Turns requests away where others wait, in the second half of the load."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        waits = cluster.instances.queued_tokens.sum() > 4 * request.input_tokens
        return NO if waits and cluster.now_s > self.known.end_s / 2 else True


class RejectsWhatIsLate(Cheat):
    """Turns away those whose first token came too late to count, before they decode."""

    def route_decode(self, request: Request, cluster: Cluster) -> int | str:
        late = cluster.now_s - request.arrival_s > (self.known.slo.ttft_s or np.inf)
        return NO if late else least_kv(cluster)


class RejectsWhatWaits(Cheat):
    """Turns requests away where as much waits as one instance computes in the time to the first token."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return bool(cluster.instances.queued_tokens.min() < 20_000 * (self.known.slo.ttft_s or np.inf)) or NO


class TurnsGpusOff(Cheat):
    """Has one instance on while the load lasts, and all of them afterwards."""

    tick_s = 0.5
    changes_roles = True
    roles: ClassVar[tuple[str, ...]] = ("mixed", "prefill", "decode", "off")

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        lasting = cluster.now_s < self.known.end_s
        for i in range(1, len(cluster.instances)):
            is_off = cluster.instances.role[i] == OFF
            if lasting != is_off and cluster.instances.changing()[i] == 0:
                yield SetRole(i, "off" if lasting else "mixed")


EVERYWHERE: tuple[type[Cheat], ...] = (
    *(RejectsLate, RejectsLongPrompts, RejectsLongOutputs, RejectsTheLongest, RejectsLongOutputsLate, ServesTheFirst),
    *(ServesSome, NeverBegins, HoldsDecodesBack, AnswersOnce, AdmitsNothingAtTheEnd, ShedsBeforeTheEnd),
    *(RejectsWhatIsLate, RejectsWhatWaits),
)


def budget(instance: int, cluster: Cluster) -> int:
    """Tokens of a step, as the honest policy has them."""
    return int(cluster.instances.token_budget[instance])


def least_kv(cluster: Cluster) -> int:
    """Where the fewest KV tokens are held or on their way, of instances that decode."""
    able, held = cluster.decode, cluster.instances.kv_tokens + cluster.instances.incoming_kv_tokens
    return int(able.ids[np.argmin(held[able.ids])])


def cheating(honest: type[Policy], cheat: type[Cheat], known: Known) -> Callable[[], Policy]:
    """Makes the honest policy with the decision of the cheat, which knows what it needs."""
    roles = (*honest.roles, "off") if cheat.changes_roles else honest.roles
    made = type(cheat.__name__, (cheat, honest), {"known": known, "roles": roles})
    decided = {name for name in vars(cheat) if not name.startswith("_")}

    def make() -> Policy:
        policy = made()
        for name in decided & vars(policy).keys():  # the honest one sets its rules on itself
            delattr(policy, name)
        return policy

    return make
