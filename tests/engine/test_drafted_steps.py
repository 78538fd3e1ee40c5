"""Runs of fixed-depth drafted steps: entered, left by each door, and the same as steps that are events of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from framework.compiler.decorators import compiled
from framework.compiler.lanes import MANY, bits_of, leading_ones
from framework.engine.durations.speculation import Speculation
from framework.engine.loop import run
from framework.engine.memory.attach import handed
from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.policy import Policy
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import Curve, StepRow, Surface
from framework.workload import Workload
from policies.chunked import Chunked
from tests.engine.test_implementation import outcome
from tests.helpers.parts import load
from tests.helpers.scenarios import MODEL, RowTiming

GPU = replace(load("gpu", "h100"), name="gpu")
LONG = replace(MODEL, max_context=1 << 20)
DRAFTS = Speculation(3, 0.75, draft_cost=0.125)
ROW = StepRow(base_s=2.0**-4, per_prefill_token_s=2.0**-10, per_context_token_s=2.0**-14)
KNOTS = Surface(
    batches=(1.0, 2.0, 4.0), contexts=(0.0, 128.0, 256.0), values=((0.0, 1.0, 4.0), (0.0, 2.0, 8.0), (0.0, 2.0, 8.0))
)
Rows = Sequence[tuple[float, int, int]]  # arrival, prompt, output


@dataclass
class Seen:
    """What `run` left at each of its returns: whether a run of fixed depth was under way, and how long."""

    fixed_depth: int = 0
    others: int = 0

    def note(self, memory: Any) -> None:
        stepping = memory.instances["busy"] & (memory.step["decodes"] > 0)
        self.fixed_depth += int((stepping & memory.step["fixed_depth"]).sum())
        self.others += int((stepping & ~memory.step["fixed_depth"]).sum())


def play(rows: Rows, row: StepRow = ROW, instances: int = 1, policy: Policy | None = None, **options: Any) -> Result:
    """The run in the engine that the options name."""
    arrival_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    cluster = ClusterSpec((PoolSpec("all", "mixed", instances, GPU),), LinkSpec(2.0**20))
    settings: dict[str, Any] = {"token_budget": 64, "kv_tokens": 4096, "block_tokens": 16, "speculation": DRAFTS}
    workload = Workload(arrival_s.astype(float), prompts, outputs)
    chosen = policy or Chunked(routing="round_robin")
    engine = EngineConfig(**(settings | options))
    result = simulate(workload, cluster, LONG, RowTiming({"gpu": row}), engine, chosen)
    check_result(result)
    return result


def both(rows: Rows, **settings: Any) -> Result:
    """The compiled run, which is that of the reference engine."""
    result = play(rows, **settings)
    assert outcome(result) == outcome(play(rows, implementation="reference", **settings))
    return result


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Has the compiled engine come back after every event."""
    watch = Seen()

    memories: list[Any] = []

    def watched(words: Any, most_events: int) -> int:
        status = run(words, most_events)
        watch.note(memories[-1])
        return status

    def noted(memory: Any, *others: Any) -> Any:
        memories.append(memory)
        return handed(memory, *others)

    monkeypatch.setattr("framework.engine.setup.binding.handed", noted)
    monkeypatch.setattr("framework.replay.compiled.run", watched)
    monkeypatch.setattr("framework.replay.compiled._EVENTS_BETWEEN_REPORTS", 1)
    return watch


