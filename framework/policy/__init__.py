"""What the author of a policy reads: hooks and their defaults, actions, views, predictors."""

from __future__ import annotations

from framework.policy.actions import (
    Action,
    Cancel,
    Migrate,
    Plan,
    Preempt,
    Requeue,
    Resume,
    Retain,
    Scale,
    SetDrafts,
    SetMaxBatch,
    SetRole,
    SetTokenBudget,
)
from framework.policy.base import Aggregated, Disaggregated, Policy, overrides
from framework.policy.decision import (
    Decision,
    decision,
    decode_least_kv,
    decode_round_robin,
    prefill_least_queued,
    prefill_round_robin,
)
from framework.policy.laying_out import lay_out
from framework.policy.spans import Span
from framework.policy.view import Cluster, Instances, Request, View

__all__ = [
    "Action",
    "Aggregated",
    "Cancel",
    "Cluster",
    "Decision",
    "Disaggregated",
    "Instances",
    "Migrate",
    "Plan",
    "Policy",
    "Preempt",
    "Request",
    "Requeue",
    "Resume",
    "Retain",
    "Scale",
    "SetDrafts",
    "SetMaxBatch",
    "SetRole",
    "SetTokenBudget",
    "Span",
    "View",
    "decision",
    "decode_least_kv",
    "decode_round_robin",
    "lay_out",
    "overrides",
    "prefill_least_queued",
    "prefill_round_robin",
]
