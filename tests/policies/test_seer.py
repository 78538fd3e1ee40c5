"""What distinguishes Seer: a roll-out in chunks that may move, and the longest groups first by their first sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.seer import Seer
from policies.vllm_v1 import VllmV1
from tests.helpers.by_hand import fleet, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])


def groups(*names: int) -> dict[str, Any]:
    return {"session_id": np.array(names)}


@ENGINES
def test_the_longest_group_goes_first_once_its_probe_has_told(implementation: str) -> None:
    """One seat. The probes are requests 0 and 2; then the samples of the group whose probe was longer go first."""
    rows = [(0.0, 4, 2), (0.0, 4, 2), (0.0, 4, 6), (0.0, 4, 6)]
    settings: dict[str, Any] = {"columns": groups(0, 0, 1, 1), "max_batch": 1}
    ends = play(Seer(), rows, **settings, implementation=implementation).requests["end_s"].tolist()
    assert ends == [2, 16, 8, 14]
    neighbour = play(VllmV1(), rows, **settings)
    assert neighbour.requests["end_s"].tolist() == [2, 4, 10, 16]


@ENGINES
def test_a_roll_out_ends_sooner_where_the_long_samples_do_not_come_last(implementation: str) -> None:
    """Two instances of one seat, three groups of two samples, the last the longest. The engine's order ends with both
    long ones. Here one of them is a probe, and the other one follows before the second samples of other groups.
    """
    rows = [(0.0, 4, tokens) for tokens in (4, 4, 2, 2, 9, 9)]
    settings: dict[str, Any] = {"columns": groups(0, 0, 1, 1, 2, 2), "max_batch": 1}
    ends = play(Seer(), rows, fleet(mixed=2), **settings, implementation=implementation).requests["end_s"].tolist()
    assert ends[4:] == [11, 13]
    neighbour = play(VllmV1(), rows, fleet(mixed=2), **settings)
    assert neighbour.requests["end_s"].tolist() == [4, 4, 6, 6, 15, 15]


@ENGINES
def test_probes_take_turns_in_chunks(implementation: str) -> None:
    """One seat. After its first two tokens request 0 steps aside for the probe that has none, and keeps its KV."""
    rows = [(0.0, 4, 8), (0.0, 4, 2)]
    settings: dict[str, Any] = {"max_batch": 1, "implementation": implementation}
    divided = play(Seer(chunk_tokens=2), rows, **settings)
    assert divided.requests["end_s"].tolist() == pytest.approx([10, 4], abs=0.01)
    assert divided.requests["preemptions"].tolist() == [1, 0]
    whole = play(Seer(chunk_tokens=100), rows, **settings)
    assert whole.requests["end_s"].tolist() == [8, 10]


@ENGINES
def test_a_request_moves_where_room_is_at_the_end_of_its_chunk(implementation: str) -> None:
    """Requests 0 and 1 begin on instance 0. Those of instance 1 end at 2 s, and 1 goes there at the end of its chunk;
    with `vllm_v1` no request ever moves.
    """
    rows = [(0.0, 4, 20), (0.0, 4, 20), (0.0, 4, 2), (0.0, 4, 2)]
    settings: dict[str, Any] = {"kv_tokens": 40, "implementation": implementation}
    moved = play(Seer(chunk_tokens=4), rows, fleet(mixed=2), **settings)
    assert moved.requests["prefill_instance"].tolist() == [0, 0, 1, 1]
    assert moved.requests["migrations"].tolist() == [0, 1, 0, 0]
    assert play(Seer(chunk_tokens=100), rows, fleet(mixed=2), **settings).requests["migrations"].sum() == 0


@ENGINES
def test_room_for_a_chunk_is_there_before_it_begins(implementation: str) -> None:
    """40 tokens of KV, two requests of 34. The engine's own order admits both, and preempts one of them."""
    rows = [(0.0, 4, 30), (0.0, 4, 30)]
    settings: dict[str, Any] = {"kv_tokens": 40, "implementation": implementation}
    reserved = play(Seer(chunk_tokens=30), rows, **settings)
    assert reserved.requests["end_s"].tolist() == [30, 60]
    assert reserved.requests["preemptions"].tolist() == [0, 0]
    neighbour = play(VllmV1(), rows, **settings)
    assert neighbour.requests["preemptions"].tolist() == [0, 1]
