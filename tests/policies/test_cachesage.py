"""What distinguishes CacheSage: contexts of agents that are not called again leave first, whenever they were used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.policy import Cluster, Request, Retain
from policies.cachesage import CacheSage
from policies.sticky import Sticky
from tests.helpers.by_hand import play
from tests.helpers.scenarios import prefixes

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])


def calls(*rows: tuple[str, int, int, int, float]) -> dict[str, Any]:
    """Of (agent, session, prompt, the call that it waits for, seconds after it); -1: a session of no further call."""
    agents, sessions, prompts, previous, think_s = zip(*rows, strict=True)
    ids = [
        [100 * (1 + session if session >= 0 else 50 + k) + j for j in range(tokens)]
        for k, (session, tokens) in enumerate(zip(sessions, prompts, strict=True))
    ]
    columns = {"session_id": np.array(sessions), "previous": np.array(previous), "think_s": np.array(think_s)}
    return columns | prefixes(ids, 1) | {"tenant": agents}


@ENGINES
def test_what_is_not_read_again_leaves_first(implementation: str) -> None:
    """20 tokens of KV. Agent a has come back once, after a second; agent b has never. When the last prompt of b needs
    10 tokens, the 6 of a are the oldest and stay, so that a's next call finds them. By last use they are gone.
    """
    columns = calls(
        ("a", 0, 4, -1, 0), ("a", 0, 6, 0, 1.0), ("b", -1, 5, -1, 0), ("b", -1, 5, -1, 0), ("b", -1, 10, -1, 0),
        ("a", 0, 8, 1, 9.0),
    )  # fmt: skip
    rows = [(0.0, 4, 1), (2.0, 6, 1), (4.0, 5, 1), (6.0, 5, 1), (10.0, 10, 1), (12.0, 8, 1)]
    settings: dict[str, Any] = {"columns": columns, "kv_tokens": 20, "prefix_cache": True}
    kept = play(CacheSage(samples=1), rows, **settings, implementation=implementation)
    assert kept.requests["cached_tokens"].tolist() == [0, 4, 0, 0, 0, 6]
    neighbour = play(Sticky(), rows, **settings, implementation=implementation)
    assert neighbour.requests["cached_tokens"].tolist() == [0, 4, 0, 0, 0, 0]


class Watched(CacheSage):
    """Keeps the ranks of its answers."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ranks: list[int] = []

    def on_call_end(self, request: Request, cluster: Cluster) -> Retain:
        answer = super().on_call_end(request, cluster)
        self.ranks.append(answer.rank)
        return answer


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        ({}, [-8, 7, 7, 7]),
        ({"steps": 1}, [-8, 7, -8, -8]),  # as if contexts came back by themselves or not at all
        ({"horizon_s": 1.0}, [-8, -8, -8, -8]),
        ({"samples": 9}, [-8, 7, 7, 7]),  # all agents together
    ],
)
def test_who_follows_whom_tells_when_an_agent_is_called_again(settings: dict[str, Any], ranks: list[int]) -> None:
    """An agent b follows a after 2 s, and a follows b: each is called again within two calls, never by itself. Of the
    first call nothing is known.
    """
    columns = calls(
        ("a", 0, 2, -1, 0), ("b", 0, 3, 0, 2.0), ("a", 0, 4, 1, 2.0), ("b", 0, 5, 2, 2.0), ("c", 1, 1, -1, 0)
    )
    rows = [(0.0, 2, 1), (3.0, 3, 1), (6.0, 4, 1), (9.0, 5, 1), (99.0, 1, 1)]
    policy = Watched(**{"samples": 1, **settings})
    play(policy, rows, columns=columns, prefix_cache=True)
    assert policy.ranks == ranks
