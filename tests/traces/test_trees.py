"""Programs from trees of sessions and from spans, in files written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import InputError
from framework.workload import Workload
from framework.workload.programs import TRIGGERS
from traces.formats.call_graphs import awaited_by_time
from traces.load import load


def graph(workload: Workload) -> list[list[int]]:
    """The calls that each call waits for."""
    assert workload.previous is not None
    found = [[int(before)] if before >= 0 else [] for before in workload.previous]
    for call, awaited in [] if workload.joins is None else workload.joins.tolist():
        found[call].append(awaited)
    return [sorted(each) for each in found]


def triggers(workload: Workload) -> list[str]:
    assert workload.trigger is not None
    return [TRIGGERS[one] for one in workload.trigger]


def thinks_s(workload: Workload) -> list[float]:
    assert workload.think_s is not None
    return workload.think_s.tolist()


# --- by time alone ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=9))
def test_calls_wait_for_the_last_that_had_ended(drawn: list[tuple[int, int]]) -> None:
    """By the definition: of those that had ended, the ones after whose end no other of these began."""
    times = sorted((float(start), float(start + length)) for start, length in drawn)
    for k, found in enumerate(awaited_by_time(times)):
        ended = [j for j in range(k) if times[j][1] <= times[k][0]]
        last = [j for j in ended if not any(times[j][1] <= times[i][0] for i in ended if i > j)]
        assert found == last


# --- trees ------------------------------------------------------------------------------------------------------------

BLOCK = 10


def request(t: float, tokens: tuple[int, int], ids: list[int], **more: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "s",
        "model": "m",
        "in": tokens[0],
        "out": tokens[1],
        "hash_ids": ids,
        "api_time": 2.0,
        **more,
    }


def agent(t: float, name: str, *rows: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    about = {"subagent_type": "Explore", "status": status, "models": ["m"]}
    return {"t": t, "type": "subagent", "agent_id": name, "requests": list(rows), **about}


# A plan until 2 s; two searches, of which one has two calls; their results; an idle user.
SESSION = {
    "id": "one",
    "block_size": BLOCK,
    "hash_id_scope": "local",
    "requests": [
        request(0.0, (30, 5), [1, 2, 3], stop="tool_use"),
        agent(2.0, "a", request(2.5, (20, 4), [1, 7]), request(5.0, (30, 4), [1, 7, 8])),
        agent(2.0, "b", request(2.5, (20, 4), [1, 9])),
        request(8.0, (50, 6), [1, 2, 3, 4, 5], input_types=["tool_result"], stop="end_turn"),
        request(70.0, (60, 6), [1, 2, 3, 4, 5, 6], input_types=["text"]),
    ],
}


def read(folder: Path, *sessions: Any, **how: Any) -> Workload:
    file = folder / "sessions.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in sessions))
    return load(path=file, **how)


def test_sub_agents_are_spawned_and_joined(tmp_path: Path) -> None:
    workload = read(tmp_path, SESSION)
    assert workload.arrival_s.tolist() == [
        0.0,
        0.5,
        0.5,
        1.0,
        2.0,
        62.0,
    ]  # delays alone: answers take what the server takes
    assert workload.input_tokens.tolist() == [30, 20, 20, 30, 50, 60]
    assert graph(workload) == [[], [0], [0], [1], [0, 2, 3], [4]]
    assert thinks_s(workload) == [0.0, 0.5, 0.5, 0.5, 1.0, 60.0]
    assert triggers(workload) == ["user", "spawn", "spawn", "user", "tool", "user"]
    names = [workload.hash_ids_of(k).tolist() for k in range(6)]
    assert names[4][:3] == names[0]
    assert names[3][:2] == names[1]
    assert names[1][0] == names[0][0]
    assert names[2][1] not in names[1]


def test_times_of_sub_agents_may_count_from_their_markers(tmp_path: Path) -> None:
    relative = json.loads(json.dumps(SESSION))
    for entry in relative["requests"]:
        for inner in entry.get("requests", []):
            inner["t"] -= entry["t"]
    one, other = (read(tmp_path, session) for session in (SESSION, relative))
    assert graph(one) == graph(other)
    assert thinks_s(one) == thinks_s(other)


def test_an_agent_that_is_launched_and_left_is_not_waited_for(tmp_path: Path) -> None:
    rows = [
        request(0.0, (30, 5), [1]),
        agent(2.0, "a", request(2.5, (20, 4), [2]), status="async_launched"),
        request(8.0, (50, 6), [1, 2, 3, 4, 5]),
    ]
    assert graph(read(tmp_path, {"id": "x", "block_size": BLOCK, "requests": rows})) == [[], [0], [0]]


def test_sessions_have_ids_of_their_own_and_begin_together(tmp_path: Path) -> None:
    workload = read(tmp_path, SESSION, {**SESSION, "id": "two"})
    assert workload.session_id is not None
    mine, theirs = ([k for k in range(12) if workload.session_id[k] == s] for s in (0, 1))
    ids = [{one for k in rows for one in workload.hash_ids_of(k).tolist()} for rows in (mine, theirs)]
    assert not ids[0] & ids[1]
    assert [workload.arrival_s[rows[0]] for rows in (mine, theirs)] == [0.0, 0.0]
    assert any("2 sessions have no common clock" in note for note in workload.notes)


def test_the_time_of_a_client_is_taken_where_it_is_told(tmp_path: Path) -> None:
    rows = [request(0.0, (30, 5), [1]), request(9.0, (40, 5), [1], think_time=3.0)]
    assert thinks_s(read(tmp_path, {"id": "x", "block_size": BLOCK, "requests": rows})) == [0.0, 3.0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"t": -1.0, "in": 9, "out": 1}, "request 2: t is -1.0, must be a number of at least 0"),
        ({"t": 1.0, "in": 9, "out": "x"}, "request 2: output tokens are "),
        ({"t": 1.0, "in": 9, "out": 1, "hash_ids": [None]}, "hash_ids are .null., must be a list"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    rows = [request(0.0, (30, 5), [1]), row]
    with pytest.raises(InputError, match=words):
        read(tmp_path, {"id": "x", "block_size": BLOCK, "requests": rows})


# --- spans ------------------------------------------------------------------------------------------------------------


def span(name: str, begin_s: float, end_s: float, tokens: tuple[int, int] | None, **about: Any) -> dict[str, Any]:
    usage = {} if tokens is None else {"gen_ai.usage.input_tokens": tokens[0], "gen_ai.usage.output_tokens": tokens[1]}
    at = [f"2026-06-01T05:{int(s) // 60:02}:{s % 60:06.3f}Z" for s in (begin_s, end_s)]
    return {
        "trace_id": "t",
        "span_id": name,
        "name": name,
        "start_time": at[0],
        "end_time": at[1],
        "attributes": {**usage, **about},
    }


SPANS = [
    span("agent", 0.0, 40.0, None),
    span("plan", 1.0, 3.0, (64, 8)),
    span("search a", 3.5, 6.0, (32, 4)),
    span("search b", 3.5, 9.0, (40, 4)),
    span("bash", 9.0, 12.0, None, **{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash"}),
    span("answer", 12.5, 15.0, (128, 16)),
]


def test_spans_become_a_program_by_their_times(tmp_path: Path) -> None:
    workload = read(tmp_path, {"trace_id": "t", "spans": SPANS})
    assert workload.input_tokens.tolist() == [64, 32, 40, 128]
    assert graph(workload) == [[], [0], [0], [1, 2]]
    assert thinks_s(workload) == [0.0, 0.5, 0.5, 3.5]
    assert triggers(workload) == ["user", "user", "user", "tool"]


def otlp(row: dict[str, Any]) -> dict[str, Any]:
    """The same in OTLP's JSON: times in nanoseconds as texts, attributes as a list."""
    begin, end = (
        int(float(row[name][17:23]) * 1000) * 10**6 + 1_780_000_000 * 10**9 for name in ("start_time", "end_time")
    )
    kinds = {int: "intValue", str: "stringValue"}
    attributes = [{"key": key, "value": {kinds[type(value)]: value}} for key, value in row["attributes"].items()]
    times = {"startTimeUnixNano": str(begin), "endTimeUnixNano": str(end)}
    return {
        "traceId": row["trace_id"],
        "spanId": row["span_id"],
        "name": row["name"],
        **times,
        "attributes": attributes,
    }


