"""The decision points of a run, one row each, the periods of ticks, and batching plans as whole numbers.

A new hook is a method of `Policy` (`base`), a row here, the place in an engine that asks it, and the same place in the
reference engine. Its answer is one of the kinds that `answers` checks.
"""

from __future__ import annotations

from typing import NamedTuple

from framework.checks import MOST_S, require_number


class Hook(NamedTuple):
    """One decision point.

    `name`: the method of `Policy`. `argument`: what it is asked about ("request", "instance", "tick" or, for several
    requests, "queue"). `answer`: the kind of its answer, as `framework.policy.answers` names them. `when`: the event at
    which it is asked. `looks`: it may look at what changes within a leap of decode steps (KV tokens, blocks), so all
    instances are brought up to date before it is asked; a compiled rule says itself whether it does.
    """

    name: str
    argument: str
    answer: str
    when: str
    looks: bool


HOOKS = (
    Hook("admit", "request", "verdict", "a request arrives that some instance could serve", True),
    Hook("route_prefill", "request", "instance", "a request is admitted, preempted elsewhere, split or rerouted", True),
    Hook(
        "route_decode", "request", "instance or refusal", "a prefill ends away from where it decodes, or a split", True
    ),
    Hook("prioritize", "queue", "keys", "a request is queued, or a queue with dynamic keys is read", True),
    Hook("batching", "instance", "plan", "an instance forms a step after something changed there", True),
    Hook("on_tick", "tick", "actions", "every tick_s seconds", True),
    Hook("split_at", "request", "tokens", "a request has been routed to its prefill", True),
    Hook(
        "fetch_prefix", "request", "instance or none", "a request has been routed, where there are prefix tiers", True
    ),
    Hook("decide", "instance", "actions", "an instance is about to schedule after something changed there", True),
    Hook("victim", "instance", "candidate", "an instance lacks KV blocks for those that run there", True),
    Hook("select", "instance", "skips", "an instance forms a step of several decodes after something changed", True),
    Hook("on_finish", "request", "actions", "a request has finished, and so has all that its step brings about", True),
    Hook("on_call_end", "request", "retention", "the KV of a request that has finished has come free", True),
    Hook("prefetch", "request", "instance or none", "the time has come that an answer of `on_call_end` names", True),
    Hook(
        "span", "request", "span", "a request arrives, or is the first that waits for a span when one may begin", True
    ),
    Hook("reconfigure", "instance", "choice", "GPUs of an instance have failed, or are repaired", True),
    Hook("on_failure", "request", "recovery", "a crash has dropped a request, and others that it dropped", True),
)
HOOK_NAMES = tuple(hook.name for hook in HOOKS)
# What the front end of the fleet answers, by what instances report; an instance's own scheduler answers the others.
FRONT_END = frozenset(
    (
        *("admit", "route_prefill", "route_decode", "split_at", "fetch_prefix"),
        *("on_tick", "on_finish", "prefetch", "on_failure"),
    )
)
(
    ADMIT,
    ROUTE_PREFILL,
    ROUTE_DECODE,
    PRIORITIZE,
    BATCHING,
    ON_TICK,
    SPLIT_AT,
    FETCH_PREFIX,
    DECIDE,
    VICTIM,
    SELECT,
    ON_FINISH,
    ON_CALL_END,
    PREFETCH,
    SPAN,
    RECONFIGURE,
    ON_FAILURE,
) = range(len(HOOKS))

# The answer if the policy raised: the engine stops and the exception is raised again outside.
RAISED = -(2**62)
# The answer of `fetch_prefix` to fetch nothing.
NO_INSTANCE = -1
# The answers of `span`: the request needs no other instance; it waits. Others are the number of instances.
NO_SPAN, NOT_NOW = -1, 0
# The answer of `on_failure` that leaves it to the setting.
AS_SET = -1
# The answer of `route_decode` to turn a request away: this less the number of its reason.
REFUSED = -(2**40)

MOST_ACTIONS = 1 << 16  # most actions of one answer
LEAST_TICK_S = 1e-5
MOST_QUIET_TICKS = 1000  # most ticks in a row with nothing to follow but an arrival or the end of a copy
_MODES = 8  # most modes of batching
_SHARE = 1 << 48
MOST_TOKENS = _SHARE // _MODES  # a token budget is below this


def require_tick(policy: str, tick_s: float) -> None:
    """Raise InputError unless ticks come at a period with which a run can end."""
    require_number(f"policy {policy}: tick_s", tick_s, LEAST_TICK_S, MOST_S)


def encode_plan(percent: int, token_budget: int, mode: int) -> int:
    """A plan as one number, above 0. `percent`: of the SMs for prefills, 0: as before."""
    return percent * _SHARE + token_budget * _MODES + mode


def decode_plan(plan: int) -> tuple[int, int, int]:
    """The percent, the token budget and the mode of such a number."""
    return plan // _SHARE, plan % _SHARE // _MODES, plan % _MODES