ALONE: Rows = [(0.0, 40, 200)]
TOGETHER: Rows = [(0.0, 40, 90), (0.0, 33, 200), (0.0, 50, 137)]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        pytest.param(ALONE, {}, id="one request"),
        pytest.param(TOGETHER, {}, id="requests end one after another"),
        pytest.param([*ALONE, (1.0, 100, 50)], {}, id="an arrival, for the same instance"),
        pytest.param([*TOGETHER, (1.0, 100, 50), (2.5, 9, 3)], {"instances": 3}, id="an arrival, for another"),
        pytest.param([(0.0, 32, 150), (0.0, 32, 150)], {"instances": 2}, id="two steps end at one time"),
        pytest.param(TOGETHER, {"kv_tokens": 320}, id="no block is left"),
        pytest.param(TOGETHER, {"kv_tokens": 320, "preemption": "swap"}, id="no block is left, and one is swapped out"),
        pytest.param(TOGETHER, {"row": replace(ROW, decode=KNOTS)}, id="knots of the step times"),
        pytest.param(TOGETHER, {"row": replace(ROW, host_s=2.0**-4 + 2.0**-7)}, id="the host takes longer at first"),
        pytest.param(
            TOGETHER,
            {"row": replace(ROW, decode_limits=Curve((1.0, 2.0, 4.0), (64.0, 128.0, 256.0)))},
            id="contexts past what was measured",
        ),
        pytest.param(
            [(0.0, 40, 2000)],
            {"speculation": Speculation(15, 1.0, draft_cost=0.0)},
            id="a block of tokens in each step",
        ),
        pytest.param(ALONE, {"speculation": Speculation(3, 0.0, draft_cost=0.0)}, id="all drafts are wrong"),
    ],
)
def test_runs_of_plain_steps(rows: Rows, settings: dict[str, Any], seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    result = both(rows, **settings)
    assert seen.fixed_depth > 40
    monkeypatch.undo()
    at_once = play(rows, **settings)
    assert at_once.step_log.tobytes() == result.step_log.tobytes()
    assert at_once.token_log.tobytes() == result.token_log.tobytes()
    assert at_once.instances.tobytes() == result.instances.tobytes()
    assert at_once.requests.tobytes() == result.requests.tobytes()
    assert at_once.events == result.events


def test_doors_are_those_that_they_are_named_for() -> None:
    assert play(TOGETHER, kv_tokens=320).requests["preemptions"].sum() > 0
    assert play(TOGETHER, row=replace(ROW, host_s=2.0**-4 + 2.0**-7)).step_log["increment_s"].min() == 0.0
    measured = replace(ROW, decode_limits=Curve((1.0, 2.0, 4.0), (64.0, 128.0, 256.0)))
    assert 0.0 < play(TOGETHER, row=measured).extrapolated < 1.0
    log = play([(0.0, 32, 150), (0.0, 32, 150)], instances=2, speculation=Speculation(3, 1.0)).step_log
    assert np.array_equal(log["start_s"][log["instance"] == 0], log["start_s"][log["instance"] == 1])


def test_a_log_that_is_full_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play([(0.0, 40, 900)], max_batch=1)
    monkeypatch.setattr("framework.engine.setup.allocate._LOG_ROWS", 80)
    assert play([(0.0, 40, 900)], max_batch=1).step_log.tobytes() == whole.step_log.tobytes()
    assert len(whole.step_log) > 2 * 80


@pytest.mark.parametrize(
    "settings",
    [
        {"block_tokens": 12},
        {"block_tokens": 2},
        {"speculation": Speculation("adaptive", 0.75)},
        {"row": replace(ROW, skew_s=2.0**-14)},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_steps_that_are_not_of_fixed_depth(settings: dict[str, Any], seen: Seen) -> None:
    both(TOGETHER, **settings)
    assert seen.fixed_depth == 0
    assert seen.others > 40


# --- many draws at once -----------------------------------------------------------------------------------------------


def _value(own: Any, token: Any) -> Any:
    return (((own ^ token) * 0x7FEB352D) & 0xFFFFFFFF) ^ (own >> 7)


_bits_of_values = bits_of(_value)


@compiled("int64(int64, int64, int64)")
def _bits(own: int, first: int, most: int) -> int:
    return _bits_of_values(own, first, most)


@compiled("int64(int64)")
def _ones(bits: int) -> int:
    return leading_ones(bits)


@pytest.mark.parametrize("most", [0, 1 << 20, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize(("own", "first"), [(0, 0), (0xDEADBEEF, 7), ((1 << 32) - 1, 1_000_003)])
def test_bits_of_many_values(own: int, first: int, most: int) -> None:
    expected = sum((_value(own, first + t) <= most) << t for t in range(MANY))
    assert _bits(own, first, most) % (1 << MANY) == expected


@pytest.mark.parametrize(("bits", "count"), [(0, 0), (1, 1), (2, 0), (0b10111, 3), ((1 << 62) - 1, 62)])
def test_leading_ones(bits: int, count: int) -> None:
    assert _ones(bits) == count
