"""What distinguishes QLM from rank and from first come, first served: it evicts only where a request would be late."""

from __future__ import annotations

import numpy as np
import pytest

from framework.policy import Policy
from framework.policy.predictor import Floats, Integers, Predictor
from framework.result import Result
from policies.continuous import Continuous
from policies.qlm import Qlm
from policies.trail import Trail
from predictors.oracle import Oracle
from tests.helpers.by_hand import Rows, fleet, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
LIMITS_S = [100.0, 8.0]  # of batch and of chat
ROWS: Rows = [(0.0, 4, 20), (14.0, 4, 5)]  # a job of 20 s, and a chat request when it has 6 tokens left
EARLY: Rows = [(0.0, 4, 20), (5.0, 4, 5)]  # when it has 15 left
CLASSES = {"slo_class": ("batch", "chat")}


class Ten(Predictor):
    """Expects ten tokens of each request, and one more of those that have as many."""

    stride = 1

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        return np.maximum(10.0 - generated, 1.0), np.zeros(len(requests))


def qlm(**settings: int) -> Qlm:
    return Qlm(classes_ttft_s=LIMITS_S, period_s=1.0, **settings)


def served(policy: Policy, rows: Rows, implementation: str = "compiled") -> Result:
    """With one seat, and outputs that are known."""
    options = {"predictor": Oracle(), "max_batch": 1, "implementation": implementation}
    return play(policy, rows, columns=CLASSES, **options)  # type: ignore[arg-type]


@ENGINES
def test_a_request_that_can_wait_evicts_nobody(implementation: str) -> None:
    """The job ends after 6 s more, and the limit is 8 s. By remaining output alone it would be evicted."""
    assert served(qlm(), ROWS, implementation).requests["preemptions"].tolist() == [0, 0]
    assert served(Trail(share=1.0), ROWS, implementation).requests["preemptions"][0] == 1


@ENGINES
def test_a_request_that_would_be_late_takes_the_place_of_one_that_is_due_later(implementation: str) -> None:
    evicting, waiting = served(qlm(), EARLY, implementation), served(Continuous(), EARLY, implementation)
    first_s, late_s = (one.requests["first_token_s"][1] - 5.0 for one in (evicting, waiting))
    assert first_s <= 8.0 < 15.0 <= late_s
    assert evicting.instances["prefill_tokens"].tolist() == [8]  # KV of the job is kept, in host memory
    assert evicting.requests["end_s"][0] > waiting.requests["end_s"][0]


def test_one_that_is_late_in_any_case_evicts_nobody() -> None:
    rows: Rows = [(0.0, 4, 20), (5.0, 4, 5)]
    hopeless = Qlm(classes_ttft_s=[100.0, 0.5], period_s=1.0)
    assert served(hopeless, rows).requests["preemptions"].tolist() == [0, 0]


def test_a_group_is_due_when_its_first_request_is() -> None:
    """Requests 1 to 3 wait for 0. By their own limits 3, of another class, would be before 2."""
    rows: Rows = [(0.0, 4, 8), (1.0, 4, 2), (2.0, 4, 2), (2.5, 4, 2)]
    classes = {"slo_class": ("batch", "batch", "batch", "chat")}
    for size, order in ((3, [0, 1, 2, 3]), (1, [0, 1, 3, 2])):
        policy = Qlm(classes_ttft_s=[30.0, 29.0], group_requests=size, period_s=1.0)
        result = play(policy, rows, columns=classes, predictor=Oracle(), max_batch=1)
        assert result.requests["first_token_s"].argsort(kind="stable").tolist() == order


def test_what_would_be_late_moves_to_an_instance_where_it_is_not() -> None:
    """All are expected to emit 10 tokens. Request 2, due at 26 s, waits for request 0 as long as it can;
    instance 1 has been free since 12 s.
    """
    rows: Rows = [(0.0, 4, 40), (0.0, 4, 12), (6.0, 4, 2)]
    result = play(Qlm(ttft_s=20.0, period_s=1.0), rows, fleet(mixed=2), predictor=Ten(), max_batch=1)
    assert result.requests["prefill_instance"].tolist() == [0, 1, 1]
    assert 20.0 < result.requests["first_token_s"][2] <= 26.0
