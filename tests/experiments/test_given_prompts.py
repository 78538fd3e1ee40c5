"""The number of distinct prompts, from quantiles of their lengths."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.validation.given.distinct_prompts import DEFAULT, SHARES, misfit, requests_up_to, sent_prompts


def quantiles(prompts: int, requests: int, seed: int) -> dict[str, float]:
    """Those of `requests` requests that hold `prompts` prompts of drawn lengths in turn."""
    lengths = np.random.default_rng(seed).integers(500, 700, prompts)
    sent = lengths[np.arange(requests) % prompts]
    return {name: float(np.quantile(sent, share)) for name, share in SHARES.items()}


@pytest.mark.parametrize("requests", [3000, 4800, 5990])
def test_prompts_that_were_sent_are_told_from_those_that_a_profile_states(requests: int) -> None:
    for seed in range(20):
        as_stated = quantiles(44, requests, seed)
        assert sent_prompts((11, 4), requests, as_stated) == (11, 4)
        others = quantiles(100, requests, seed)
        between = any(requests_up_to(SHARES[name], requests, value) for name, value in others.items())
        assert sent_prompts((11, 4), requests, others) == (DEFAULT if between else (11, 4))


def test_a_quantile_between_two_lengths_counts_the_requests_below() -> None:
    lengths = np.array([580] * 30 + [583] * 71)
    assert requests_up_to(0.299, 101, float(np.quantile(lengths, 0.299))) == 30
    assert requests_up_to(0.5, 101, float(np.quantile(lengths, 0.5))) is None


def test_counts_are_those_of_whole_prompts() -> None:
    # Seven prompts in 23 requests: two come four times, five come three times.
    assert [count for count in range(24) if misfit(count, 7, 23)] == [1, 2, 5, 18, 21, 22]
    assert misfit(10, 2, 40) == 10


def test_without_a_quantile_between_lengths_the_profile_counts() -> None:
    assert sent_prompts((11, 4), 3000, {"p10": 585.0, "median": 591.0}) == (11, 4)