def test_otlp_and_single_spans_say_the_same(tmp_path: Path) -> None:
    plain = read(tmp_path, {"spans": SPANS})
    exported = read(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": [otlp(row) for row in SPANS]}]}]})
    single = read(tmp_path, *SPANS)
    for other in (exported, single):
        assert graph(other) == graph(plain)
        assert thinks_s(other) == pytest.approx(thinks_s(plain))
        assert triggers(other) == triggers(plain)


def test_prompts_share_what_their_texts_share(tmp_path: Path) -> None:
    """Four bytes a token, blocks of 16 tokens: of 64 tokens two blocks are alike."""
    texts = ["a" * 128 + "b" * 128, "a" * 128 + "c" * 128]
    rows = [span(f"call {k}", k, k + 0.5, (64, 8), **{"gen_ai.input.messages": text}) for k, text in enumerate(texts)]
    workload = read(tmp_path, {"spans": rows})
    first, second = (workload.hash_ids_of(k).tolist() for k in (0, 1))
    assert [len(first), len(second), workload.hash_block_tokens] == [4, 4, 16]
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])


def test_a_chain_without_texts_carries_its_history(tmp_path: Path) -> None:
    rows = [span("one", 0.0, 1.0, (64, 16)), span("two", 2.0, 3.0, (96, 16))]
    workload = read(tmp_path, {"spans": rows})
    assert workload.hash_ids_of(1).tolist()[:4] == workload.hash_ids_of(0).tolist()


def test_conversations_go_on_over_traces_and_failures_are_left_out(tmp_path: Path) -> None:
    same = {"gen_ai.conversation.id": "c"}
    rows = [
        span("one", 0.0, 1.0, (64, 16), **same),
        {**span("two", 5.0, 6.0, (96, 16), **same), "trace_id": "u"},
        {**span("lost", 7.0, 8.0, (96, 16), **same), "status": {"code": "ERROR"}},
    ]
    workload = read(tmp_path, {"spans": rows})
    assert graph(workload) == [[], [0]]
    assert thinks_s(workload) == [0.0, 4.0]
    assert any("1 of 3 requests failed" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_time": "noon"}, "a span begins or ends at .noon., must be a date and time"),
        ({"end_time": "2020-01-01T00:00:00Z"}, "it ends before it begins"),
    ],
)
def test_a_span_that_cannot_be_is_named(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, {"spans": [{**span("one", 0.0, 1.0, (64, 16)), **changes}]})
