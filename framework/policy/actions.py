"""The actions of a policy at a tick or decision, and its plans for forming steps.

An action that cannot be carried out now is ignored. One that could never be, such as one that names an unknown request,
ends the run with a PolicyError.
"""

from __future__ import annotations

from framework.policy.instance_actions import Plan, Scale, SetDrafts, SetMaxBatch, SetRole, SetTokenBudget
from framework.policy.request_actions import Cancel, Migrate, Preempt, Requeue, Resume, Retain

__all__ = [
    "Action",
    "Cancel",
    "Migrate",
    "Plan",
    "Preempt",
    "Requeue",
    "Resume",
    "Retain",
    "Scale",
    "SetDrafts",
    "SetMaxBatch",
    "SetRole",
    "SetTokenBudget",
]

Action = Migrate | SetTokenBudget | SetMaxBatch | SetDrafts | SetRole | Preempt | Resume | Cancel | Requeue | Scale
"""What `on_tick`, `decide` and `on_finish` return in a list, any of the kinds on this page.

Example:
    >>> isinstance(servelab.Resume(3), servelab.Action)
    True
"""
