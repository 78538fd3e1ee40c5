"""When stores of prefixes are written, and in what chunks: worked numbers on prompts of test_prefix_stores.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.errors import InputError
from tests.engine.test_prefix_stores import play, prompts, stored, ttft_s

A, B = [1, 2], [3, 4]  # the KV memory of 12 tokens holds one prompt of 9: each evicts the other's blocks


def found(stores: PrefixStores, *names: list[int], **engine: Any) -> list[int]:
    """Cached tokens of these prompts, one every 100 s."""
    result = play(prompts(*((100.0 * k, own) for k, own in enumerate(names))), stores, **engine)
    return [int(x) for x in result.requests["cached_tokens"]]


def test_a_block_is_written_with_a_later_use() -> None:
    assert found(stored(Tier()), A, B, A, B, A) == [0, 0, 8, 8, 8]
    assert found(stored(Tier(write_after=2)), A, B, A, B, A) == [0, 0, 0, 0, 8]
    assert found(stored(Tier(write_after=3)), A, B, A, B, A, B, A) == [0, 0, 0, 0, 0, 0, 8]


def test_what_is_evicted_is_written_back() -> None:
    """A store of two blocks holds the prompt that GPU memory does not."""
    assert found(stored(Tier(capacity_tokens=8)), A, B, A, B) == [0, 0, 0, 0]
    assert found(stored(Tier(capacity_tokens=8, write="back")), A, B, A, B) == [0, 0, 8, 8]
    assert found(stored(Tier(capacity_tokens=4, write="back")), A, B, A) == [0, 0, 4]


def test_what_stays_in_gpu_memory_is_not_written_back() -> None:
    result = play(prompts((0.0, A), (100.0, A)), stored(Tier(write="back")))
    assert result.tiers["count"].tolist() == [0]
    assert result.requests["cached_tokens"].tolist() == [0, 8]


def test_a_tier_takes_what_the_one_above_evicts() -> None:
    result = play(prompts((0.0, A), (100.0, B), (200.0, A)), stored(Tier(capacity_tokens=8), Tier(write="back")))
    assert result.requests["cached_tokens"].tolist() == [0, 0, 8]
    assert result.tiers["hit_tokens"].tolist() == [0, 8]
    assert result.tiers["count"].tolist() == [2, 4]  # of the first A; and B, which the third prompt drives out


def test_what_is_loaded_becomes_the_youngest() -> None:
    """A store of four blocks has A's and B's when A is loaded and drives C out, so that C's take the place of B's."""
    tier = Tier(capacity_tokens=16, write="back")
    assert found(stored(tier), A, B, [5, 6], A, B, [5, 6]) == [0, 0, 0, 8, 0, 8]


def test_chunks_are_kept_and_found_whole() -> None:
    two = stored(Tier(chunk_tokens=8))
    assert found(two, A, B, A) == [0, 0, 8]
    assert found(stored(Tier()), A, B, [1, 9]) == [0, 0, 4]
    assert found(two, A, B, [1, 9]) == [0, 0, 0]
    assert found(stored(Tier(chunk_tokens=12)), A, B, A) == [0, 0, 0]  # no prompt fills it


def test_a_chunk_counts_once_against_the_capacity() -> None:
    result = play(prompts((0.0, A), (100.0, B), (200.0, A)), stored(Tier(chunk_tokens=8, capacity_tokens=15)))
    assert result.tiers["capacity"].tolist() == [1]
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0]
    roomy = play(prompts((0.0, A), (100.0, B), (200.0, A)), stored(Tier(chunk_tokens=8, bandwidth_bytes_s=64.0)))
    assert ttft_s(roomy) == [9.0, 9.0, 2.0]
    assert roomy.tiers["count"].tolist() == [2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tier(write="back", shared=True), "write=back is an instance's own"),
        (lambda: Tier(write="back", write_after=2), "write=back is an instance's own"),
        (lambda: Tier(write_after=0), "write_after must be a whole number"),
        (lambda: Tier(write="later"), "write must be"),  # type: ignore[arg-type]
        (lambda: stored(Tier(write="back", chunk_tokens=8)), "what is evicted are single blocks"),
        (lambda: stored(Tier(chunk_tokens=8), Tier(write="back")), "what is evicted are single blocks"),
        (lambda: found(stored(Tier(chunk_tokens=6)), A), "chunk_tokens=6 is no multiple of the 4 tokens"),
    ],
)
def test_rules_that_cannot_be_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
