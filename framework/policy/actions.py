"""The actions of a policy at a tick or decision, and its plans for forming steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.system.cluster import Batching, Phase, Role


@dataclass(frozen=True)
class Migrate:
    """Move a decoding request to another instance while it decodes; ignored if that is impossible now."""

    request: int
    instance: int


@dataclass(frozen=True)
class SetTokenBudget:
    """Limit the steps of an instance to `tokens` tokens, from its next step on."""

    instance: int
    tokens: int


@dataclass(frozen=True)
class SetMaxBatch:
    """Limit the requests of an instance to `requests` seats from now on, at most those of its pool."""

    instance: int
    requests: int


@dataclass(frozen=True)
class Plan:
    """How an instance forms its next steps: tokens of one step, and which work comes first.

    `prefill_percent`: the share of the SMs, from 1 to 99, for prefills that run concurrently with decodes
    ("concurrent": the policy must declare `shares_gpus`); None: as before. Each stream takes its new share at its own
    next step.
    """

    token_budget: int
    batching: Batching | Phase
    prefill_percent: int | None = None


@dataclass(frozen=True)
class SetRole:
    """Let an instance take no new work of a phase that `role` lacks from now on; once drained, it changes.

    Requests that wait for their prefill there are routed again. Those that decode there, or are on their way, end
    there. The role takes effect `engine.role_change_s` later, or `engine.start_s` for an instance that was off, and so
    does `plan` (None: as before). Ignored if no other instance could prefill, or decode. The policy must declare
    `changes_roles`.
    """

    instance: int
    role: Role
    plan: Plan | None = None


@dataclass(frozen=True)
class Preempt:
    """Take a request that waits, prefills or decodes off its instance until `Resume`; ignored for one on its way.

    `keep`: the KV that a decoding request keeps. "drop": none, it is recomputed as after a preemption by the engine;
    "kv": all, on its instance, without its seat; "swap": all, in host memory, over the host's link. A suspended request
    gives up more of its KV. A request in a step leaves at the end of that step.
    """

    request: int
    keep: Literal["drop", "kv", "swap"] = "drop"


@dataclass(frozen=True)
class Resume:
    """Let a request that `Preempt` took off return; ignored for any other.

    It is queued by its key. If it kept its KV it decodes from its instance's next step on, and the action is ignored if
    there is no seat then; if its KV is in host memory it is swapped in as soon as there is room.
    """

    request: int


@dataclass(frozen=True)
class Cancel:
    """End a request in any state as cancelled for that reason; ignored before it arrives and after it has ended.

    A request in a step ends with that step.
    """

    request: int
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Move a waiting request to the queue of another instance, with its key; ignored if that is impossible now.

    It is impossible if the request does not wait, is recomputed where it decoded, or needs more KV than the instance
    has, or if that instance takes no prompts.
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
    """

    pool: str
    instances: int


Action = Migrate | SetTokenBudget | SetMaxBatch | SetRole | Preempt | Resume | Cancel | Requeue | Scale
