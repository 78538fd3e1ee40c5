"""What distinguishes Kairos from DistServe: a long prompt does not make others late, nor does a long context."""

from __future__ import annotations

import numpy as np
import pytest

from framework.policy import Policy
from framework.result import Result
from framework.timing.table import StepRow
from policies.distserve import DistServe
from policies.kairos import Kairos
from tests.helpers.by_hand import fleet, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
PROMPTS = StepRow(base_s=0.5, per_prefill_token_s=0.5)  # 1 s for a prompt of one token, 5 s for one of nine
DECODES = StepRow(base_s=0.5, per_context_token_s=2.0**-6)


@ENGINES
def test_a_long_prompt_waits_so_that_those_behind_it_are_in_time(implementation: str) -> None:
    """While request 0 is computed, up to 1 s, one of 5 s and four of 1 s come. Within 6 s all of the short ones can be
    done, and the long one is late whatever comes first.
    """
    rows = [(0.0, 1, 1), (0.25, 9, 1), *[(0.5, 1, 1)] * 4]
    cluster = fleet(prefill=1, decode=1)

    def in_time(policy: Policy) -> int:
        result = play(policy, rows, cluster, row=PROMPTS, token_budget=9, implementation=implementation)
        ttft_s = result.requests["first_token_s"] - result.requests["arrival_s"]
        return int(np.count_nonzero(ttft_s <= 5.5))

    assert in_time(Kairos(ttft_s=5.5)) == 5
    assert in_time(DistServe()) < 5


@ENGINES
def test_a_long_context_sits_out_while_it_has_slack(implementation: str) -> None:
    """Alone, request 0 gets a token in some 2 s, where its limit is 3 s. A step with six short ones takes 4 s, and 2.6
    s without request 0, which has 20 s of slack. (One of the six joins a step late.)
    """

    def run(policy: Policy) -> Result:
        rows = [(0.0, 80, 45), *[(40.0, 20, 8)] * 6]
        cluster = fleet(prefill=1, decode=1)
        return play(policy, rows, cluster, row=DECODES, kv_tokens=1000, implementation=implementation)

    paced, plain = run(Kairos(tpot_s=3.0)), run(DistServe())
    gaps = paced.requests["emitted"] - 1
    paced_s, plain_s = ((one.requests["end_s"] - one.requests["first_token_s"]) / gaps for one in (paced, plain))
    assert np.count_nonzero(paced_s < 3.0) == 6
    assert np.count_nonzero(plain_s < 3.0) == 1
