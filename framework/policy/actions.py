"""What a policy may do in addition to answering: actions of a tick or decision, and plans of how steps are formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.system.cluster import Batching, Phase, Role


@dataclass(frozen=True)
class Migrate:
    """Move a decoding request to another instance while it goes on; ignored where that cannot be done now."""

    request: int
    instance: int


@dataclass(frozen=True)
class SetTokenBudget:
    """From its next step on, the instance puts at most `tokens` tokens into a step."""

    instance: int
    tokens: int


@dataclass(frozen=True)
class SetMaxBatch:
    """From now on the instance takes requests in up to `requests` seats, at most those of its pool."""

    instance: int
    requests: int


@dataclass(frozen=True)
class Plan:
    """How an instance forms its coming steps: tokens of one step, and what goes first.

    `prefill_percent`: the share of the SMs, from 1 to 99, of prefills that run concurrently with decodes
    ("concurrent": the policy must declare `shares_gpus`); None: as before. Each stream takes up its part at its own
    next step.
    """

    token_budget: int
    batching: Batching | Phase
    prefill_percent: int | None = None


@dataclass(frozen=True)
class SetRole:
    """From now on the instance takes no new work of a phase that `role` does not have; drained, it changes.

    Requests that wait for their prefill there are routed again. Those that decode there, or are on their way, end
    there. The role takes effect `engine.role_change_s` later, or `engine.start_s` for an instance that was off, and
    `plan` with it (None: as before). Ignored if no other instance could prefill, or decode. The policy must declare
    `changes_roles`.
    """

    instance: int
    role: Role
    plan: Plan | None = None


@dataclass(frozen=True)
class Preempt:
    """Take a request that waits, prefills or decodes off its instance until `Resume`; ignored for one on its way.

    `keep`: what one that decodes keeps of its KV. "drop": nothing, it is recomputed as after a preemption by the
    engine; "kv": all, where it is, though not its seat; "swap": all, in host memory, over the host's link. One that is
    suspended already gives up more of it. A request in a step leaves at the end of that step.
    """

    request: int
    keep: Literal["drop", "kv", "swap"] = "drop"


@dataclass(frozen=True)
class Resume:
    """Let a request come back that `Preempt` has taken off; ignored for any other.

    It is queued by its key. If it has kept its KV it decodes from the next step of its instance on, and the action is
    ignored if there is no seat then; if its KV is in host memory it is swapped in as soon as there is room.
    """

    request: int


@dataclass(frozen=True)
class Cancel:
    """End a request, wherever it is, as cancelled for that reason; ignored before it arrives and after it has ended.

    A request in a step ends with that step.
    """

    request: int
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Move a request that waits to the queue of another instance, with its key; ignored where that cannot be done now.

    It cannot if the request does not wait, is recomputed where it decoded, or needs more KV than the instance has, or
    if that instance takes no prompts.
    """

    request: int
    instance: int


Action = Migrate | SetTokenBudget | SetMaxBatch | SetRole | Preempt | Resume | Cancel | Requeue
