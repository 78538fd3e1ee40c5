"""Placement rules that several policies offer by name."""

from __future__ import annotations

from framework.errors import InputError
from framework.policy import (
    Decision,
    decode_least_kv,
    decode_round_robin,
    prefill_least_queued,
    prefill_round_robin,
)

PREFILL_RULES = {"round_robin": prefill_round_robin, "least_queued": prefill_least_queued}
DECODE_RULES = {"round_robin": decode_round_robin, "least_kv": decode_least_kv}


def rule(parameter: str, name: str, rules: dict[str, Decision]) -> Decision:
    """The rule of that name. Raises InputError, listing the names, if there is none."""
    if name not in rules:
        raise InputError(f"{parameter} must be one of {', '.join(rules)}; got {name!r}")
    return rules[name]
