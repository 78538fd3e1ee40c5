"""What distinguishes Continuum: the KV of a program waits for its next call, and programs are served as they came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.policy import Cluster, Request, Retain
from policies.continuum import Continuum
from policies.sticky import Sticky
from tests.helpers.by_hand import play
from tests.helpers.scenarios import prefixes

LAST = (8, 1, -1, 0.0)  # of another program, so that the run goes on
ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])


def calls(*rows: tuple[int, int, int, float], names: bool = True) -> dict[str, Any]:
    """Of (session, prompt, the call that it waits for, seconds after it): a prompt begins as those of its session."""
    sessions, prompts, previous, think_s = zip(*rows, strict=True)
    ids = [[100 * (1 + session) + j for j in range(tokens)] for session, tokens in zip(sessions, prompts, strict=True)]
    columns = {"session_id": np.array(sessions), "previous": np.array(previous), "think_s": np.array(think_s)}
    return columns | (prefixes(ids, 1) if names else {})


class Watched(Continuum):
    """Keeps its answers."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ttls_s: list[float] = []

    def on_call_end(self, request: Request, cluster: Cluster) -> Retain | None:
        answer = super().on_call_end(request, cluster)
        self.ttls_s.append(-1.0 if answer is None else answer.ttl_s)
        return answer


@ENGINES
def test_a_context_waits_for_its_tool_while_new_programs_wait_for_it(implementation: str) -> None:
    """Room for 16 tokens. Program 0's call of four ends at 1 s, its next one comes at 5 s and finds them; program 1
    decodes from 1 to 6 s. The 10 tokens of program 2 would find room at 2 s only where those four are.
    """
    columns = calls((0, 4, -1, 0), (1, 2, -1, 0), (2, 10, -1, 0), (0, 6, 0, 4.0))
    rows = [(0.0, 4, 1), (0.0, 2, 6), (2.0, 10, 1), (3.0, 6, 1)]
    settings: dict[str, Any] = {"columns": columns, "kv_tokens": 16, "prefix_cache": True}
    kept = play(Continuum(first_s=10.0), rows, **settings, implementation=implementation)
    assert kept.requests["start_s"].tolist() == [0.0, 0.0, 6.0, 5.0]
    assert kept.requests["cached_tokens"].tolist() == [0, 0, 0, 4]
    neighbour = play(Sticky(), rows, **settings)
    assert neighbour.requests["start_s"].tolist() == [0.0, 0.0, 2.0, 5.0]
    assert neighbour.requests["cached_tokens"].tolist() == [0, 0, 0, 0]


@ENGINES
def test_programs_are_served_in_the_order_of_their_coming(implementation: str) -> None:
    """One seat. The second call of program 0 comes at 3 s, after the first of program 2, and goes before it."""
    columns = calls((0, 4, -1, 0), (1, 4, -1, 0), (2, 4, -1, 0), (0, 4, 0, 1.0), names=False)
    rows = [(0.0, 4, 2), (1.0, 4, 3), (2.0, 4, 2), (3.0, 4, 2)]
    ends = [
        play(policy, rows, columns=columns, max_batch=1, implementation=implementation).requests["end_s"].tolist()
        for policy in (Continuum(), Sticky())
    ]
    assert ends == [[2, 5, 9, 7], [2, 5, 7, 9]]


@pytest.mark.parametrize(("longest_s", "second"), [(100.0, 4.0), (3.0, 0.0)])
def test_the_ttl_is_a_time_after_which_calls_have_come_back(longest_s: float, second: float) -> None:
    """The first call of the program comes back after 4 s. Nothing waits, so the next pin lasts as long, if it may."""
    columns = calls((0, 4, -1, 0), (0, 6, 0, 4.0), (0, 8, 1, 4.0), LAST)
    policy = Watched(first_s=1.0, samples=1, longest_s=longest_s)
    play(policy, [(0.0, 4, 1), (1.0, 6, 1), (2.0, 8, 1), (99.0, 1, 1)], columns=columns, prefix_cache=True)
    assert policy.ttls_s == [1.0, second, second]


def test_who_waits_for_the_memory_shortens_the_ttl() -> None:
    """Calls have come back after 1 s and after 40 s, and a prompt takes a second. When the third call ends, it is the
    third end with two returns. If nothing waits, the longer TTL gains more, for it costs nothing.

    With one request that waits, two seconds are at stake, and the 9 of 20 tokens cost 0.45 s a second: 1 s gains
    2/3 * 1/2 * 2 - 0.45 s, a TTL of 40 s 2/3 * 2 - 0.45 * (2/3 * 20.5 + 1/3 * 40) s, which is less than nothing.
    """
    program = [(0, 4, -1, 0.0), (0, 6, 0, 1.0), (0, 8, 1, 40.0)]
    rows = [(0.0, 4, 1), (0.0, 6, 1), (0.0, 8, 1)]
    settings: dict[str, Any] = {"prefix_cache": True, "kv_tokens": 20, "max_batch": 2}
    policy = Watched(first_s=2.0, samples=2)
    play(policy, [*rows, (99.0, 1, 1)], columns=calls(*program, LAST), **settings)
    assert policy.ttls_s == [2.0, 2.0, 40.0]
    policy = Watched(first_s=2.0, samples=2)
    columns = calls(*program, (1, 4, -1, 0.0), (2, 4, -1, 0.0))
    play(policy, [*rows, (42.5, 4, 3), (43.0, 4, 3)], columns=columns, **settings)
    assert policy.ttls_s[2] == 1.0


@ENGINES
def test_a_request_without_a_session_leaves_its_kv_to_the_cache(implementation: str) -> None:
    policy = Watched()
    rows = [(0.0, 4, 1), (9.0, 1, 1)]
    play(policy, rows, columns=calls((-1, 4, -1, 0), LAST), prefix_cache=True, implementation=implementation)
    assert policy.ttls_s == [-1.0]
