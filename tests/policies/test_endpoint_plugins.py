"""Each scorer, filter and picker of an endpoint picker, on three endpoints whose numbers can be followed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from policies._endpoint_profiles import read_profiles
from policies._endpoints import Choice

PROMPT = 64


def choice(session: int = -1, left: tuple[int, ...] = (0, 1, 2), **columns: Any) -> Choice:
    """Endpoints 4, 5 and 6, of 100 KV blocks each; columns not given are 0."""
    zero = np.zeros(3, np.int64)
    names = ("queued", "running", "prefilling", "incoming", "queued_tokens", "evictable_blocks", "free_blocks")
    given = {name: np.array(columns.get(name, zero)) for name in names}
    cached = np.array(columns.get("cached", zero))
    pool: Any = SimpleNamespace(
        **given, total_blocks=np.full(3, 100), ids=np.array([4, 5, 6]), cached_tokens=lambda request: cached
    )
    request: Any = SimpleNamespace(input_tokens=PROMPT, session=session, id=0)
    return Choice(request, None, pool, np.array(left))  # type: ignore[arg-type]


def made(kind: str, **parameters: Any) -> Any:
    """The plugin of a type, with parameters of a file."""
    plugins = [{"type": kind, "parameters": parameters}]
    profile = read_profiles({"kind": "EndpointPickerConfig", "plugins": plugins})["default"]
    return (*profile.filters, *(scorer for scorer, _ in profile.scorers), profile.picker)[0]


@pytest.mark.parametrize(
    ("kind", "parameters", "columns", "scores"),
    [
        ("queue-scorer", {}, {"queued": [2, 6, 10]}, [1.0, 0.5, 0.0]),
        ("queue-scorer", {}, {"queued": [3, 3, 3]}, [1.0, 1.0, 1.0]),
        ("running-requests-size-scorer", {}, {"running": [1, 4, 5], "prefilling": [0, 1, 0]}, [1.0, 0.0, 0.0]),
        ("kv-cache-utilization-scorer", {}, {"free_blocks": [20, 0, 70], "evictable_blocks": [5, 0, 30]}, [0.25, 0, 1]),
        ("prefix-cache-scorer", {}, {"cached": [0, 16, 48]}, [0.0, 0.25, 0.75]),
        (  # (48 / 96)^2 = 0.25, and 48 / 64 = 0.75
            "prefix-cache-scorer",
            {"prefixLengthWeight": 0.5, "maxModelLen": 96, "blockSize": 64},
            {"cached": [0, 48, 48]},
            [0.0, 0.5, 0.5],
        ),
        ("load-aware-scorer", {}, {"queued": [0, 32, 200]}, [0.5, 0.375, 0.0]),
        ("load-aware-scorer", {"threshold": 64}, {"queued": [0, 32, 64]}, [0.5, 0.25, 0.0]),
        ("active-request-scorer", {}, {"queued": [0, 1, 0], "running": [0, 1, 3], "incoming": [0, 0, 1]}, [1, 0.5, 0]),
        ("active-request-scorer", {"idleThreshold": 2, "maxBusyScore": 0.5}, {"running": [2, 5, 10]}, [1, 0.25, 0]),
        (  # 36 + 64, 0 + 64 - 14, 200 of 200
            "token-load-scorer",
            {"queueThresholdTokens": 200},
            {"queued_tokens": [36, 0, 500], "cached": [0, 14, 0]},
            [0.5, 0.75, 0.0],
        ),
        (  # 64 x 1, 16 x 3, 32 x 4
            "lmetric-scorer",
            {},
            {"cached": [0, 48, 32], "running": [0, 2, 3]},
            [0.8, 1.0, 0.0],
        ),
    ],
)
def test_scores(kind: str, parameters: dict[str, Any], columns: dict[str, Any], scores: list[float]) -> None:
    assert made(kind, **parameters).score(choice(**columns)).tolist() == scores


def test_scores_are_of_the_endpoints_that_are_left() -> None:
    assert made("queue-scorer").score(choice(left=(1, 2), queued=[0, 6, 10])).tolist() == [1.0, 0.0]


def test_session_affinity() -> None:
    scorer = made("session-affinity-scorer")
    assert scorer.score(choice(session=7)).tolist() == [0.0, 0.0, 0.0]
    scorer.sent(choice(session=7), 5)
    scorer.sent(choice(), 4)
    assert scorer.score(choice(session=7)).tolist() == [0.0, 1.0, 0.0]
    assert scorer.score(choice()).tolist() == [0.0, 0.0, 0.0]
    pinned = made("session-affinity-filter")
    assert pinned.keep(choice(session=7)).tolist() == [True, True, True]
    pinned.sent(choice(session=7), 6)
    assert pinned.keep(choice(session=7)).tolist() == [False, False, True]
    assert pinned.keep(choice(session=7, left=(0, 1))).tolist() == [True, True]


def test_no_hit_lru() -> None:
    """Endpoints that have never been sent a cold request come first, then the one whose last one is the oldest."""
    scorer = made("no-hit-lru-scorer")
    assert scorer.score(choice()).tolist() == [1.0, 0.5, 0.0]
    scorer.sent(choice(), 4)
    assert scorer.score(choice()).tolist() == [0.0, 1.0, 0.5]
    scorer.sent(choice(), 6)
    assert scorer.score(choice()).tolist() == [0.5, 1.0, 0.0]
    assert scorer.score(choice(cached=[0, 16, 0])).tolist() == [0.5, 0.5, 0.5]
    scorer.sent(choice(), 5)  # which was not cold
    assert scorer.score(choice()).tolist() == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "parameters", "columns", "kept"),
    [
        ("low-queue-filter", {}, {"queued": [128, 129, 0]}, [True, False, True]),
        ("low-queue-filter", {"threshold": 0}, {"queued": [1, 2, 3]}, [False, False, False]),
        ("least-queue-filter", {}, {"queued": [4, 6, 11]}, [True, True, False]),  # up to 4 + 7 // 3
        ("least-kv-cache-filter", {}, {"free_blocks": [80, 59, 20]}, [True, False, False]),  # up to 20 % + 60 % / 3
        ("least-kv-cache-filter", {}, {"free_blocks": [80, 61, 20]}, [True, True, False]),
        ("active-request-filter", {"maxRequests": 2}, {"running": [2, 3, 3]}, [True, False, False]),
        ("active-request-filter", {"maxRequests": 1}, {"running": [2, 3, 3]}, [False, False, False]),
        ("active-request-filter", {"maxRequests": 1, "fallbackOnEmpty": True}, {"running": [2, 3, 3]}, [True] * 3),
        ("prefix-cache-affinity-filter", {}, {"cached": [48, 52, 64]}, [False, True, True]),
        ("prefix-cache-affinity-filter", {}, {"cached": [16, 32, 48]}, [True, True, True]),
        (  # 1,600 tokens that wait take 1,000 ms longer
            "prefix-cache-affinity-filter",
            {"peakPrefillThroughput": 1600, "maxTTFTPenaltyMs": 999},
            {"cached": [0, 64, 0], "queued_tokens": [100, 1700, 900]},
            [True, True, True],
        ),
        (
            "prefix-cache-affinity-filter",
            {"peakPrefillThroughput": 1600, "maxTTFTPenaltyMs": 1001},
            {"cached": [0, 64, 0], "queued_tokens": [100, 1700, 900]},
            [False, True, False],
        ),
        (
            "prefix-cache-affinity-filter",
            {"maxTTFTPenaltyMs": 0},
            {"cached": [0, 64, 0], "queued_tokens": [0, 10**9, 0]},
            [False, True, False],
        ),
    ],
)
def test_filters(kind: str, parameters: dict[str, Any], columns: dict[str, Any], kept: list[bool]) -> None:
    assert made(kind, **parameters).keep(choice(**columns)).tolist() == kept


def test_pickers() -> None:
    generator = np.random.default_rng(1)
    largest = made("max-score-picker")
    assert largest.pick(np.array([0.5, 2.0, 1.0]), generator) == 1
    assert [largest.pick(np.array([2.0, 1.0, 2.0]), generator) for _ in range(4)] == [0, 2, 0, 2]
    weighted, anyone = made("weighted-random-picker"), made("random-picker")
    scores = np.array([3.0, 0.0, 1.0])
    counts = np.bincount([weighted.pick(scores, generator) for _ in range(4000)], minlength=3) / 4000
    assert counts[1] == 0
    assert abs(counts[0] - 0.75) < 0.03
    for picker, of in ((weighted, np.zeros(3)), (anyone, scores)):
        counts = np.bincount([picker.pick(of, generator) for _ in range(3000)], minlength=3) / 3000
        assert np.abs(counts - 1 / 3).max() < 0.04
