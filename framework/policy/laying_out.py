"""The cluster as a policy lays it out, and what is refused of a policy before its run."""

from __future__ import annotations

import difflib
import inspect

from framework.errors import InputError, PolicyError, noting
from framework.policy.base import Aggregated, Disaggregated, Policy, overrides
from framework.policy.decision import Decision
from framework.policy.hooks import HOOK_NAMES, HOOKS
from framework.system.cluster import ClusterSpec

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
