"""Rounds of coding agents, as TraceLab records them, from files written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.errors import InputError
from framework.workload import Workload
from traces.load import load


def agent_round(number: int, tokens: tuple[int, int, int], *events: tuple[str, int], **changes: Any) -> dict[str, Any]:
    """One round of (prompt, found in the cache, output) tokens, with events at whole seconds."""
    return {
        "provider": "claude",
        "model": "m",
        "session_id": "a",
        "round_index": number,
        "input_tokens_total": tokens[0],
        "prefix_tokens": tokens[1],
        "newly_append_tokens": tokens[0] - tokens[1],
        "output_tokens": tokens[2],
        "timing_events": [
            {"event_type": kind, "timestamp": f"2026-06-01T05:{second // 60:02}:{second % 60:02}.000Z"}
            for kind, second in events
        ],
        **changes,
    }


def read(folder: Path, *rounds: dict[str, Any], **how: Any) -> Workload:
    file = folder / "rounds.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rounds))
    return load(path=file, block_tokens=16, **how)


# A user asks; two tools run until 20 s; the user reads the answer for 100 s; the context is compacted.
SESSION = (
    agent_round(0, (160, 64, 30), ("user_message", 0), ("text", 3), ("tool_call", 4)),
    agent_round(1, (220, 160, 40), ("tool_result", 8), ("tool_result", 20), ("text", 25)),
    agent_round(2, (300, 208, 10), ("user_message", 125), ("text", 126)),
    agent_round(3, (96, 64, 10), ("tool_result", 126), ("text", 130)),
)


def test_a_round_is_sent_when_its_last_input_is_there(tmp_path: Path) -> None:
    workload = read(tmp_path, *reversed(SESSION))
    assert workload.arrival_s.tolist() == [0.0, 20.0, 125.0, 126.0]
    assert workload.think_s is not None
    assert workload.think_s.tolist() == [0.0, 16.0, 100.0, 0.0]
    assert workload.trigger is not None
    assert workload.trigger.tolist() == [1, 2, 1, 2]
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, 0, 1, 2]
    assert [workload.input_tokens.tolist(), workload.output_tokens.tolist()] == [[160, 220, 300, 96], [30, 40, 10, 10]]


def shared(workload: Workload, one: int, other: int) -> int:
    """Blocks that the prompts of two requests begin with in common."""
    pairs = zip(workload.hash_ids_of(one).tolist(), workload.hash_ids_of(other).tolist(), strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(workload.hash_counts[[one, other]].tolist()))


def test_prompts_share_the_history_or_what_the_cache_had(tmp_path: Path) -> None:
    workload = read(tmp_path, *SESSION)
    assert workload.hash_counts.tolist() == [10, 13, 18, 6]
    assert shared(workload, 0, 1) == 10  # 190 tokens came before, of which those of the first prompt have names
    assert shared(workload, 1, 2) == 13
    assert shared(workload, 2, 3) == 4  # compacted
    shorter = agent_round(2, (250, 112, 10), ("user_message", 125), ("text", 126))
    assert shared(read(tmp_path, *SESSION[:2], shorter), 1, 2) == 7  # shorter than before by what it left out


def test_first_prompts_share_what_was_in_the_cache_with_others_of_their_model(tmp_path: Path) -> None:
    first = (160, 64, 30), ("user_message", 200), ("text", 203)
    others = (agent_round(0, *first, session_id="b"), agent_round(0, *first, session_id="c", model="n"))
    workload = read(tmp_path, *SESSION, *others)
    assert [shared(workload, 0, 4), shared(workload, 0, 5)] == [4, 0]
    assert workload.session_id is not None
    assert workload.session_id.tolist() == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timing_events": []}, "line 1: no timing_events"),
        ({"timing_events": [{"event_type": "text", "timestamp": "soon"}]}, 'timestamp of an event is "soon"'),
        ({"prefix_tokens": 161}, "prefix_tokens is 161, must be 0 to 160"),
        ({"round_index": None}, "needs a session_id and a round_index"),
        ({"input_tokens_total": -1}, "input tokens are -1"),
    ],
)
def test_bad_rounds_are_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path, SESSION[0] | changes, bad_records=0)
