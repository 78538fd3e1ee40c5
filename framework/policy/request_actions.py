"""What a policy does to requests: actions of a tick or decision, and the answer of `on_call_end`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
class Retain:
    """What becomes of the cached KV of a call that has ended: an answer of `on_call_end`.

    With a TTL the blocks are pinned until a call that waits for this one is admitted, or the TTL is over. Nothing
    evicts pinned blocks, except that pins are broken, the oldest first, where running requests would else be preempted,
    or requests wait on an instance that has nothing to do.

    Blocks that nobody references are evicted by rank, the lowest first, then by last use. A block keeps its rank until
    another answer changes it or it is evicted; one that no answer was about has rank 0.

    With `prefetch_s` nothing is pinned yet. So many seconds from now on, unless a call that waits for this one has been
    admitted, the leading blocks that the instance still has in its cache or its tiers (`engine.prefix_stores`) are
    pinned. Those that only tiers have are loaded meanwhile, and a call that waits for this one is admitted there once
    they are. The TTL begins then.

    With `move_to` the blocks are copied to another instance, over the links, and the TTL begins when they have come
    there. On the instance where the call ended they stay by rank.

    Attributes:
        ttl_s: Seconds from now on, or from the end of the prefetch on, for which the blocks are pinned; 0: they are
            not.
        rank: A whole number from -8, which lets them go first, to 7.
        prefetch_s: Seconds from now on; None: there is no prefetch. A policy that overrides `prefetch` says then where.
        move_to: The number of an instance; None: they do not move.

    Raises:
        PolicyError: By the run, if `ttl_s` or `prefetch_s` is not a number of at least 0, there is no such rank or
            instance, or both `prefetch_s` and `move_to` are given.

    Example:
        >>> class Patient(servelab.Aggregated):
        ...     def on_call_end(self, request, cluster):
        ...         return servelab.Retain(ttl_s=30.0) if request.session >= 0 else None
        >>> servelab.run(Patient(), "synthetic", limit=60, rate=20).summary["completed"]
        60
    """

    ttl_s: float = 0.0
    rank: int = 0
    prefetch_s: float | None = None
    move_to: int | None = None
