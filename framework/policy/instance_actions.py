"""What a policy does to instances: actions of a tick or decision, and plans for forming steps."""

from __future__ import annotations

from dataclasses import dataclass

from framework.system.cluster import Batching, Phase, Role


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
class SetDrafts:
    """Draft `tokens` for each decode of an instance from its next step on, at most those of `engine.speculation`.

    With `engine.speculation.depth=adaptive` each step drafts up to so many.

    Attributes:
        instance: The number of the instance.
        tokens: Drafts for each request, from 0.

    Raises:
        PolicyError: By the run, if there is no such instance, or the run drafts fewer tokens than that.

    Example:
        >>> class DraftWhileFew(servelab.Aggregated):
        ...     tick_s = 0.1
        ...     def on_tick(self, cluster):
        ...         there = cluster.instances
        ...         return [servelab.SetDrafts(int(i), tokens=4 if there.running[i] < 2 else 0) for i in there.ids]
        >>> drafting = {"limit": 60, "rate": 20, "engine__speculation": "draft", "engine__speculation__depth": 4}
        >>> few, all_ = (servelab.run(one, "synthetic", **drafting) for one in (DraftWhileFew(), "chunked"))
        >>> few.summary["accepted_per_step"] < all_.summary["accepted_per_step"]
        True
    """

    instance: int
    tokens: int


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
