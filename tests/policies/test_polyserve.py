"""What distinguishes PolyServe from routing by load: tiers stay apart, and instances are filled one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from framework.errors import InputError
from framework.policy import Policy
from framework.timing.table import StepRow
from policies.chunked import Chunked
from policies.polyserve import PolyServe
from tests.helpers.by_hand import fleet, play

STEP = StepRow(base_s=1.0, per_sequence_s=0.125)  # 1.625 s with five decodes
TIGHT = 1.7
LOOSE, TIGHT_CLASS = "loose", "tight"


def placed(policy: Policy, classes: str, instances: int = 4, implementation: str = "compiled") -> list[int]:
    """Where requests of the class l (loose) or t (tight) go that come a second apart and last long."""
    rows = [(1.0 * k, 4, 100) for k in range(len(classes))]
    columns = {"slo_class": tuple({"l": LOOSE, "t": TIGHT_CLASS}[one] for one in classes)}
    options: dict[str, Any] = {"max_batch": 64, "kv_tokens": 4000, "implementation": implementation}
    result = play(policy, rows, fleet(mixed=instances), columns=columns, row=STEP, **options)
    return result.requests["prefill_instance"].tolist()


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_a_tier_fills_one_instance_after_the_other(implementation: str) -> None:
    """A step of five decodes keeps 1.7 s, of six it does not. Loose ones stay on an instance of their own."""
    where = placed(PolyServe(ttft_s=100.0, classes_tpot_s=[10.0, TIGHT]), "tltltltltltl", implementation=implementation)
    tight, loose = where[0::2], where[1::2]
    assert tight == [0, 0, 0, 0, 0, 2]
    assert set(loose) == {1}


def test_by_load_all_are_mixed() -> None:
    where = placed(Chunked(), "tltltltltltl", 3)
    assert set(where[0::2]) & set(where[1::2])


def test_where_nothing_is_free_loose_ones_share_an_instance_of_the_tighter_tier() -> None:
    """A step of eight decodes keeps 2.05 s. The ninth finds room next to the tight one."""
    where = placed(PolyServe(ttft_s=100.0, classes_tpot_s=[2.05, TIGHT]), "t" + 9 * "l", 2)
    assert where == [0, *[1] * 8, 0]


def test_chunks_are_as_large_as_the_limit_allows() -> None:
    """A prompt token takes 1/64 s and a decode 1/8 s: next to a decode, 32 tokens take 1.625 s, 64 more than 2 s."""
    row = StepRow(base_s=1.0, per_prefill_token_s=2.0**-6, per_sequence_s=0.125)
    rows = [(0.0, 32, 100), (4.0, 96, 1)]
    cut, whole = (
        play(policy, rows, row=row, kv_tokens=400, token_budget=128).requests
        for policy in (PolyServe(ttft_s=100.0, tpot_s=2.0), Chunked())
    )
    took_s = [one["first_token_s"][1] - one["start_s"][1] for one in (cut, whole)]
    assert took_s == pytest.approx([3 * 1.625, 1.0 + 1.5 + 0.125])


def test_spare_instances_are_started_and_stopped() -> None:
    rows = [(2.0 * k, 4, 20) for k in range(12)] + [(90.0, 4, 100), (100.0, 4, 2)]
    policy = PolyServe(ttft_s=100.0, tpot_s=TIGHT, period_s=1.0)
    result = play(policy, rows, fleet(mixed=1, off=3), row=STEP, kv_tokens=4000)
    assert result.instances["prefill_tokens"][1] > 0
    assert result.instances["off_s"][1] > 20


def test_fewer_limits_than_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.classes_tpot_s has 1 limits; the trace has 2 classes"):
        placed(PolyServe(classes_tpot_s=[0.1]), "lt")
