"""Step times in which one phase is faster by a factor; the other phase keeps the source's times.

On an instance that only prefills, or only decodes, the phase has all of a step. If both share steps, prefill has its
attention, its cost per token, and the linear layers beyond those of the mean batch of decodes; decode has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve
from framework.timing.step_row import StepRow, Timing

RowChange = Callable[[StepRow], StepRow]

_PREFILL_ALONE = (
    *("attention", "bounded", "prefill_quadratic_s", "prefill_step_s", "masked_s", "per_prefill_token_s"),
    *("tile_row_s", "tile_pair_s"),
)
_OF_CONTEXT = ("decode", "per_context_token_s", "skew_s")
_HOST = ("host_s", "host_sequence_s", "eager_s", "request_s", "intake_s", "intake_token_s")
_HOST_OF_STEPS = ("host_s", "host_sequence_s", "eager_s")


@dataclass(frozen=True)
class ChangedTiming:
    """The step times of `timing`, changed by pool: `pools` has, by the name of a pool's GPU, the GPU and the change.

    `framework.diagnosis.changes` gives each pool a GPU of its own name, which distinguishes pools of like GPUs.
    """

    timing: Timing
    pools: Mapping[str, tuple[Gpu, RowChange]]

    @property
    def source(self) -> str:
        return self.timing.source

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance; raises InputError as `timing` does."""
        if gpu.name not in self.pools:
            return self.timing.row(model, gpu, parallelism)
        own, change = self.pools[gpu.name]
        return change(self.timing.row(model, own, parallelism))


def unchanged(row: StepRow) -> StepRow:
    """The row as it is."""
    return row


def all_faster(row: StepRow, times: float) -> StepRow:
    """Make every step `times` as fast, including the host's work on it."""
    return _scaled(row.times(1 / times), _HOST_OF_STEPS, 1 / times)


def prefill_faster(row: StepRow, times: float, decodes: float) -> StepRow:
    """Make the prefill part of steps, which `decodes` requests share, `times` as fast."""
    row = _scaled(row, _PREFILL_ALONE, 1 / times)
    return row.mapped(linear=lambda curve: _in_two(curve, decodes, 1.0, 1 / times))


def decode_faster(row: StepRow, times: float, decodes: float) -> StepRow:
    """Make the decode part of steps, which prefills share, `times` as fast."""
    kept = {name: getattr(row, name) for name in _PREFILL_ALONE}
    faster = replace(all_faster(row, times), **kept)
    return replace(faster, linear=row.linear).mapped(linear=lambda curve: _in_two(curve, decodes, 1 / times, 1.0))


def context_faster(row: StepRow, times: float) -> StepRow:
    """Make the reading of contexts by decodes `times` as fast."""
    return _scaled(row, _OF_CONTEXT, 1 / times)


def without_host(row: StepRow) -> StepRow:
    """Make steps as short as their kernels, and let requests reach the scheduler at once."""
    return _scaled(row, _HOST, 0.0)


def without_work_between(row: StepRow) -> StepRow:
    """As `without_host`, where the host works between steps: `base_s` has its work too, and `host_s` says how much."""
    return replace(without_host(row), base_s=max(row.base_s - row.host_s, 0.0), between_sequence_s=0.0)


def _scaled(row: StepRow, names: tuple[str, ...], factor: float) -> StepRow:
    def times(value: float | Curve) -> float | Curve:
        return factor * value if isinstance(value, float | int) else value.times(factor)

    return row.mapped(**dict.fromkeys(names, times))


def _in_two(curve: Curve, knot: float, below: float, above: float) -> Curve:
    """The curve up to its level at `knot` times `below`, and its rise above that level times `above`."""
    knots = np.union1d(curve.knots, [max(knot, curve.knots[0])])
    values = curve.at(knots)
    level = float(curve.at(np.array([max(knot, curve.knots[0])]))[0])
    return Curve.of(knots, below * np.minimum(values, level) + above * np.maximum(values - level, 0.0))
