"""What compiled rules ask of an engine in addition to their view's columns: cached prefixes, step times, streams.

Each function takes `view.engine` first. For the compiled engine that is the address of its memory. For the reference
engine, and without a compiler, it is an `InterpretedEngine`. A rule need not distinguish them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import either
from framework.engine.kv.prefix_cache import matched_blocks
from framework.engine.memory.attach import attach_at
from framework.engine.parallel import sm_sharing
from framework.engine.parallel.sm_sharing import WHOLE
from framework.engine.setup.inspect import next_streams_s
from framework.policy.hooks import encode_plan
from framework.policy.inspection import Inspection, View
from framework.timing.estimate import prefill_alone_s, step_alone_s
from framework.timing.table import StepTables


class InterpretedEngine(NamedTuple):
    """An engine that answers in Python. `slowdowns`: as in `Sharing.slowdowns`, shape (2, 101)."""

    inspection: Inspection
    slowdowns: NDArray[np.float64]


def interpreted_with(inspection: Inspection, slowdowns: NDArray[np.float64]) -> Callable[[View], View]:
    """What makes a view one that rules can read in Python, whatever the engine; `slowdowns` as above."""
    engine = InterpretedEngine(inspection, slowdowns)
    return lambda view: view if isinstance(view.engine, InterpretedEngine) else view._replace(engine=engine)


def callable_with(engine: Any, function: Any) -> Callable[..., Any]:
    """A function made with `compiled` that Python can call with `view.engine`: machine code if that is memory."""
    python: Callable[..., Any] = getattr(function, "py_func", function)
    return python if isinstance(engine, InterpretedEngine) else function


# --- columns ----------------------------------------------------------------------------------------------------------


def _interpreted_now_s(engine: InterpretedEngine) -> float:
    return engine.inspection.now_s


@either(_interpreted_now_s)
def now_s(engine: Any) -> float:
    """Time of the present event, seconds."""
    time_s: float = attach_at(engine).sim.now_s
    return time_s


def _interpreted_instance(engine: InterpretedEngine, i: int) -> Any:
    return engine.inspection.instances[i]


@either(_interpreted_instance)
def instance_of(engine: Any, i: int) -> Any:
    """The record of an instance, with the columns of `Instances`."""
    return attach_at(engine).instances[i]


def _interpreted_request(engine: InterpretedEngine, r: int) -> Any:
    return engine.inspection.requests[r]


@either(_interpreted_request)
def request_of(engine: Any, r: int) -> Any:
    """The record of a request, with the columns of `Requests`."""
    return attach_at(engine).requests[r]


# --- prefixes and step times ------------------------------------------------------------------------------------------


def _interpreted_cached_tokens(engine: InterpretedEngine, i: int, r: int) -> int:
    return int(engine.inspection.cached_tokens(np.array([i]), r)[0])


@either(_interpreted_cached_tokens)
def cached_tokens(engine: Any, i: int, r: int) -> int:
    """Tokens of r's prompt that i has in its prefix cache and its stores."""
    s = attach_at(engine)
    tokens: int = matched_blocks(s, i, r, s.requests[r].input_tokens) * s.options.hash_blocks * s.options.block_tokens
    return tokens


def _interpreted_prefill_s(engine: InterpretedEngine, i: int, cached: int, prompt: int, most: int) -> float:
    inst = engine.inspection.instances[i]
    return prefill_alone_s(engine.inspection.tables, inst["row"], max(1, inst["stages"]), cached, prompt, most)


@either(_interpreted_prefill_s)
def prefill_s(engine: Any, i: int, cached: int, prompt: int, most: int) -> float:
    """Seconds to prefill a prompt beyond its `cached` tokens on i, alone, in steps of at most `most` tokens."""
    s = attach_at(engine)
    inst, tables = s.instances[i], StepTables(s.timing_rows, s.timing_data)
    time_s: float = prefill_alone_s(tables, inst.row, max(1, inst.stages), cached, prompt, most)
    return time_s


def _interpreted_step_s(engine: InterpretedEngine, i: int, prompt: int, decodes: int, context: int) -> float:
    inst = engine.inspection.instances[i]
    return step_alone_s(engine.inspection.tables, inst["row"], max(1, inst["stages"]), prompt, decodes, context)


@either(_interpreted_step_s)
def step_s(engine: Any, i: int, prompt: int, decodes: int, context: int) -> float:
    """Seconds of one step of i: a whole prompt (0: none) and decodes that read `context` tokens together."""
    s = attach_at(engine)
    inst, tables = s.instances[i], StepTables(s.timing_rows, s.timing_data)
    time_s: float = step_alone_s(tables, inst.row, max(1, inst.stages), prompt, decodes, context)
    return time_s


# --- two streams on one instance --------------------------------------------------------------------------------------


def _interpreted_streams_s(engine: InterpretedEngine, i: int) -> tuple[float, float]:
    prefills_s, decodes_s = engine.inspection.stream_times_s(i)
    return float(prefills_s[WHOLE]), float(decodes_s[WHOLE])


@either(_interpreted_streams_s)
def streams_s(engine: Any, i: int) -> tuple[float, float]:
    """Seconds of i's next prefill and decode step, each on all SMs, concurrent; 0 for a stream without work."""
    return next_streams_s(attach_at(engine), i)


def _interpreted_prefill_slowdown(engine: InterpretedEngine, percent: int) -> float:
    return float(engine.slowdowns[0, percent])


@either(_interpreted_prefill_slowdown)
def prefill_slowdown(engine: Any, percent: int) -> float:
    """The factor by which a prefill step on `percent` of the SMs takes longer, inf on none."""
    factor: float = sm_sharing.prefill_slowdown(attach_at(engine), percent)
    return factor


def _interpreted_decode_slowdown(engine: InterpretedEngine, percent: int) -> float:
    return float(engine.slowdowns[1, percent])


@either(_interpreted_decode_slowdown)
def decode_slowdown(engine: Any, percent: int) -> float:
    """The factor by which a decode step on `percent` of the SMs takes longer, inf on none."""
    factor: float = sm_sharing.decode_slowdown(attach_at(engine), percent)
    return factor


# A plan as a compiled `batching` returns it: (percent of the SMs for prefills, 0: as before; token budget; mode, one of
# `framework.codes`).
as_plan: Callable[[int, int, int], int] = either()(encode_plan)
