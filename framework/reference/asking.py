"""Questions to the policy whose answers name instances, and messages for invalid answers."""

from __future__ import annotations

from framework.codes import DECODE, OFF, PREFILL, ROLES
from framework.errors import PolicyError
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request

ROLE_NAMES = {role: name for name, role in ROLES.items()}


def ask_route_prefill(s: Simulation, r: Request) -> Instance:
    """The instance that prefills r. Raises PolicyError if none has that number, or if it takes no prefills."""
    return _able(s, "route_prefill", s.hooks.route_prefill(s, r), r, PREFILL)


def ask_route_decode(s: Simulation, r: Request) -> Instance | str:
    """The instance that decodes r, or the reason for its rejection. Raises PolicyError likewise."""
    answer = s.hooks.route_decode(s, r)
    return answer if isinstance(answer, str) else _able(s, "route_decode", answer, r, DECODE)


def checked(s: Simulation, hook: str, number: int, about: str) -> Instance:
    """The instance of a number that a hook returned."""
    if not 0 <= number < len(s.instances):
        last = len(s.instances) - 1
        raise _error(s, hook, f"instance {number}{about}; the cluster has instances 0 to {last}")
    return s.instances[number]


def _able(s: Simulation, hook: str, number: int, r: Request, phase: int) -> Instance:
    about = f" for request {r.id}"
    i = checked(s, hook, number, about)
    if not i.role & phase:
        raise _error(s, hook, f"instance {number}{about}, which {_occupation(i)}")
    return i


def _error(s: Simulation, hook: str, text: str) -> PolicyError:
    owner = f"policy {s.hooks.policy}: " if s.hooks.policy else ""
    return PolicyError(f"{owner}{hook} returned {text}")


def _occupation(i: Instance) -> str:
    """Why i cannot take what a hook sent there."""
    if i.down:
        return "has crashed and is down"
    if i.draining_role != i.next_role:
        return f"is changing from {ROLE_NAMES[i.draining_role]} to {ROLE_NAMES[i.next_role]}"
    return "is off" if i.role == OFF else f"is a {ROLE_NAMES[i.role]} instance"
