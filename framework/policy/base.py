"""A policy: a class whose methods are the decision points of a run, each with a default.

A hook is a Python method or, for speed, a compiled function of (request, view, params, state) made with `@decision`.
Views are read-only and hold no true output length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from framework.policy.actions import Action, Plan, Retain
from framework.policy.decision import decode_least_kv, prefill_least_queued
from framework.policy.predictor import given_name
from framework.policy.spans import Span
from framework.policy.view import Cluster, Floats, Request
from framework.system.cluster import Batching, ClusterSpec
from framework.system.faults import Recovery


class Policy:
    """Base of all policies: override what is new. `self` holds the configured values and may keep counters.

    A policy object serves one run; `servelab.run` copies the one that it gets. Arguments of `__init__` with defaults
    are settings of the policy.

    Attributes:
        roles: Roles of instances that it can use.
        suggested_cluster: The cluster of `servelab.run` if none is given.
        batching_mode: Batching mode of its pools; None: the engine's.
        tick_s: Period of `on_tick`, seconds; None: never.
        changes_roles: `on_tick` and `decide` may return `SetRole` and `Scale`.
        shares_gpus: A `Plan` may be concurrent.
        dynamic_keys: `prioritize` gets the whole queue whenever it is read after a change.
        compiled_params: What compiled rules get, read after `prepare`; an array of float64 is shared, not copied.
        route_prefill: (request, cluster) -> the instance that prefills; a method, or a rule made with `decision`. By
            default the one with the fewest tokens to prefill.
        route_decode: (request, cluster) -> the instance that decodes, asked when the prefill has ended. A method may
            return a string, for which the request is then rejected. By default the one with the least KV.

    Raises:
        InputError: By the run, if the policy cannot use the cluster.
        PolicyError: By the run, for a method with nearly a hook's name, other arguments, or an unusable answer.

    Example:
        >>> class ShortFirst(servelab.Policy):  # for any cluster
        ...     def prioritize(self, queue, cluster):
        ...         return cluster.requests.input_tokens[queue]
        >>> short = servelab.run(ShortFirst(), "synthetic", limit=60, rate=90, cluster__instances=1)
        >>> fifo = servelab.run(servelab.Policy(), "synthetic", limit=60, rate=90, cluster__instances=1)
        >>> short.summary["median_ttft_ms"] < fifo.summary["median_ttft_ms"]
        True
    """

    roles: ClassVar[tuple[str, ...]] = ("mixed", "prefill", "decode")
    suggested_cluster: ClassVar[str] = "mixed"
    batching_mode: ClassVar[Batching | None] = None
    tick_s: float | None = None
    changes_roles: bool = False
    shares_gpus: ClassVar[bool] = False
    dynamic_keys: ClassVar[bool] = False
    compiled_params: Sequence[float] | Floats = ()

    @property
    def name(self) -> str:
        """The policy's name in results, that of its file in policies/, else of its class."""
        return given_name(type(self))

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        """The pools to run on, made from the configured ones. Raises InputError if the policy cannot use them."""
        unfit = sorted({pool.role for pool in spec.pools} - set(self.roles))
        if unfit:
            raise InputError(
                f"policy {type(self).__name__} cannot use {' or '.join(unfit)} instances; "
                f"choose cluster={self.suggested_cluster}{' cluster.spare=0' if 'off' in unfit else ''}"
            )
        pools = tuple(replace(pool, batching=pool.batching or self.batching_mode) for pool in spec.pools)
        return replace(spec, pools=pools)

    def prepare(self, cluster: Cluster) -> None:
        """Prepare for a run; called once, before the first event."""

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        """Whether to serve an arriving request; a string rejects it for that reason."""
        return True

    def fetch_prefix(self, request: Request, cluster: Cluster) -> int:
        """The instance from which to copy the request's prefix, -1: none; asked right after `route_prefill` for an
        arrival.

        The leading blocks that this instance has and the chosen one lacks are copied to the chosen one's first store
        (`engine.prefix_stores`). The request is queued after that. Not asked without stores.
        """
        return -1

    # Any, because a subclass may put a method or another compiled rule here.
    route_prefill: Any = prefill_least_queued
    route_decode: Any = decode_least_kv

    def split_at(self, request: Request, cluster: Cluster) -> int:
        """The token before which a request just routed is split in two, 0: none.

        At a split in the prompt `route_prefill` is asked again, and says where the rest is prefilled. At a split in the
        output (input_tokens + n: after n tokens of it) `route_decode` is asked, and says where the rest is decoded.
        """
        return 0

    def prioritize(self, queue: NDArray[np.int64], cluster: Cluster) -> NDArray[np.float64] | float:
        """Sort keys of the requests `queue` (ids), smallest first; equal keys in the order of queueing.

        With `dynamic_keys` the queue is all requests that wait on one instance, in the present order, except preempted
        requests, which come first anyway. So a key may be a rank among them. Without `dynamic_keys` it is asked once
        for each request, alone, when the request is queued, and the key stays.
        """
        return 0.0

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        """The plan of an instance's next steps, asked whenever something changed there."""
        raise NotImplementedError

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        """Actions at a tick, every `tick_s`; they are carried out in order."""
        return ()

    def decide(self, instance: int, cluster: Cluster) -> Iterable[Action]:
        """Actions before an instance forms its next step, whenever something changed there; they are carried out in
        order before that step is formed.
        """
        return ()

    def victim(self, instance: int, candidates: NDArray[np.int64], cluster: Cluster) -> int:
        """The request to preempt if an instance lacks KV blocks for its running requests; by default `engine.victim`
        decides.

        `candidates`: those that decode there, in running order, then those that prefill.
        """
        return int(candidates[-1])

    def select(self, instance: int, decoding: NDArray[np.int64], cluster: Cluster) -> Iterable[int]:
        """The decodes of an instance that its next steps leave out, with their KV and seats; one must stay in.

        Asked when an instance forms a step after something changed there and at least two requests decode; the answer
        holds until it is asked again. `decoding`: all of them, in running order.
        """
        return ()

    def on_finish(self, request: Request, cluster: Cluster) -> Iterable[Action]:
        """Actions after a request has finished, before anything else happens; called once for each, and carried out in
        order.
        """
        return ()

    def on_call_end(self, request: Request, cluster: Cluster) -> Retain | None:
        """What becomes of the KV of a request that has finished, as far as the prefix cache of its instance has it.

        None: it stays by last use, as that of others. Asked once its KV has come free; not without a prefix cache.
        """
        return None

    def prefetch(self, request: Request, cluster: Cluster) -> int:
        """The instance that loads the KV of a call that has ended, from its tiers, for the next one; -1: none does.

        Asked `prefetch_s` after an answer `Retain(prefetch_s=...)` of `on_call_end`, unless a call that waits for this
        one has been admitted by then. By default it is the instance on which the call has ended.
        """
        return int(cluster.requests.instance[request.id])

    def span(self, request: Request, cluster: Cluster) -> Span | None:
        """The instances that compute a request together, and what each of them keeps of its KV; None: one instance does
        all, as `route_prefill` says.

        Asked when a request arrives. With any other answer than None it waits at the front end. The first that waits is
        asked about again whenever an instance is about to form a step after something changed there.
        """
        return None

    def reconfigure(self, instance: int, cluster: Cluster) -> bool:
        """Whether an instance runs with the GPUs that work now, of which it has `cluster.instances.gpus`.

        Asked when some of its GPUs have failed: False leaves it down until they are repaired. Asked again at their
        repair: True takes it down, so that it comes back with all of them. By default `engine.faults.fewer` decides.
        """
        return False

    def on_failure(self, request: Request, cluster: Cluster) -> Recovery | None:
        """What becomes of a request that a crash dropped, before any is routed anew; None: `engine.faults.recovery`."""
        return None


