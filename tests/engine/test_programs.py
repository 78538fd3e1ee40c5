"""Programs: who comes when, where calls wait for several others or branch, in both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, InvariantError
from framework.load import Closed, Load, Open
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.table import StepRow
from framework.workload import Workload, chosen, first, repeated
from framework.workload.programs import followers
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
ROW, OPEN = StepRow(base_s=0.25), Open()
Engine = Literal["compiled", "reference"]
Call = tuple[float, int, list[int], float]
ENGINES: tuple[Engine, ...] = ("compiled", "reference")


def calls(*rows: Call, sessions: list[int] | None = None) -> Workload:
    """Of (recorded arrival, output tokens, what it waits for, delay) each, in one program or in those named."""
    return Workload(
        np.array([row[0] for row in rows]),
        np.full(len(rows), 8),
        np.array([row[1] for row in rows]),
        previous=np.array([row[2][0] if row[2] else -1 for row in rows]),
        joins=np.array([(k, other) for k, row in enumerate(rows) for other in row[2][1:]], np.int64).reshape(-1, 2),
        think_s=np.array([row[3] for row in rows]),
        session_id=np.array(sessions or [0] * len(rows)),
    )


def played(workload: Workload, engine: Engine, load: Load = OPEN, row: StepRow = ROW) -> Result:
    options = EngineConfig(kv_tokens=4096, batching="mixed", implementation=engine)
    result = simulate(workload, mixed(1, GPU), MODEL, RowTiming({"g": row}), options, load=load)
    check_result(result)
    return result


# One call, two that it starts, and one that needs both: its branches take 1 and 2 s.
DIAMOND: tuple[Call, ...] = ((0.0, 2, [], 0.0), (1.0, 4, [0], 0.0), (1.0, 8, [0], 0.5), (2.0, 1, [1, 2], 0.25))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_join_comes_after_the_last_that_it_waits_for(engine: Engine) -> None:
    rows = played(calls(*DIAMOND), engine).requests
    assert rows["arrival_s"].tolist() == [0.0, 0.5, 1.0, rows["end_s"][2] + 0.25]
    assert rows["end_s"][1] < rows["end_s"][2]
    other = played(calls(*DIAMOND[:1], (1.0, 20, [0], 0.0), *DIAMOND[2:]), engine).requests
    assert other["arrival_s"][3] == other["end_s"][1] + 0.25 > other["end_s"][2] + 0.25


@pytest.mark.parametrize("engine", ENGINES)
def test_a_join_comes_even_if_a_call_is_rejected(engine: Engine) -> None:
    workload = calls(*DIAMOND)
    prompts = np.where(np.arange(4) == 1, MODEL.max_context, 8)
    rows = played(replace(workload, input_tokens=prompts), engine).requests
    assert rows["state"].tolist() == [1, 2, 1, 1]
    assert rows["arrival_s"][3] == rows["end_s"][2] + 0.25


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_takes_the_next_program_when_all_calls_have_ended(engine: Engine) -> None:
    workload = calls(*DIAMOND[:3], (3.0, 1, [], 0.0), sessions=[0, 0, 0, 1])
    rows = played(workload, engine, Closed(1)).requests
    assert rows["arrival_s"][3] == rows["end_s"][2] > rows["end_s"][1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("request_s", [0.0, 0.5])
def test_further_first_calls_of_a_client_are_as_far_apart_as_recorded(engine: Engine, request_s: float) -> None:
    """Programs 0 and 1 with three and two first calls, of one client: the second begins when the first has ended."""
    rows: tuple[Call, ...] = (
        (0.0, 1, [], 9.0),
        (1.0, 1, [], 9.0),
        (5.0, 1, [], 9.0),
        (6.0, 1, [], 9.0),
        (8.0, 1, [], 9.0),
    )
    workload = calls(*rows, sessions=[0, 0, 1, 0, 1])
    row = StepRow(base_s=0.25, request_s=request_s)
    found = played(workload, engine, Closed(1), row).requests
    began = found["end_s"][3]
    assert found["arrival_s"].tolist() == [0.0, 1.0, began, 6.0, began + 3.0]
    assert played(workload, engine, Open(), row).requests["arrival_s"].tolist() == workload.arrival_s.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_depends_on_a_call_that_is_not_sent_is_not_sent(engine: Engine) -> None:
    load = Closed(1, duration_s=1.0, backoff_s=1.0)
    workload = calls((0.0, 2, [], 0.0), (0.0, 1, [0], 0.0), (0.0, 1, [0], 9.0), (0.0, 1, [1, 2], 0.0))
    result = played(workload, engine, load)
    assert result.requests["arrival_s"].tolist() == [0.0, 0.5]


def test_a_call_that_comes_too_early_is_a_bug() -> None:
    result = played(calls(*DIAMOND), "compiled")
    rows = result.requests.copy()
    rows["arrival_s"][3] = rows["end_s"][2]
    with pytest.raises(InvariantError, match=r"call that arrived before what it waits for had ended \(first at 3"):
        check_result(replace(result, requests=rows))


def test_cutting_and_repeating_keep_what_calls_wait_for() -> None:
    workload = calls(*DIAMOND)
    twice = repeated(workload, 2)
    assert twice.joins is not None
    assert twice.joins.tolist() == [[3, 2], [7, 6]]
    assert first(workload, 3).joins.tolist() == []  # type: ignore[union-attr]
    some = chosen(workload, np.array([True, False, True, True]))
    assert [some.previous.tolist(), some.joins.tolist()] == [[-1, 0, 1], []]  # type: ignore[union-attr]
    ends = chosen(workload, np.array([False, True, True, True]))
    assert [ends.previous.tolist(), ends.joins.tolist()] == [[-1, -1, 0], [[2, 1]]]  # type: ignore[union-attr]
    assert ends.openers.tolist() == [0, 0, 0]


def test_what_follows_a_call_and_what_follows_the_same_as_it_does() -> None:
    after, sibling = followers(np.array([-1, 0, 0, 1, -1, 0]))
    assert after.tolist() == [1, 3, -1, -1, -1, -1]
    assert sibling.tolist() == [-1, 2, 5, -1, -1, -1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"joins": np.array([[1, 3]])}, "can only wait for calls before it"),
        ({"joins": np.array([[3, 1]])}, "besides `previous`"),
        ({"joins": np.array([[0, 0]])}, "before it"),
        ({"joins": np.array([[3, 2], [3, 2]])}, "each once"),
        ({"session_id": np.array([0, 0, 1, 0])}, "of its own session"),
        ({"session_id": None}, "joins need previous and session_id"),
        ({"joins": np.array([3, 2])}, "must be pairs"),
    ],
)
def test_links_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        replace(calls(*DIAMOND), **changes)
