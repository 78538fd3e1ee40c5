"""All that the author of a policy reads: hooks and their defaults, actions, what a policy sees, predictors."""

from __future__ import annotations

from framework.policy.base import (
    Action,
    Aggregated,
    Decision,
    Disaggregated,
    Migrate,
    Plan,
    Policy,
    SetRole,
    SetTokenBudget,
    decision,
    decode_least_kv,
    decode_round_robin,
    lay_out,
    overrides,
    prefill_least_queued,
    prefill_round_robin,
)
from framework.policy.view import Cluster, Instances, Request

__all__ = [
    "Action",
    "Aggregated",
    "Cluster",
    "Decision",
    "Disaggregated",
    "Instances",
    "Migrate",
    "Plan",
    "Policy",
    "Request",
    "SetRole",
    "SetTokenBudget",
    "decision",
    "decode_least_kv",
    "decode_round_robin",
    "lay_out",
    "overrides",
    "prefill_least_queued",
    "prefill_round_robin",
]
