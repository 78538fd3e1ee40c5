"""The definition of a step's time: `StepRow`, and `Timing`, the sources that fill it.

To add a coefficient or a curve, declare it here, and evaluate it in its function of framework.timing.table: packing,
adding, scaling and splitting go through the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface


def _times_of(part: str) -> Mapping[str, Any]:
    """The metadata of a field that holds seconds of `part` of a step."""
    return {"part": part, "adds": True, "scales": True}


_LINEAR, _PREFILL, _DECODE = _times_of("linear"), _times_of("prefill_attention"), _times_of("decode_attention")
_LOGITS, _OVERHEAD = _times_of("logits"), _times_of("overhead")
_PREFILL_RATIO = {"part": "prefill_attention", "adds": False, "scales": False}  # multiplies times of that part
_REQUEST = {"part": "", "adds": True, "scales": False}  # seconds of a request, outside of steps
_HOST = {"part": "", "adds": True, "scales": False}  # the least time of a step, independent of its kernels
_LIMIT = {"part": "", "adds": False, "scales": False}  # end of the measured range
_KERNEL = {"part": "", "adds": False, "scales": False, "larger": True}  # a property of a kernel


@dataclass(frozen=True)
class StepRow:
    """The step times of one instance, or of one part of a step on it; framework.timing.table says how they add up.

    Numbers and curves are in seconds, except the ratio `waste`, and `decode_rows` and the limits, which count tokens or
    sequences. All are at least 0. A missing field costs nothing, and limits nothing. A decode is a sequence that
    decodes. Raises ValueError if `bounded` falls.
    """

    # Linear layers. `linear` is over the tokens of a step: those of its chunks, and one for each decode.
    linear: Curve | None = field(default=None, metadata=_LINEAR)
    per_prefill_token_s: float = field(default=0.0, metadata=_LINEAR)
    # Prefill attention. `attention` is over the tokens of a whole prompt; `prefill_quadratic_s` is per squared token of
    # it, `prefill_step_s` per step with a chunk, and `masked_s` per squared token of a chunk, for what kernels compute
    # above its diagonal. `waste` is over the tokens of a chunk: its time relative to that of one which fills the GPU.
    # `bounded`, over the tokens of a whole prompt too, has layers whose queries do not attend to the whole context. A
    # chunk takes the difference between its end and its beginning, so the curve must not fall.
    attention: Curve | None = field(default=None, metadata=_PREFILL)
    bounded: Curve | None = field(default=None, metadata=_PREFILL)
    prefill_quadratic_s: float = field(default=0.0, metadata=_PREFILL)
    prefill_step_s: float = field(default=0.0, metadata=_PREFILL)
    masked_s: float = field(default=0.0, metadata=_PREFILL)
    waste: Curve | None = field(default=None, metadata=_PREFILL_RATIO)
    # Decode attention. `decode` is over the decodes and their summed context; `per_context_token_s` is per token of the
    # summed context, `per_sequence_s` per decode, and `skew_s` per token by which contexts fall short of the longest. A
    # drafted token counts as one more decode in `per_sequence_s`. In `between_sequence_s`, the host's work between
    # steps for a decode, it does not: the host handles sequences, not drafts.
    decode: Surface | None = field(default=None, metadata=_DECODE)
    per_context_token_s: float = field(default=0.0, metadata=_DECODE)
    per_sequence_s: float = field(default=0.0, metadata=_DECODE)
    between_sequence_s: float = field(default=0.0, metadata=_DECODE)
    skew_s: float = field(default=0.0, metadata=_DECODE)
    # If one kernel runs the attention of chunks and of decodes: the rows of queries in its tiles, of which a decode
    # with chunks takes a whole one; 0: decodes have their own kernel. A row takes `tile_row_s`, and `tile_pair_s` for
    # each key, if tiles fill the GPU; both 0: as in a chunk. `head_group` query heads read the same keys, and tiles of
    # `decodes_at_once` decodes, one head each, fill the GPU.
    decode_rows: float = field(default=0.0, metadata=_KERNEL)
    tile_row_s: float = field(default=0.0, metadata=_PREFILL)
    tile_pair_s: float = field(default=0.0, metadata=_PREFILL)
    head_group: float = field(default=1.0, metadata=_KERNEL)
    decodes_at_once: float = field(default=np.inf, metadata=_LIMIT)
    # The projection to the vocabulary, over the sequences that emit a token, and per such sequence.
    logits: Curve | None = field(default=None, metadata=_LOGITS)
    per_sampled_s: float = field(default=0.0, metadata=_LOGITS)
    # These apply to every step.
    base_s: float = field(default=0.0, metadata=_OVERHEAD)
    # Time of every request before the scheduler sees it: `request_s` from a client's sending to the front end, which
    # takes in one after another, `intake_s` each, and reads prompts, `intake_token_s` for each token. A share
    # `late_share` of the requests is drawn to take longer there, by `late_s` on average.
    request_s: float = field(default=0.0, metadata=_REQUEST)
    intake_s: float = field(default=0.0, metadata=_REQUEST)
    intake_token_s: float = field(default=0.0, metadata=_REQUEST)
    late_share: float = field(default=0.0, metadata=_REQUEST)
    late_s: float = field(default=0.0, metadata=_REQUEST)
    # The host's time to form and launch a step, concurrent with the kernels: no step is shorter. `eager_s` is added for
    # a step of more tokens than `graph_tokens`, whose kernels no CUDA graph launches together.
    host_s: float = field(default=0.0, metadata=_HOST)
    host_sequence_s: float = field(default=0.0, metadata=_HOST)
    eager_s: float = field(default=0.0, metadata=_HOST)
    graph_tokens: float = field(default=np.inf, metadata=_LIMIT)
    # The end of the measured range: tokens of a step, tokens of a prompt, sequences that emit a token, and, over the
    # decodes, their summed context.
    tokens_limit: float = field(default=np.inf, metadata=_LIMIT)
    length_limit: float = field(default=np.inf, metadata=_LIMIT)
    sampled_limit: float = field(default=np.inf, metadata=_LIMIT)
    decode_limits: Curve | None = field(default=None, metadata=_LIMIT)

    def __post_init__(self) -> None:
        if self.bounded is not None and (np.diff(self.bounded.values) < 0).any():
            raise ValueError("bounded must not fall: a chunk would take less than no time")

    def times(self, factor: float) -> StepRow:
        """The row with every time of a step multiplied by `factor`; times of requests, ratios and limits stay."""
        if factor == 1.0:
            return self
        mine = vars(self)
        return StepRow(**{**mine, **{name: _times(mine[name], factor) for name in _SCALING if mine[name]}})

    @property
    def least_s(self) -> float:
        """Seconds that the terms of a step take together for one token each."""
        scaling = (getattr(self, name) for name in (*_SCALING, "host_s", "host_sequence_s", "eager_s"))
        return sum(_first(value) for value in scaling if value is not None)

    def mapped(self, **functions: Callable[[Any], Any]) -> StepRow:
        """The row with each named field replaced by its function's result; absent curves stay absent."""
        values = {name: getattr(self, name) for name in functions}
        return replace(self, **{name: functions[name](value) for name, value in values.items() if value is not None})

    def parts(self) -> Mapping[str, StepRow]:
        """The row split into the parts of a step, by name, in the order in which to show them."""
        members: dict[str, list[str]] = {}
        for one in _DECLARED:
            members.setdefault(one.metadata["part"], []).append(one.name)
        del members[""]
        return {part: StepRow(**{name: getattr(self, name) for name in names}) for part, names in members.items()}

    def __add__(self, other: StepRow) -> StepRow:
        """The row of steps that cost the sum of both rows, up to the nearer limit.

        Raises ValueError if both rows have `waste`, or both have `decode_limits`.
        """
        mine, its = vars(self), vars(other)
        numbers = {name: mine[name] + its[name] for name in _ADDED_NUMBERS}
        return StepRow(**numbers, **{one.name: _sum(one, mine[one.name], its[one.name]) for one in _SUMMED_OTHERWISE})


_DECLARED = fields(StepRow)
_ADDED_NUMBERS = tuple(one.name for one in _DECLARED if one.metadata["adds"] and isinstance(one.default, float))
_SUMMED_OTHERWISE = tuple(one for one in _DECLARED if one.name not in _ADDED_NUMBERS)
_SCALING = tuple(one.name for one in _DECLARED if one.metadata["scales"])


def _first(value: Any) -> float:
    """The value of a curve or a surface at its first knot."""
    return float(np.ravel(value.values)[0]) if isinstance(value, Curve | Surface) else float(value)


def _times(value: Any, factor: float) -> Any:
    return value.times(factor) if isinstance(value, Curve | Surface) else factor * value


def _sum(declared: Field[Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if declared.metadata["adds"]:
        return one + other
    if isinstance(one, Curve):
        raise ValueError(f"only one of the rows may have {declared.name}")
    return max(one, other) if declared.metadata.get("larger") else min(one, other)


class Timing(Protocol):
    """A source of step times. `source` names it in every result."""

    @property
    def source(self) -> str: ...

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance. Raises InputError if the source has none."""
        ...