def overrides(policy: Policy, hook: str) -> bool:
    """Whether the policy has its own hook of that name."""
    return getattr(type(policy), hook) is not getattr(Policy, hook) or hook in vars(policy)


class Aggregated(Policy):
    """A policy whose instances all prefill and decode.

    Raises:
        InputError: By the run, for a cluster with instances of another role.

    Example:
        >>> class NotTooMany(servelab.Aggregated):
        ...     def admit(self, request, cluster):
        ...         return True if cluster.prefill.queued.sum() < 5 else "too many wait"
        >>> few = servelab.run(NotTooMany(), "synthetic", limit=60, rate=200, cluster__instances=1)
        >>> few.summary["rejected"] > 0
        True
    """

    roles: ClassVar[tuple[str, ...]] = ("mixed",)


class Disaggregated(Policy):
    """A policy with instances that prefill and others that decode; KV is moved between them.

    Raises:
        InputError: By the run, for a cluster with mixed instances.

    Example:
        >>> class Emptiest(servelab.Disaggregated):
        ...     def route_decode(self, request, cluster):
        ...         return cluster.decode.argmin(cluster.decode.running)
        >>> emptiest = servelab.run(Emptiest(), "synthetic", limit=60, rate=20)
        >>> emptiest.pools["role"].to_list()
        ['prefill', 'decode']
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode")
    suggested_cluster: ClassVar[str] = "disaggregated"
    batching_mode: ClassVar[Batching | None] = "prefill_first"
