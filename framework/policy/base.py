"""A policy: a class whose methods are the decision points of a run, each with a default.

A hook is a Python method or, for speed, a compiled function of (request, view, params, state) made with `@decision`.
Views are read-only and hold no true output length.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.codes import DECODE, PREFILL
from framework.errors import InputError, PolicyError, noting
from framework.policy.actions import Action, Plan
from framework.policy.hooks import HOOK_NAMES, HOOKS
from framework.policy.predictor import given_name
from framework.policy.view import Cluster, Floats, Request, View
from framework.system.cluster import Batching, ClusterSpec

_NEARLY = 0.8  # least likeness by difflib: a letter or two
# The arguments of each method.
_PASSED = {
    "layout": ("spec",),
    "prepare": ("cluster",),
    **{hook.name: (hook.argument, "cluster") for hook in HOOKS},
    **{hook.name: ("cluster",) for hook in HOOKS if hook.argument == "tick"},
    "victim": ("instance", "candidates", "cluster"),
    "select": ("instance", "decoding", "cluster"),
}


def _letters(name: str) -> str:
    """A name in the form that is compared: onTick is meant as on_tick."""
    return name.replace("_", "").lower()


_METHODS = {_letters(name): name for name in (*HOOK_NAMES, "layout")}


@dataclass(frozen=True)
class Decision:
    """A rule that the compiled engine compiles when a run first needs it.

    `observes`: it reads what changes in the middle of decode steps (kv_tokens, blocks). `index`: the name of a faster
    way to the same answer, which an engine may take instead; "": none.
    """

    function: Callable[..., Any]
    observes: bool
    index: str = ""


def decision(*, observes: bool) -> Callable[[Callable[..., int]], Decision]:
    """Compile a routing or admission rule: a function (request, view, params, state) -> int without a closure.

    `view.instances` and `view.requests` are structured arrays with the columns of `Instances` and `Requests`, and
    `framework.replay.lookups` has more, by `view.engine`. `params` are the policy's `compiled_params`, `state` 16
    floats of the policy's own that start at 0.
    """
    return lambda function: Decision(function, observes)


@decision(observes=False)
def prefill_round_robin(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The next instance in turn among those that prefill."""
    i = int(state[0]) % len(view.instances)
    while view.instances[i].role & PREFILL == 0:
        i = (i + 1) % len(view.instances)
    state[0] = i + 1
    return i


