"""The decisions of a policy as the reference engine asks for them, with answers that change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.policy.retention import Retention
from framework.policy.spans import SpanRow
from framework.reference.state import Instance, Request

Simulation = Any  # `framework.reference.simulation.Simulation`, which has hooks


class Hooks:
    """The decisions of a policy, asked with ordinary objects. `overrides` names the optional hooks that are asked."""

    policy: str = ""  # its name, with which errors begin
    overrides: frozenset[str] = frozenset()
    tick_s: float | None = None
    dynamic_keys: bool = False

    def ask(self, hook: str, argument: int) -> Any:
        """The answer of a hook, which has no method of its own here, about a request or an instance."""
        raise NotImplementedError(f"this policy has no {hook}")

    def admit(self, s: Simulation, r: Request) -> str | None:
        """The reason of a rejection, None to accept."""
        return None

    def route_prefill(self, s: Simulation, r: Request) -> int:
        """The instance that prefills."""
        return 0

    def fetch_prefix(self, s: Simulation, r: Request) -> int:
        """The instance that sends a prefix ahead, -1: none."""
        return -1

    def route_decode(self, s: Simulation, r: Request) -> int | str:
        """An instance, or the reason of a rejection."""
        return 0

    def split_at(self, s: Simulation, r: Request) -> int:
        """The token before which the request is routed again, 0: none."""
        return 0

    def prioritize(self, s: Simulation, queue: Sequence[Request]) -> Sequence[float]:
        """Keys in the waiting queue, smallest first: of the queued request or, with dynamic keys, of all
        waiting ones.
        """
        return [0.0] * len(queue)

    def batching(self, s: Simulation, i: Instance) -> tuple[int, str, int]:
        """Token budget, mode and prefill percent (0: as before)."""
        return i.token_budget, i.mode, 0

    def on_tick(self, s: Simulation, tick: int) -> Sequence[tuple[Any, ...]]:
        """Actions in order: ("migrate", request, instance), ("budget", instance, tokens), ("seats", instance,
        requests), ("role", instance, role, plan), ("preempt", request, keep), ("resume", request), ("cancel", request,
        reason), ("requeue", request, instance) or ("scale", pool, instances).
        """
        return ()

    def decide(self, s: Simulation, i: Instance) -> Sequence[tuple[Any, ...]]:
        """Ask the policy to decide before i schedules."""
        return ()

    def select(self, s: Simulation, i: Instance) -> Sequence[int]:
        """The decodes of i that its next steps leave out."""
        return ()

    def report(self, s: Simulation, number: int) -> None:
        """Keep what the instances report now."""

    def span(self, s: Simulation, r: Request) -> SpanRow | None:
        """The instances that compute r together; None: one does all."""
        return None

    def reconfigure(self, s: Simulation, i: Instance) -> bool:
        """Whether i runs with the GPUs that work now."""
        return False

    def on_finish(self, s: Simulation, r: Request) -> Sequence[tuple[Any, ...]]:
        """Tell the policy that r has finished; the actions are those of `on_tick`."""
        return ()

    def on_call_end(self, s: Simulation, r: Request) -> Retention:
        """What becomes of the blocks of r, which has ended."""
        return Retention()

    def prefetch(self, s: Simulation, r: Request) -> int:
        """The instance that loads the blocks of r, -1: none."""
        return r.instance

    def on_failure(self, s: Simulation, r: Request) -> str | None:
        """What becomes of r, which a crash dropped: a name of `Recovery`; None: what the setting says."""
        return None
