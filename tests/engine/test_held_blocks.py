"""What requests reference in the prefix cache takes memory for those that hold KV at once, not for all of a trace."""

from __future__ import annotations

import numpy as np
import pytest

from framework import simulate as running
from framework.engine.kv.held_blocks import LENGTHS
from framework.engine.setup.config import Setting
from framework.replay.compiled import CompiledEngine
from framework.workload import Workload
from tests.engine.test_prefix_stores import play, prompts, stored


def room_for_lists(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> int:
    """Integers of which lists of held blocks have been made in a run."""
    engines: list[CompiledEngine] = []

    def watched(setting: Setting) -> CompiledEngine:
        engines.append(CompiledEngine(setting))
        return engines[-1]

    monkeypatch.setitem(running._ENGINES, "compiled", watched)
    play(workload, stored(), kv_tokens=1000, token_budget=1000)
    memory = engines[0]._memory
    return int(memory.lists[memory.options["held_free_at"][0] + LENGTHS])


@pytest.mark.parametrize(("apart_s", "lists"), [(100.0, 1), (0.0, 50)])
def test_lists_are_made_for_those_that_hold_kv_at_once(
    apart_s: float, lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = prompts(*((apart_s * k, [k, 100 + k]) for k in range(50)))
    assert room_for_lists(workload, monkeypatch) == 2 * lists


def test_a_workload_keeps_names_as_they_are_where_they_fit_into_32_bits() -> None:
    kept = prompts((0.0, [2**31 - 1, 5]), (1.0, [2**31 - 1, -7]))
    assert kept.hash_ids.tolist() == [2**31 - 1, 5, 2**31 - 1, -7]
    renamed = prompts((0.0, [2**40, 5]), (1.0, [2**40, -(2**40)]))
    assert renamed.hash_ids.dtype == kept.hash_ids.dtype == np.int32
    first, second, again, other = renamed.hash_ids.tolist()
    assert first == again
    assert len({first, second, other}) == 3
