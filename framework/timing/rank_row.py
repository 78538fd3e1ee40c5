"""Step times of one data-parallel rank in lockstep, and of an instance that has lost GPUs, made from those of all."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

from framework.system.cluster import PoolSpec
from framework.system.model import Model
from framework.timing.curves import Curve, Surface
from framework.timing.step_row import StepRow, Timing

# The fields of a StepRow for a rank. D equal ranks have D times the tokens of one: a cost for each token or sequence is
# D times as much for one of a rank.
EACH = (
    *("per_prefill_token_s", "attention", "bounded", "prefill_quadratic_s", "masked_s", "per_context_token_s"),
    *("per_sequence_s", "between_sequence_s", "skew_s", "per_sampled_s", "tile_row_s", "tile_pair_s"),
)
# A size of all ranks is reached by a D-th of it on each, and a limit of all is a D-th for each.
OVER_SIZES = ("linear", "decode", "logits", "decode_limits")
LIMITS = ("tokens_limit", "sampled_limit", "decode_limits", "decodes_at_once")
_HOST = ("base_s", "between_sequence_s")  # launches and the host's work, which GPUs do not share
_PARTS = {one.name: one.metadata["part"] for one in fields(StepRow) if one.metadata["scales"] and one.name not in _HOST}


def instance_row(timing: Timing, model: Model, pool: PoolSpec) -> StepRow:
    """The step times of one instance of a pool: errors as of `timing`."""
    return rank_row(timing.row(model, pool.gpu, pool.parallelism), pool.group)


def rank_row(row: StepRow, ranks: int) -> StepRow:
    """The step times of one of `ranks` ranks whose steps together are those of `row`.

    A step takes as long as a step of `row` in which all ranks have the same chunks and decodes as this one. The host
    has the sequences and tokens of this rank alone.
    """
    if ranks == 1:
        return row
    row = row.mapped(**{name: lambda value: _scaled(value, ranks) for name in EACH})
    row = row.mapped(**{name: lambda value: _nearer(value, ranks) for name in OVER_SIZES})
    return row.mapped(**{name: lambda value: _scaled(value, 1 / ranks) for name in LIMITS})


def on_fewer_gpus(row: StepRow, work: float, attention: float) -> StepRow:
    """The step times of `row` with the work of each GPU multiplied: of attention by `attention`, of the rest by `work`.

    The host's work and what steps cost beside their tokens stay as they are. Communication is a part of the linear
    layers, whose time for a token hardly depends on the number of GPUs, and is multiplied with them.
    """
    factors = {name: attention if part.endswith("attention") else work for name, part in _PARTS.items()}
    return row.mapped(**{name: partial(_scaled, factor=factor) for name, factor in factors.items()})


def _scaled(value: float | Curve | Surface, factor: float) -> float | Curve | Surface:
    return value.times(factor) if isinstance(value, Curve | Surface) else factor * value


def _nearer(value: Curve | Surface, ranks: int) -> Curve | Surface:
    """The values at sizes that are `ranks` times smaller."""
    if isinstance(value, Curve):
        return replace(value, knots=_divided(value.knots, ranks))
    return replace(value, batches=_divided(value.batches, ranks), contexts=_divided(value.contexts, ranks))


def _divided(knots: tuple[float, ...], ranks: int) -> tuple[float, ...]:
    return tuple(knot / ranks for knot in knots)
