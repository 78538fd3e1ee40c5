"""SM sharing: a prefill stream and a decode stream of one instance run concurrently on its GPUs.

Every instance has a decode stream, with its leaps. A prefill step is never part of a leap: its chunks are noted in
`State.lists`, and its end is an event of its own. Contention for memory bandwidth follows Nexus, arXiv 2507.06608,
which models decode attention alone as contended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from framework.checks import check_fields, require_at_least, require_count
from framework.codes import CONCURRENT, PREFILL_STEP_END
from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import first_due, set_time, time_of
from framework.errors import InputError
from framework.timing.table import StepTables, base_s, chunk_s, extrapolation, host_s

WHOLE = 100  # percent


def require_percent(name: str, value: object) -> None:
    """Raise InputError unless both streams get at least one whole percent."""
    require_count(name, value)
    if value >= WHOLE:  # type: ignore[operator]
        raise InputError(f"{name} must be from 1 to {WHOLE - 1}, got {value!r}")


Percent = Annotated[int, require_percent]


@dataclass(frozen=True)
class Sharing:
    """Streams on disjoint sets of streaming multiprocessors (SMs); prefills get `prefill_percent` of them until a plan
    changes that.

    `prefill_slowdown`, `decode_slowdown`: the factor by which a step on that percent of the SMs takes longer than on
    all. It is linear between the given points, and proportional below the first. With `contention` decode attention has
    less than the whole memory bandwidth while a prefill step runs. Raises InputError for a value out of range.
    """

    prefill_percent: Percent = 50
    prefill_slowdown: Mapping[int, float] = field(default_factory=lambda: {WHOLE: 1.0})
    decode_slowdown: Mapping[int, float] = field(default_factory=lambda: {WHOLE: 1.0})
    contention: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "engine.sharing.")
        for name in ("prefill_slowdown", "decode_slowdown"):
            _check_points(f"engine.sharing.{name}", getattr(self, name))

    def slowdowns(self) -> NDArray[np.float64]:
        """The slowdown of prefill and decode steps by their percent of the SMs, (2, 101); inf at 0."""
        return np.stack([_by_percent(self.prefill_slowdown), _by_percent(self.decode_slowdown)])


def _check_points(name: str, points: Mapping[int, float]) -> None:
    if not isinstance(points, Mapping) or WHOLE not in points:
        raise InputError(f"{name} must be slowdowns by percent of the SMs, as {{25: 2.0, 100: 1.0}}; got {points!r}")
    for percent, factor in points.items():
        require_count(f"{name}: a percent", percent)
        require_at_least(f"{name} at {percent} %", factor, 1)
    factors = [points[percent] for percent in sorted(points)]
    if max(points) > WHOLE or points[WHOLE] != 1 or factors != sorted(factors, reverse=True):
        raise InputError(f"{name} must not rise with the percent and end with 1 at {WHOLE}, got {dict(points)!r}")


def _by_percent(points: Mapping[int, float]) -> NDArray[np.float64]:
    knots = sorted(points)
    percents = np.arange(1.0, WHOLE + 1)
    factors = np.interp(percents, knots, [points[knot] for knot in knots])
    factors *= np.maximum(knots[0] / percents, 1.0)
    return np.insert(factors, 0, np.inf)


# --- the compiled part: the prefill stream ----------------------------------------------------------------------------


@inner
def streaming(s: State, i: int) -> bool:
    """Whether a prefill step runs concurrently with i's decodes."""
    return s.sim.prefill_end_s < np.inf and time_of(s, PREFILL_STEP_END, i) < np.inf


@inner
def may_prefill(s: State, i: int) -> bool:
    """Whether i's prefill stream is idle and has work, none of it in a step that also decodes."""
    inst = s.instances[i]
    if inst.mode != CONCURRENT or inst.queued + inst.prefilling == 0 or streaming(s, i):
        return False
    return not inst.busy or s.step[i].prefill_tokens == 0


@inner
def prefill_slowdown(s: State, percent: int) -> float:
    """The factor by which a prefill step on `percent` of the SMs takes longer."""
    factor: float = s.timing_data[s.options.slowdown_at + percent]
    return factor


@inner
def decode_slowdown(s: State, percent: int) -> float:
    """The factor by which a decode step on `percent` of the SMs takes longer."""
    factor: float = s.timing_data[s.options.slowdown_at + WHOLE + 1 + percent]
    return factor


@inner
def contention_s(s: State, i: int, context: int) -> float:
    """Additional seconds that i's decodes take to read `context` KV tokens because of a concurrent prefill step."""
    if not streaming(s, i):
        return 0.0
    return contention_with_s(s, i, context, s.prefill_step[i].attention_share, s.prefill_step[i].kv_tokens)


