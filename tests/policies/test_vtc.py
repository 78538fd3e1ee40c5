"""What distinguishes VTC from first-come-first-served: tenants that wait are served alike, within its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.objective.goodput import Goodput
from framework.run.compose import compose
from framework.workload import Workload
from policies.vtc import Vtc
from tests.helpers.composing import configured

KV_TOKENS, PROMPT, OUTPUT = 4000, 200, 60
BOUND = 2 * max(PROMPT, 2 * KV_TOKENS)  # of two backlogged tenants (VTC, theorem 4.4)


def served(policy: str, *settings: str) -> dict[str, Any]:
    """400 requests that come within a second, three of four from tenant a."""
    lengths = f"trace.input.law=uniform trace.input.low=20 trace.input.high={PROMPT} trace.output.law=uniform "
    lengths += f"trace.output.low=5 trace.output.high={OUTPUT}"
    words = (
        f"policy={policy} cluster.instances=1 timing=roofline server=none engine.kv_tokens={KV_TOKENS} trace=synthetic"
    )
    words = f"{words} trace.requests=400 trace.rate=400 trace.tenants={{a:0.75,b:0.25}} {lengths}"
    return Goodput().measure(compose(configured(*words.split(), *settings))).evaluation.summary


def test_service_of_two_tenants_that_wait_differs_by_no_more_than_the_bound() -> None:
    fair, first_come = served("vtc"), served("chunked")
    assert fair["service_difference"] <= BOUND < first_come["service_difference"]
    assert fair["completed"] == first_come["completed"] == 400
    slow = [one["tenants"]["b"]["mean_slowdown"] for one in (fair, first_come)]
    assert slow[0] < 0.7 * slow[1]


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_counters_by_hand(implementation: str) -> None:
    """One request at a time, prompts of 10 and outputs of 1: 12 of service each.

    a sends four at once, and b two at 0.5 s, while a's first runs: b's counter is lifted to the 10 that a was charged
    for its prompt. At 1 s a has 12, so b comes next, then they alternate: 22 for b, 24 for a, 34 for b.
    """
    assert _order([0.0, 0.0, 0.0, 0.0, 0.5, 0.5], "aaaabb", implementation) == [0, 4, 1, 5, 2, 3]


def test_a_tenant_that_was_idle_has_saved_nothing() -> None:
    """b comes 20 requests late: it gets every second turn from then on, not the next 20."""
    arrivals = [0.0] * 40 + [20.5] * 10
    order = _order(arrivals, "a" * 40 + "b" * 10, "compiled")
    tenants = ["ab"[r >= 40] for r in order]
    first = tenants.index("b")
    assert "aa" not in "".join(tenants[first : first + 19])
    assert "bbb" not in "".join(tenants)


def _order(arrival_s: list[float], tenants: str, implementation: str) -> list[int]:
    """In which order requests are first admitted, where one runs at a time for a second."""
    count = len(arrival_s)
    experiment = compose(
        configured(
            *("policy=vtc", "cluster.instances=1", "server=none", "engine.max_batch=1", "trace=synthetic"),
            *("timing=affine", "timing.base_s=1", "timing.per_prefill_token_s=0", "timing.prefill_quadratic_s=0"),
            f"engine.implementation={implementation}",
        )
    )
    workload = Workload(np.array(arrival_s), np.full(count, 10), np.full(count, 1), tenant=tuple(tenants))
    result = experiment.on(workload).run()
    return np.argsort(result.requests["start_s"], kind="stable").tolist()


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.output_weight must be a finite number above 0"):
        Vtc(output_weight=0)
