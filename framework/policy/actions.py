"""The actions of a policy at a tick or decision, and its plans for forming steps.

An action that cannot be carried out now is ignored. One that could never be, such as one that names an unknown request,
ends the run with a PolicyError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.system.cluster import Batching, Phase, Role


@dataclass(frozen=True)
class Migrate:
    """Move a decoding request to another instance while it decodes; ignored if that is impossible now.

    Attributes:
        request: The id of the request.
        instance: The number of the instance that it goes to.

    Raises:
        PolicyError: By the run, if there is no such request or instance.

    Example:
        >>> class Level(servelab.Disaggregated):
        ...     tick_s = 0.5
        ...     def on_tick(self, cluster):
        ...         kv = cluster.decode.kv_tokens
        ...         there = cluster.decoding(int(cluster.decode.ids[kv.argmax()]))
        ...         return [servelab.Migrate(int(there[0]), cluster.decode.argmin(kv))] if len(there) else []
        >>> level = servelab.run(Level(), "synthetic", limit=60, rate=20, cluster__prefill=1, cluster__decode=4)
        >>> level.summary["migrations"] > 0
        True
    """

    request: int
    instance: int


@dataclass(frozen=True)
class Retain:
    """What becomes of the cached KV of a call that has ended: an answer of `on_call_end`.

    With a TTL the blocks are pinned until a call that waits for this one is admitted, or the TTL is over. Nothing
    evicts pinned blocks, except that pins are broken, the oldest first, where running requests would else be preempted,
    or requests wait on an instance that has nothing to do.

    Blocks that nobody references are evicted by rank, the lowest first, then by last use. A block keeps its rank until
    another answer changes it or it is evicted; one that no answer was about has rank 0.

    Attributes:
        ttl_s: Seconds from now on for which the blocks are pinned; 0: they are not.
        rank: A whole number from -8, which lets them go first, to 7.

    Raises:
        PolicyError: By the run, if `ttl_s` is not a number of at least 0, or there is no such rank.

    Example:
        >>> class Patient(servelab.Aggregated):
        ...     def on_call_end(self, request, cluster):
        ...         return servelab.Retain(ttl_s=30.0) if request.session >= 0 else None
        >>> servelab.run(Patient(), "synthetic", limit=60, rate=20).summary["completed"]
        60
    """

    ttl_s: float = 0.0
    rank: int = 0


@dataclass(frozen=True)
class SetTokenBudget:
    """Limit the steps of an instance to `tokens` tokens, from its next step on.

    Attributes:
        instance: The number of the instance.
        tokens: The most tokens of a step, at least 1.

    Raises:
        PolicyError: By the run, if there is no such instance, or `tokens` is not a whole number of at least 1.

    Example:
        >>> class SmallSteps(servelab.Aggregated):
        ...     tick_s = 1.0
        ...     def on_tick(self, cluster):
        ...         return [servelab.SetTokenBudget(int(i), tokens=128) for i in cluster.instances.ids]
        >>> small = servelab.run(SmallSteps(), "synthetic", limit=60, rate=20)
        >>> small.summary["median_ttft_ms"] > run.summary["median_ttft_ms"]  # prompts take more steps
        True
    """

    instance: int
    tokens: int


@dataclass(frozen=True)
class SetMaxBatch:
    """Limit the requests of an instance to `requests` seats from now on, at most those of its pool.

    Attributes:
        instance: The number of the instance.
        requests: Its seats, from 1 to those of its pool.

    Raises:
        PolicyError: By the run, if there is no such instance, or it has fewer seats than that.

    Example:
        >>> class TwoSeats(servelab.Aggregated):
        ...     tick_s = 0.1
        ...     def on_tick(self, cluster):
        ...         return [servelab.SetMaxBatch(int(i), requests=2) for i in cluster.instances.ids]
        >>> seats = servelab.run(TwoSeats(), "synthetic", limit=60, rate=20)
        >>> seats.summary["mean_queue_ms"] > run.summary["mean_queue_ms"]
        True
    """

    instance: int
    requests: int


@dataclass(frozen=True)
class Plan:
    """How an instance forms its next steps: tokens of one step, and which work comes first.

    Attributes:
        token_budget: The most tokens of a step, at least 1.
        batching: The batching mode of `framework/engine/SEMANTICS.md`, such as "decode_first", or "decode_only".
        prefill_percent: The share of the SMs, from 1 to 99, for prefills that run concurrently with decodes
            ("concurrent": the policy must declare `shares_gpus`); None: as before. Each stream takes its new share at
            its own next step.

    Raises:
        PolicyError: By the run, if a value is out of range, or the plan is concurrent without `shares_gpus`.

    Example:
        >>> class PromptsFirst(servelab.Aggregated):
        ...     plan = servelab.Plan(token_budget=4096, batching="prefill_first")
        ...     def batching(self, instance, cluster):
        ...         return self.plan
        >>> servelab.run(PromptsFirst(), "synthetic", limit=60, rate=20).summary["completed"]
        60
    """

    token_budget: int
    batching: Batching | Phase
    prefill_percent: int | None = None


@dataclass(frozen=True)
class SetRole:
    """Let an instance take no new work of a phase that `role` lacks from now on; once drained, it changes.

    Requests that wait for their prefill there are routed again. Those that decode there, or are on their way, end
    there. The role takes effect `engine.role_change_s` later, or `engine.start_s` for an instance that was off, and so
    does `plan`. Ignored if no other instance could prefill, or decode. The policy must declare `changes_roles`.

    Attributes:
        instance: The number of the instance.
        role: "mixed", "prefill", "decode" or "off".
        plan: How it forms steps in its new role; None: as before.

    Raises:
        PolicyError: By the run, without `changes_roles`, for an unknown instance or role, for a value of the plan that
            is out of range, and for a rank that steps together with others.

    Example:
        >>> class AllOn(servelab.Aggregated):
        ...     roles, changes_roles, tick_s = ("mixed", "off"), True, 0.5
        ...     def on_tick(self, cluster):
        ...         there = cluster.instances
        ...         return [servelab.SetRole(int(i), "mixed") for i in there.ids if there.next_role[i] == 0]
        >>> more = servelab.run(AllOn(), "synthetic", limit=60, rate=20, cluster__instances=1, cluster__spare=1)
        >>> 1 < more.summary["gpus_on"] < 2
        True
    """

    instance: int
    role: Role
    plan: Plan | None = None


@dataclass(frozen=True)
class Preempt:
    """Take a request that waits, prefills or decodes off its instance until `Resume`; ignored for one on its way.

    A request in a step leaves at the end of that step. A suspended request that is preempted again gives up more of its
    KV.

    Attributes:
        request: The id of the request.
        keep: The KV that a decoding request keeps. "drop": none, it is recomputed as after a preemption by the engine;
            "kv": all, on its instance, without its seat; "swap": all, in host memory, over the host's link.

    Raises:
        PolicyError: By the run, if there is no such request, or `keep` is another word.

    Example:
        >>> class OneAtATime(servelab.Aggregated):  # a request starts when the previous one has ended
        ...     def decide(self, instance, cluster):
        ...         busy = len(cluster.decoding(instance)) + len(cluster.prefilling(instance))
        ...         waiting = cluster.queued(instance)
        ...         return [servelab.Preempt(int(r)) for r in waiting[0 if busy else 1 :]]
        ...     def on_finish(self, request, cluster):
        ...         return [servelab.Resume(int(r)) for r in cluster.suspended[:1]]
        >>> alone = servelab.run(OneAtATime(), "synthetic", limit=6, rate=20, cluster__instances=1)
        >>> round(float(alone.pools["mean_batch"][0]), 1) <= 1
        True
    """

    request: int
    keep: Literal["drop", "kv", "swap"] = "drop"


@dataclass(frozen=True)
class Resume:
    """Let a request that `Preempt` took off return; ignored for any other.

    It is queued by its key. If it kept its KV it decodes from its instance's next step on, and the action is ignored if
    there is no seat then; if its KV is in host memory it is swapped in as soon as there is room.

    Attributes:
        request: The id of the request.

    Raises:
        PolicyError: By the run, if there is no such request.

    Example:
        >>> class Later(servelab.Aggregated):  # the first request waits for a second of simulated time
        ...     tick_s = 1.0
        ...     def decide(self, instance, cluster):
        ...         return [servelab.Preempt(0)] if 0 in cluster.queued(instance) and cluster.now_s < 1 else []
        ...     def on_tick(self, cluster):
        ...         return [servelab.Resume(int(r)) for r in cluster.suspended]
        >>> later = servelab.run(Later(), "synthetic", limit=6, rate=20)
        >>> bool(later.requests["ttft_s"][0] > 1)
        True
    """

    request: int


@dataclass(frozen=True)
class Cancel:
    """End a request in any state as cancelled for that reason; ignored before it arrives and after it has ended.

    A request in a step ends with that step.

    Attributes:
        request: The id of the request.
        reason: The text that the column `reason` of the request table shows.

    Raises:
        PolicyError: By the run, if there is no such request, or the reason is empty.

    Example:
        >>> class InTime(servelab.Aggregated):
        ...     def decide(self, instance, cluster):
        ...         waiting = cluster.queued(instance)
        ...         late = cluster.now_s - cluster.requests.arrival_s[waiting] > 0.1
        ...         return [servelab.Cancel(int(r), "too late") for r in waiting[late]]
        >>> busy = servelab.run(InTime(), "synthetic", limit=60, rate=200, cluster__instances=1)
        >>> busy.summary["cancelled"] > 0
        True
    """

    request: int
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Move a waiting request to the queue of another instance, with its key; ignored if that is impossible now.

    It is impossible if the request does not wait, is recomputed where it decoded, or needs more KV than the instance
    has, or if that instance takes no prompts.

    Attributes:
        request: The id of the request.
        instance: The number of the instance that it goes to.

    Raises:
        PolicyError: By the run, if there is no such request or instance.

    Example:
        >>> class Steal(servelab.Aggregated):  # all prompts go to instance 0; others take what waits there
        ...     def route_prefill(self, request, cluster):
        ...         return 0
        ...     def decide(self, instance, cluster):
        ...         waiting = cluster.queued(0)[1:]
        ...         return [servelab.Requeue(int(r), 1 + k % 4) for k, r in enumerate(waiting)]
        >>> steal = servelab.run(Steal(), "synthetic", limit=60, rate=60)
        >>> steal.requests["prefill_instance"].n_unique() > 1
        True
    """

    request: int
    instance: int


