"""The rules that every policy keeps, as tests for pytest (`pip install servelab[testing]`).

    from servelab.testing import PolicyConformance
    from soonest import Soonest

    class TestSoonest(PolicyConformance):
        policy_factory = Soonest  # or policy_name = "soonest", a YAML of conf/policy or of config_dir/policy

Runs are small and adverse: bursts, single-token requests, tight KV memory with either kind of preemption, prefix
caches, sessions, small budgets, on clusters of every kind that the policy accepts.
"""

from __future__ import annotations

from servelab.testing.suite import PolicyConformance

__all__ = ["PolicyConformance"]
