"""What a policy may do in addition to answering: actions of a tick, and plans of how an instance forms its steps."""

from __future__ import annotations

from dataclasses import dataclass

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
class Plan:
    """How an instance forms its coming steps: tokens of one step, and what goes first.

    `prefill_percent` of the SMs, from 1 to 99, are those of prefills where these run concurrently with decodes
    ("concurrent": the policy must say `shares_gpus`), each stream taking up its part at its own next step; None: as
    before.
    """

    token_budget: int
    batching: Batching | Phase
    prefill_percent: int | None = None


@dataclass(frozen=True)
class SetRole:
    """From now on the instance takes no new work of a phase that `role` does not have; drained, it changes.

    What waits for its prefill there is routed again; what runs ends there, and so does what is on its way. The role
    takes effect `engine.role_change_s` later, or `engine.start_s` for an instance that was off, and `plan` with it
    (None: as before). Ignored if no other instance could prefill, or decode. The policy must say `changes_roles`.
    """

    instance: int
    role: Role
    plan: Plan | None = None


Action = Migrate | SetTokenBudget | SetRole
