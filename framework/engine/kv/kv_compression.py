"""Formats in which KV is kept and sent: their effect on bytes and on seconds."""

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
    """A format of KV, relative to the model's own (`model.kv_dtype`), which is the default.

    `memory_share`: share of the model's KV bytes in GPU memory, and so in swapped KV; `copy_share`: share of them on a
    link between instances. Decode attention takes as long as for `read_factor` times the context, which covers reading
    and unpacking at every read. Prefill attention takes `prefill_factor` times as long. A GPU packs `pack_bytes_s`
    bytes a second after a prefill and unpacks `unpack_bytes_s` on arrival from another instance, both counted in the
    model's own format; None: other kernels include this work, at no cost. Raises InputError for a value out of range.
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
        """Seconds to unpack one token that has arrived on an instance."""
        return _token_s(self.unpack_bytes_s, model, parallelism)

    def step_row(self, row: StepRow, model: Model, parallelism: Parallelism) -> StepRow:
        """Step times of an instance with this format, made from those without it: `row`."""
        if self == KvFormat():  # most sweeps need no format: this saves making and checking the tables again
            return row
        return replace(
            row,
            per_prefill_token_s=row.per_prefill_token_s + _token_s(self.pack_bytes_s, model, parallelism),
            prefill_quadratic_s=row.prefill_quadratic_s * self.prefill_factor,
            masked_s=row.masked_s * self.prefill_factor,
            tile_row_s=row.tile_row_s * self.prefill_factor,
            tile_pair_s=row.tile_pair_s * self.prefill_factor,
            attention=_slowed(row.attention, self.prefill_factor),
            bounded=_slowed(row.bounded, self.prefill_factor),
            per_context_token_s=row.per_context_token_s * self.read_factor,
            skew_s=row.skew_s * self.read_factor,
            decode=_lengthened(row.decode, self.read_factor),
            decode_limits=_slowed(row.decode_limits, 1 / self.read_factor),
        )


def _token_s(bytes_s: float | None, model: Model, parallelism: Parallelism) -> float:
    """Seconds a token if each GPU handles its share of the heads, and dp groups and stages their own tokens."""
    if bytes_s is None:
        return 0.0
    own_bytes = model.kv_bytes_per_token * model.kv_share(parallelism.tp)
    return own_bytes / (bytes_s * parallelism.dp * parallelism.pp)


def _slowed(curve: Curve | None, factor: float) -> Curve | None:
    return None if curve is None else Curve(curve.knots, tuple(factor * value for value in curve.values))


def _lengthened(surface: Surface | None, factor: float) -> Surface | None:
    """The surface whose times at context c are those of factor * c."""
    if surface is None:
        return None
    first, *rest = surface.contexts  # the first knot is a context of 0 and may not exceed 1
    contexts = (min(first / factor, first), *(knot / factor for knot in rest))
    return replace(surface, contexts=contexts)
