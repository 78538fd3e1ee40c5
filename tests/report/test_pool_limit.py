"""What bounds a pool, in one word."""

from __future__ import annotations

from typing import Any

import pytest

from framework.diagnosis.pool_limit import pool_limit, pool_limits
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from tests.helpers.results import small_result

POOL = {"utilization": 0.9, "kv_utilization": 0.3, "mfu": 0.45, "mbu": 0.18}


@pytest.mark.parametrize(
    ("changes", "queue_s", "word", "evidence"),
    [
        ({}, 0.0, "compute", "its steps reach 50.0 % of peak FLOP/s and 20.0 % of peak bandwidth"),
        ({"mfu": 0.09}, 9.0, "bandwidth", "its steps reach 10.0 % of peak FLOP/s and 20.0 % of peak bandwidth"),
        ({"kv_utilization": 0.8}, 9.0, "capacity", "80.0 % of the KV memory are in use on average"),
        ({"utilization": 0.4}, 0.9, "queue", "requests wait 0.9 s for prefills of 0.5 s on average, and"),
        ({"utilization": 0.4}, 0.5, "none", "in steps for 40.0 % of the time, and requests hardly wait"),
        ({"utilization": None, "kv_utilization": None}, 0.0, "none", "in steps for 0.0 % of the time"),
    ],
)
def test_the_word_and_its_evidence(changes: dict[str, Any], queue_s: float, word: str, evidence: str) -> None:
    found = pool_limit(POOL | changes, queue_s, prefill_s=0.5)
    assert found.word == word
    assert evidence in found.evidence


def test_a_gpu_without_a_stated_peak_is_not_called_idle() -> None:
    found = pool_limit(POOL | {"mfu": None}, 0.0, 0.5)
    assert (found.word, found.evidence) == ("none", "instances are in steps for 90.0 % of the time; no peak is stated")


def test_waits_are_those_of_the_pool_that_computes_the_prompts() -> None:
    result = small_result()
    result.instances["busy_s"] /= 2
    result.requests["start_s"] -= 0.25  # so that prefills take longer than the wait for them
    limits = list(pool_limits(result, evaluate(result, Slo())))
    assert [limit.word for limit in limits] == ["none", "none"]
    result.requests["start_s"] += 0.375
    limits = list(pool_limits(result, evaluate(result, Slo())))
    assert [limit.word for limit in limits] == ["queue", "none"]