@dataclass(frozen=True)
class Scale:
    """Let `instances` instances of a pool be on, from 0 to all of them; the others go off.

    To grow, those that drain come back first, then those that are off start, in the role of the pool; each takes work
    once it has started (`engine.start`). To shrink, those that start are called off first, then those with the fewest
    requests take no new ones, and go off once they have drained. The last instance of a phase stays. The policy must
    declare `changes_roles`.

    Attributes:
        pool: The name of the pool, as `run.pools` has it.
        instances: How many of its instances are to be on.

    Raises:
        PolicyError: By the run, without `changes_roles`, for an unknown pool, for more instances than it has, and for a
            pool of ranks that step together.

    Example:
        >>> class Shrink(servelab.Aggregated):
        ...     roles, changes_roles, tick_s = ("mixed", "off"), True, 1.0
        ...     def on_tick(self, cluster):
        ...         return [servelab.Scale("mixed", 2)]
        >>> shrunk = servelab.run(Shrink(), "synthetic", limit=60, rate=20)
        >>> shrunk.summary["gpus_on"] < run.summary["gpus_on"]
        True
    """

    pool: str
    instances: int


Action = Migrate | SetTokenBudget | SetMaxBatch | SetRole | Preempt | Resume | Cancel | Requeue | Scale
"""What `on_tick`, `decide` and `on_finish` return in a list, any of the kinds on this page.

Example:
    >>> isinstance(servelab.Resume(3), servelab.Action)
    True
"""
