"""What distinguishes Preble: a prompt follows its prefix if most of it is cached, and the load is not too uneven."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from framework.policy import Policy
from framework.timing.table import StepRow
from policies.lmetric import LMetric
from policies.preble import Preble
from policies.sglang import SGLang
from tests.helpers.by_hand import fleet, play
from tests.helpers.scenarios import prefixes

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
TOKEN = StepRow(per_prefill_token_s=1.0, base_s=2**-10)  # next to nothing but a second for each token of a prompt
P, Q = 100, 200  # prefixes


def placed(policy: Policy, calls: Sequence[tuple[float, int, int, int]], **options: Any) -> list[int]:
    """The instances of two of calls (arrival, prefix, tokens of it, tokens of their own), which emit a token each."""
    return played(policy, calls, **options).requests["prefill_instance"].tolist()


def played(policy: Policy, calls: Sequence[tuple[float, int, int, int]], instances: int = 2, **options: Any) -> Any:
    own = count(1000)
    ids = [[prefix + k for k in range(shared)] + [next(own) for _ in range(new)] for _, prefix, shared, new in calls]
    rows = [(at, shared + new, 1) for at, _, shared, new in calls]
    settings: dict[str, Any] = {"row": TOKEN, "prefix_cache": True, "kv_tokens": 1000} | options
    return play(policy, rows, fleet(mixed=instances), columns=prefixes(ids, 1), **settings)


@ENGINES
def test_exploits_if_more_is_cached_than_not_and_explores_otherwise(implementation: str) -> None:
    """The first prompt leaves a load of 8 s on instance 0. The second has 8 of 12 tokens cached there, and costs 12 s
    at either; the third has 8 of 20 cached, and costs 12 + 12 s there and 20 s on instance 1. By what an idle instance
    would have to prefill it would follow its prefix too.
    """
    calls = [(0.0, P, 8, 0), (20.0, P, 8, 4), (40.0, P, 8, 12)]
    assert placed(Preble(), calls, implementation=implementation) == [0, 0, 1]
    assert placed(LMetric(), calls) == [0, 0, 0]
    assert placed(SGLang(), calls) == [0, 0, 0]


@ENGINES
@pytest.mark.parametrize(("window_s", "last"), [(180.0, 1), (30.0, 0)])
def test_an_uneven_load_moves_a_prompt_away_from_its_prefix(window_s: float, last: int, implementation: str) -> None:
    """Prompts of 3 and 4 new tokens add to the 8 s of the first. The fourth finds 15 s, more than the 12 s that it
    takes on the idle instance. A window of 30 s has forgotten all but the third.
    """
    calls = [(0.0, P, 8, 0), (20.0, P, 8, 3), (40.0, P, 8, 4), (60.0, P, 8, 4)]
    assert placed(Preble(window_s), calls, implementation=implementation) == [0, 0, 0, last]


def test_loads_may_be_uneven_by_a_factor() -> None:
    """Instance 1 has 14 s of another prefix. The sixth of the first one's prompts finds 24 s there: 10 more than the
    least, less than the 12 that it would take to compute the prefix too; the eighth finds 32 s, with 14 + 12 s there.
    """
    calls = [(0.0, P, 8, 0), (0.5, Q, 14, 0), *[(20.0 + 5 * k, P, 8, 4) for k in range(7)]]
    assert placed(Preble(), calls) == [0, 1, 0, 0, 0, 0, 0, 1, 0]
    assert placed(Preble(imbalance=3.0), calls) == [0, 1, 0, 0, 0, 0, 0, 0, 0]


@ENGINES
@pytest.mark.parametrize(("slower", "last"), [(2.0, 1), (9.0, 0)])
def test_a_prefix_whose_ttft_has_doubled_gets_a_copy(slower: float, last: int, implementation: str) -> None:
    """Six prompts of one new token each come apart, in the first half of the window; six of two come at once in the
    second, and wait for each other. The last one would take 28 s with its prefix, and 24 s without it.
    """
    apart, at_once = [(9.0 + k, P, 8, 1) for k in range(6)], [(20.5, P, 8, 2)] * 6
    calls = [(0.0, P, 8, 0), (0.5, Q, 14, 0), *apart, *at_once, (47.0, P, 8, 2)]
    policy = Preble(window_s=60.0, imbalance=2.0, slower=slower)
    assert placed(policy, calls, implementation=implementation, max_batch=1) == [0, 1, *[0] * 12, last]


@pytest.mark.parametrize(("kv_tokens", "last"), [(1000, 0), (16, 1)])
def test_what_a_prompt_would_evict_counts_as_often_as_it_is_found(kv_tokens: int, last: int) -> None:
    """The last prompt, of 12 new tokens, costs 10 + 12 s on instance 0 and 12 + 12 s on instance 1. In 16 blocks it
    would evict 7 tokens on instance 0, where 8 of 18 were cached: 3.1 s. On instance 1 none were, so it costs nothing.
    """
    calls = [(0.0, P, 8, 0), (0.5, Q, 12, 0), (30.0, P, 8, 2), (60.0, 300, 0, 12)]
    assert placed(Preble(), calls, kv_tokens=kv_tokens) == [0, 1, 0, last]


@ENGINES
def test_cached_prompts_are_served_more_often_not_always(implementation: str) -> None:
    """Two groups on one instance that holds one prompt at a time: of those that wait while a long prompt runs, two of
    the cached ones go for each of the other, which came first.
    """
    calls = [(0.0, P, 8, 0), (9.0, 300, 0, 8), (10.0, 400, 0, 2), (11.0, 500, 0, 2), *[(12.0, P, 8, 2)] * 5]
    settings: dict[str, Any] = {"instances": 1, "max_batch": 1, "implementation": implementation}
    starts = played(Preble(groups=2), calls, **settings).requests["start_s"]
    assert starts.argsort(kind="stable").tolist() == [0, 1, 4, 2, 5, 6, 3, 7, 8]
    starts = played(SGLang(), calls, **settings).requests["start_s"]
    assert starts.argsort(kind="stable").tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
