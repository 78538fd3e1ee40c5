"""What distinguishes SLOs-Serve from chunked prefill: a burst costs few promises, and promises come first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.policy import Policy
from framework.timing.table import StepRow
from policies.chunked import Chunked
from policies.polyserve import PolyServe
from policies.slos_serve import SlosServe
from tests.helpers.by_hand import Rows, fleet, play

PROMPTS = StepRow(base_s=0.0, per_prefill_token_s=2.0**-4)  # 16 prompt tokens in a second
STEP = StepRow(base_s=0.0, per_prefill_token_s=2.0**-4, per_sequence_s=2.0**-3)
BURST: Rows = [(0.0, 48, 1), (0.0, 16, 1), (0.0, 16, 1), (0.0, 16, 1)]  # 3 s, and three times 1 s


def in_time(policy: Policy, rows: Rows, limit_s: float, row: StepRow = PROMPTS, **options: int) -> list[bool]:
    """Which prompts are done within the limit."""
    sizes: dict[str, Any] = {"token_budget": 16, "kv_tokens": 4000} | options
    requests = play(policy, rows, row=row, **sizes).requests
    assert np.all(requests["state"] == 1)
    return (requests["first_token_s"] - requests["arrival_s"] <= limit_s).tolist()


def test_a_burst_costs_one_promise() -> None:
    """Three of four can be done in 3.5 s; first come, first served, one is, and the tiers of PolyServe are no help."""
    assert in_time(SlosServe(ttft_s=3.5, tpot_s=10.0), BURST, 3.5) == [False, True, True, True]
    for other in (Chunked(), PolyServe(ttft_s=3.5, tpot_s=10.0)):
        assert in_time(other, BURST, 3.5) == [True, False, False, False]


def test_a_prompt_that_is_due_later_waits() -> None:
    """The second is due at 2.5 s, the first, which another class is, at 9 s."""
    rows: Rows = [(0.0, 16, 1), (0.0, 48, 1), (0.5, 16, 1)]
    classes = {"slo_class": ("chat", "batch", "chat")}
    policy = SlosServe(classes_ttft_s=[9.0, 2.0], tpot_s=10.0)
    requests = play(policy, rows, row=PROMPTS, columns=classes, token_budget=16, kv_tokens=4000).requests
    assert requests["first_token_s"] == pytest.approx([1.0, 5.0, 2.0])


def test_another_instance_keeps_what_one_cannot() -> None:
    """Each has a decode. Next to that of instance 0, whose limit is 2.2 s, a prompt has no room for 32 tokens."""
    rows: Rows = [(0.0, 16, 100), (0.0, 16, 100), (2.5, 64, 1)]
    classes = {"slo_class": ("tight", "loose", "loose")}
    promising = SlosServe(ttft_s=5.0, classes_tpot_s=[10.0, 2.2])
    for policy, instance in ((promising, 1), (Chunked(), 0)):
        result = play(policy, rows, fleet(mixed=2), row=STEP, columns=classes, token_budget=64, kv_tokens=4000)
        assert result.requests["prefill_instance"].tolist() == [0, 1, instance]


def test_requests_without_a_promise_step_aside() -> None:
    """The first has no promise, since 4 s are not enough for it; it holds the memory that the second needs."""
    rows: Rows = [(0.0, 80, 30), (6.0, 32, 1)]
    assert in_time(SlosServe(ttft_s=4.0, tpot_s=10.0), rows, 4.0, STEP, kv_tokens=112) == [False, True]
    assert in_time(Chunked(), rows, 4.0, STEP, kv_tokens=112) == [False, False]


def test_steps_keep_the_pace_of_promised_requests_alone() -> None:
    """Next to a promised decode a prompt of 64 tokens, which would take 4.125 s, comes in two steps."""
    rows: Rows = [(0.0, 16, 40), (2.5, 64, 1)]
    promised, without = (
        play(SlosServe(ttft_s=ttft_s, tpot_s=2.2), rows, row=STEP, token_budget=128, kv_tokens=4000).requests
        for ttft_s in (9.0, 0.5)
    )
    took_s = [float(one["first_token_s"][1] - one["start_s"][1]) for one in (promised, without)]
    assert took_s == pytest.approx([2 * 2.125, 4.125])


def test_fewer_limits_than_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.classes_ttft_s has 1 limits; the trace has 2 classes"):
        play(SlosServe(classes_ttft_s=[0.1]), BURST[:2], columns={"slo_class": ("a", "b")})
