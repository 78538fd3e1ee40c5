"""How keys and values are kept and sent: what another format than the model's own changes, in bytes and in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from framework.checks import Positive, between, check_fields
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.table import Curve, StepRow, Surface

_Share = Annotated[float, between(1e-6, 1)]
_Factor = Annotated[float, between(1e-3, 1e3)]


@dataclass(frozen=True)
class KvFormat:
    """Relative to keys and values as the model has them (`model.kv_dtype`), which is the default.

    `memory_share`: of their bytes in GPU memory, and so in what is swapped out; `copy_share`: of their bytes on a link
    between instances. Decode attention takes as long as for `read_factor` times the context: what it reads, and what
    unpacking at every read comes to. Prefill attention takes `prefill_factor` times as long. A GPU packs
    `pack_bytes_s` of them a second, counted as the model has them, when it has prefilled them, and unpacks
    `unpack_bytes_s` where they arrive from another instance; None: that is part of other kernels, and costs nothing.
    Raises InputError for a value out of range.
    """

    memory_share: _Share = 1.0
    copy_share: _Share = 1.0
    read_factor: _Factor = 1.0
    prefill_factor: _Factor = 1.0
    pack_bytes_s: Positive | None = None
    unpack_bytes_s: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self, "engine.kv_compression.")

    def unpack_s(self, model: Model, parallelism: Parallelism) -> float:
        """Seconds of unpacking one token that has arrived on an instance."""
        return _token_s(self.unpack_bytes_s, model, parallelism)

    def step_row(self, row: StepRow, model: Model, parallelism: Parallelism) -> StepRow:
        """Step times of an instance with this format, from those without: `row`."""
        if self == KvFormat():  # spares every run of most sweeps to make and check its tables anew
            return row
        return replace(
            row,
            per_prefill_token_s=row.per_prefill_token_s + _token_s(self.pack_bytes_s, model, parallelism),
            prefill_quadratic_s=row.prefill_quadratic_s * self.prefill_factor,
            masked_s=row.masked_s * self.prefill_factor,
            tile_row_s=row.tile_row_s * self.prefill_factor,
            tile_pair_s=row.tile_pair_s * self.prefill_factor,
            attention=_slowed(row.attention, self.prefill_factor),
            per_context_token_s=row.per_context_token_s * self.read_factor,
            skew_s=row.skew_s * self.read_factor,
            decode=_lengthened(row.decode, self.read_factor),
            decode_limits=_slowed(row.decode_limits, 1 / self.read_factor),
        )


def _token_s(bytes_s: float | None, model: Model, parallelism: Parallelism) -> float:
    """Seconds a token where each GPU works on its share of the heads, dp groups and stages on tokens of their own."""
    if bytes_s is None:
        return 0.0
    own_bytes = model.kv_bytes_per_token * model.kv_share(parallelism.tp)
    return own_bytes / (bytes_s * parallelism.dp * parallelism.pp)


def _slowed(curve: Curve | None, factor: float) -> Curve | None:
    return None if curve is None else Curve(curve.knots, tuple(factor * value for value in curve.values))


def _lengthened(surface: Surface | None, factor: float) -> Surface | None:
    """The surface of which a context c has the times of factor * c."""
    if surface is None:
        return None
    first, *rest = surface.contexts  # the first stands for no context, and may not lie above 1
    contexts = (min(first / factor, first), *(knot / factor for knot in rest))
    return replace(surface, contexts=contexts)