@decision(observes=False)
def decode_round_robin(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The next instance in turn among those that decode."""
    i = int(state[1]) % len(view.instances)
    while view.instances[i].role & DECODE == 0:
        i = (i + 1) % len(view.instances)
    state[1] = i + 1
    return i


def _least_queued(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The instance with the fewest tokens to prefill; ties go to the fewest decoding requests."""
    best = -1
    for i in range(len(view.instances)):
        inst = view.instances[i]
        if inst.role & PREFILL:
            if best < 0:
                best = i
            else:
                other = view.instances[best]
                if inst.queued_tokens < other.queued_tokens or (
                    inst.queued_tokens == other.queued_tokens and inst.running < other.running
                ):
                    best = i
    return best


prefill_least_queued = Decision(_least_queued, observes=False, index="least_queued")


def _least_kv(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The instance with the fewest KV tokens held or incoming."""
    best, least = -1, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        held = inst.kv_tokens + inst.incoming_kv_tokens
        if inst.role & DECODE and (best < 0 or held < least):
            best, least = i, held
    return best


decode_least_kv = Decision(_least_kv, observes=True, index="least_kv")


class Policy:
    """Base of all policies: override what is new. `self` holds the configured values and may keep counters."""

    roles: ClassVar[tuple[str, ...]] = ("mixed", "prefill", "decode")  # roles of instances that it can use
    suggested_cluster: ClassVar[str] = "mixed"
    batching_mode: ClassVar[Batching | None] = None  # batching mode of its pools; None: the engine's
    tick_s: float | None = None  # period of on_tick, None: never
    changes_roles: bool = False  # on_tick and decide may return SetRole and Scale
    shares_gpus: ClassVar[bool] = False  # a Plan may be concurrent
    dynamic_keys: ClassVar[bool] = False  # prioritize gets the whole queue whenever it is read after a change
    compiled_params: Sequence[float] | Floats = ()  # read after `prepare`; an array of float64 is shared, not copied

    @property
    def name(self) -> str:
        """The policy's name in results: its file in policies/, else its class."""
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
    route_prefill: Any = prefill_least_queued  # (request, cluster) -> instance that prefills
    # (request, cluster) -> instance that decodes, asked when the prefill has ended; a method may return a string, for
    # which the request is then rejected
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


def overrides(policy: Policy, hook: str) -> bool:
    """Whether the policy has its own hook of that name."""
    return getattr(type(policy), hook) is not getattr(Policy, hook) or hook in vars(policy)


def lay_out(policy: Policy, cluster: ClusterSpec) -> ClusterSpec:
    """The policy's layout of the configured cluster. Raises InputError if it refuses the cluster, or returns something
    else. Also raises it for a method that resembles a hook by mistake, and for a hook that does not take its arguments.
    """
    _refuse_misnamed(policy)
    _refuse_other_arguments(policy)
    if overrides(policy, "on_tick") and not _has_period(policy):
        raise PolicyError(f"policy {policy.name}: on_tick needs a period; set tick_s, as in tick_s = 1.0")
    with noting(f"policy {policy.name}", "layout"):
        spec = policy.layout(cluster)
    if not isinstance(spec, ClusterSpec):
        raise PolicyError(f"policy {policy.name}: layout returned {spec!r}; return a ClusterSpec")
    partly = [pool for pool in spec.pools if pool.role != "off" and pool.begins_on < pool.instances]
    if partly and not policy.changes_roles:
        raise InputError(
            f"pool {partly[0].name}: policy {policy.name} starts no instances, and {partly[0].begins_on} of"
            f" {partly[0].instances} are on at the start; leave on_at_start unset, or choose a policy that scales"
        )
    return spec


def _refuse_misnamed(policy: Policy) -> None:
    """Raise PolicyError for a public method that no base class has and whose name is nearly a hook's."""
    for kind in type(policy).__mro__:
        if kind in (Policy, Aggregated, Disaggregated, object):
            continue
        for name, value in vars(kind).items():
            is_own = not name.startswith("_") and not hasattr(Policy, name)
            near = difflib.get_close_matches(_letters(name), _METHODS, 1, _NEARLY) if is_own else []
            if near and (callable(value) or isinstance(value, Decision)):
                meant = _METHODS[near[0]]
                raise PolicyError(f"policy {policy.name}: no hook is called {name}; did you mean {meant}?")


def _refuse_other_arguments(policy: Policy) -> None:
    """Raise PolicyError for a method that cannot be called as its hook is."""
    for name, passed in _PASSED.items():
        own = getattr(policy, name)
        if not overrides(policy, name) or not (inspect.ismethod(own) or inspect.isfunction(own)):
            continue
        signature = inspect.signature(own)
        try:
            signature.bind(*passed)
        except TypeError:
            called = f"it is called as {name}({', '.join(passed)})"
            raise PolicyError(f"policy {policy.name}: {name} takes {signature}; {called}") from None


def _has_period(policy: Policy) -> bool:
    """Whether anything has set `tick_s`, even to None."""
    kinds = type(policy).__mro__
    return "tick_s" in vars(policy) or any("tick_s" in vars(kind) for kind in kinds if kind is not Policy)


class Aggregated(Policy):
    """A policy whose instances all prefill and decode."""

    roles: ClassVar[tuple[str, ...]] = ("mixed",)


class Disaggregated(Policy):
    """A policy with instances that prefill and others that decode; KV is moved between them."""

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode")
    suggested_cluster: ClassVar[str] = "disaggregated"
    batching_mode: ClassVar[Batching | None] = "prefill_first"
