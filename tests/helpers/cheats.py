"""Policies that serve fewer requests than they could, each so that some figure might look better for it.

Each is an honest policy, aggregated or disaggregated, but for one decision. They know what no policy may: the lengths
of outputs, when the load ends, which requests are counted, and which instances crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from framework.codes import OFF
from framework.metrics.slo import Slo
from framework.policy import Action, Cancel, Plan, Policy, Preempt, Resume, SetRole
from framework.policy.view import Cluster, Request
from framework.workload import Workload

NO = "turned away"


@dataclass(frozen=True)
class Known:
    """What a cheat knows: the requests, the limits by which they are judged, and when the load ends, on its clock.

    `counted_s`: between which times requests count that are sent. `dying`: the instance that crashes, -1: none.
    """

    workload: Workload
    slo: Slo
    end_s: float
    counted_s: tuple[float, float] = (0.0, np.inf)
    dying: int = -1

    def is_counted(self, sent_s: float) -> bool:
        """Whether a request sent then counts."""
        return self.counted_s[0] <= sent_s <= self.counted_s[1]

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


class StarvesWhatIsNotCounted(Cheat):
    """Turns away what the warm-up and the cool-down send, so that those counted come to an empty system."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return self.known.is_counted(cluster.now_s) or NO


class SuspendsWhatIsNotCounted(Cheat):
    """Takes every second request of the warm-up off once others count, until the load is over (`Preempt`)."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        for r in cluster.suspended if cluster.now_s > self.known.end_s else ():
            yield Resume(int(r))
        if self.known.is_counted(cluster.now_s):
            early = (r for r in under_way(cluster) if not self.known.is_counted(sent_s(cluster, r)))
            yield from (Preempt(r) for r in early if r % 2)


class SuspendsAllThatIsNotCounted(Cheat):
    """Takes every request of the warm-up off as others begin to count, until the load is over (`Preempt`)."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        for r in cluster.suspended if cluster.now_s > self.known.end_s else ():
            yield Resume(int(r))
        if self.known.is_counted(cluster.now_s + self.tick_s):
            yield from (Preempt(r) for r in under_way(cluster) if not self.known.is_counted(sent_s(cluster, r)))


class AdmitsFewClients(Cheat):
    """Turns away, again and again, who comes while a quarter of the batch is under way."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return len(under_way(cluster)) < 12 or NO


class SuspendsWhatIsLate(Cheat):
    """Takes those off that have missed the limit of the first token, until the load is over (`Preempt`)."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        if cluster.now_s > self.known.end_s:
            yield from (Resume(int(r)) for r in cluster.suspended)
        else:
            yield from (Preempt(r) for r in under_way(cluster) if is_late(self.known, cluster, r))


class CancelsWhatIsLate(Cheat):
    """Ends those that have missed the limit of the first token (`Cancel`)."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        return [Cancel(r, NO) for r in under_way(cluster) if is_late(self.known, cluster, r)]


class CancelsLongOutputs(Cheat):
    """Ends requests with the longest quarter of outputs once they have a first token (`Cancel`)."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        ids = under_way(cluster)
        begun = cluster.requests.generated(np.array(ids, np.int64)) > 0
        long = [self.known.is_long(Request(r, cluster.requests), 0.25) for r in ids]
        return [Cancel(r, NO) for r, one, other in zip(ids, begun, long, strict=True) if one and other]


class ParksLongOutputs(Cheat):
    """Takes requests with the longest tenth of outputs off once they have a first token, until the load is over."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        if cluster.now_s > self.known.end_s:
            yield from (Resume(int(r)) for r in cluster.suspended)
        else:
            long = [r for r in under_way(cluster) if self.known.is_long(Request(r, cluster.requests), 0.1)]
            begun = cluster.requests.generated(np.array(long, np.int64)) > 0
            yield from (Preempt(r) for r, one in zip(long, begun, strict=True) if one)


class EndsAllButShortOutputs(Cheat):
    """Ends all requests but those with the shortest third of outputs as soon as they come (`Cancel`)."""

    tick_s = 0.25

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        return [Cancel(r, NO) for r in under_way(cluster) if self.known.is_long(Request(r, cluster.requests), 0.66)]


class HoldsSessionsBack(Cheat):
    """Lets few sessions begin at a time, the others after these (`Preempt`)."""

    tick_s = 0.1
    most: ClassVar[int] = 6

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        before, there = self.known.workload.previous, under_way(cluster)
        waiting = [
            r for r in there if before is not None and before[r] < 0 and np.isnan(cluster.requests.first_token_s[r])
        ]
        room = self.most - (len(there) - len(waiting))
        yield from (Preempt(r) for r in waiting[max(room, 0) :])
        yield from (Resume(int(r)) for r in cluster.suspended[: max(room - len(waiting), 0)])


class LosesLongOnesInACrash(Cheat):
    """Sends the longest half of outputs to the instance that is to crash, and whatever else comes elsewhere."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        able, dying = cluster.prefill.ids, self.known.dying
        others = able[able != dying]
        is_lost = dying in able and (len(others) == 0 or self.known.is_long(request, 0.5))
        return dying if is_lost else int(others[request.id % len(others)])


class ServesNobodyAfterACrash(Cheat):
    """Turns away whatever comes while an instance is down."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return len(cluster.prefill) == len(cluster.instances) or NO


EVERYWHERE: tuple[type[Cheat], ...] = (
    *(RejectsLate, RejectsLongPrompts, RejectsLongOutputs, RejectsTheLongest, RejectsLongOutputsLate, ServesTheFirst),
    *(ServesSome, NeverBegins, HoldsDecodesBack, AnswersOnce, AdmitsNothingAtTheEnd, ShedsBeforeTheEnd),
    *(RejectsWhatIsLate, RejectsWhatWaits),
)


STARVING: tuple[type[Cheat], ...] = (*(StarvesWhatIsNotCounted, SuspendsWhatIsNotCounted, SuspendsAllThatIsNotCounted),)
STOPPING: tuple[type[Cheat], ...] = (CancelsWhatIsLate, CancelsLongOutputs, SuspendsWhatIsLate, AdmitsFewClients)
CHOOSY: tuple[type[Cheat], ...] = (ParksLongOutputs, EndsAllButShortOutputs)
CRASHING: tuple[type[Cheat], ...] = (LosesLongOnesInACrash, ServesNobodyAfterACrash)


def under_way(cluster: Cluster) -> list[int]:
    """Requests that wait, prefill or decode on some instance."""
    lists = (cluster.queued, cluster.prefilling, cluster.decoding)
    return [int(r) for i in cluster.instances.ids for listed in lists for r in listed(int(i))]


def sent_s(cluster: Cluster, r: int) -> float:
    """When a request was sent."""
    return float(cluster.requests.arrival_s[r])


def is_late(known: Known, cluster: Cluster, r: int) -> bool:
    """Whether the first token of a request has come too late, or would now."""
    first_s = cluster.requests.first_token_s[r]
    waited_s = (cluster.now_s if np.isnan(first_s) else first_s) - sent_s(cluster, r)
    return bool(waited_s > (known.slo.ttft_s or np.inf))


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