@inner
def contention_with_s(s: State, i: int, context: int, attention_share: float, kv_tokens: int) -> float:
    """Additional seconds from a prefill step whose attention over `kv_tokens` takes `attention_share` of its time.

    The rest of that step's time goes to layers that read the weights. In each of the two phases the streams share the
    bandwidth in proportion to the bytes that they read.
    """
    read_bytes = context * s.options.kv_bytes_per_token
    with_attention = read_bytes / (read_bytes + kv_tokens * s.options.kv_bytes_per_token)
    with_layers = read_bytes / (read_bytes + s.options.weight_bytes)
    share = attention_share * with_attention + (1.0 - attention_share) * with_layers
    longer_s: float = (1.0 / share - 1.0) * (read_bytes / s.instances[i].memory_bytes_s)
    return longer_s


@inner
def with_loads_s(s: State, i: int, step_s: float) -> float:
    """Seconds of a step that also loads what its requests found in stores."""
    inst = s.instances[i]
    load_s, inst.load_s = inst.load_s, 0.0
    longer_s: float = max(step_s, load_s) if s.options.loads_layer_wise else step_s + load_s
    return longer_s


@inner
def start_prefill_step(s: State, i: int, tokens: int) -> None:
    """Start the prefill step of `tokens` tokens whose chunks are noted in `State.lists`."""
    inst, stream, sim = s.instances[i], s.prefill_step[i], s.sim
    tables = StepTables(s.timing_rows, s.timing_data)
    stream.sampled = stream.kv_tokens = stream.longest_prompt = 0
    stream.square = 0.0
    chunks_s = 0.0
    for j in range(inst.prefilling):
        q = s.requests[s.lists[inst.prefilling_at + j]]
        chunk = s.lists[inst.chunk_at + j]
        if chunk > 0:
            chunks_s += chunk_s(tables, inst.row, q.prefilled, chunk)
            stream.sampled += 1 if q.prefilled + chunk == q.prefill_until and q.prefill_until != q.split else 0
            stream.kv_tokens += q.prefilled + chunk
            stream.square += float((2 * q.prefilled + chunk) * chunk)
            stream.longest_prompt = max(stream.longest_prompt, q.prefilled + chunk)
    alone_s = base_s(tables, inst.row, tokens, 0, stream.sampled) + chunks_s
    stream.tokens = tokens
    stream.attention_share = chunks_s / alone_s if alone_s > 0.0 else 0.0
    stream.start_s = sim.now_s
    inst.counted_s = inst.counted_s if inst.busy else sim.now_s
    step_s = max(alone_s, host_s(tables, inst.row, tokens, 0)) * (
        inst.slowness * prefill_slowdown(s, inst.prefill_percent)
    )
    if unlikely(inst.load_s > 0.0):
        step_s = with_loads_s(s, i, step_s)
    _announce(s, i, sim.now_s + step_s)


@inner
def complete_prefill_step(s: State, i: int) -> None:
    """Log the prefill step that has ended, and add it to the totals."""
    inst, stream, sim = s.instances[i], s.prefill_step[i], s.sim
    row = s.step_log[sim.step_rows]
    row.start_s = stream.start_s
    row.first_s = sim.now_s - stream.start_s
    row.increment_s = 0.0
    row.step0 = inst.decode_steps
    row.context = 0
    row.instance = i
    row.steps = 1
    row.batch = 0
    row.prefill_tokens = stream.tokens
    row.depth = 0
    row.stream = 1
    sim.step_rows += 1
    sim.steps += 1
    inst.steps += 1
    inst.weight_passes += 1
    inst.prefill_tokens += stream.tokens
    inst.prefill_square += stream.square
    if s.options.chosen_share > 0.0:
        inst.expert_reads += 1.0 - (1.0 - s.options.chosen_share) ** stream.tokens
    tables = StepTables(s.timing_rows, s.timing_data)
    count_busy(s, i, extrapolation(tables, inst.row, stream.tokens, stream.sampled, 0, 0, stream.longest_prompt))
    _announce(s, i, np.inf)


@inner
def drop_prefill_step(s: State, i: int) -> None:
    """Drop i's prefill step, which is under way and will not end."""
    s.prefill_step[i].ended_s = -np.inf
    _announce(s, i, np.inf)


@inner
def _announce(s: State, i: int, time_s: float) -> None:
    """Announce the end of i's prefill step at `time_s`, inf: there is none."""
    set_time(s, PREFILL_STEP_END, i, time_s)
    s.sim.prefill_end_of = first_due(s, PREFILL_STEP_END)
    s.sim.prefill_end_s = time_of(s, PREFILL_STEP_END, s.sim.prefill_end_of)


@inner
def count_busy(s: State, i: int, ratio: float) -> None:
    """Count i as busy up to now, as a step has ended; the step exceeds the measured range if `ratio` is above 1."""
    inst, now_s = s.instances[i], s.sim.now_s
    fresh_s = now_s - inst.counted_s
    inst.busy_s += fresh_s
    inst.counted_s = now_s
    if ratio > 1.0:
        inst.extrapolated_s += fresh_s
        inst.extrapolation = max(inst.extrapolation, ratio)
