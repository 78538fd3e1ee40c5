"""A calibration laid over step times of any source, to try it out before it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.measured import Measured
from framework.timing.profile import Parts
from framework.timing.table import Curve, StepRow, Surface, Timing

Rows = Callable[[Calibration, Model, Gpu, Parallelism], StepRow]


@dataclass(frozen=True)
class Calibrated:
    """Step times of `rows` under one calibration."""

    rows: Rows
    calibration: Calibration
    source: str

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """Step times of one instance; InputError where the source has none."""
        return self.rows(self.calibration, model, gpu, parallelism)


def calibrations_of(timing: Timing) -> Callable[[Calibration], Timing]:
    """What makes `timing` under any calibration, instead of the one it would find.

    A source that is not made of measured parts does not tell communication from kernels: there `communication` does
    nothing, and `kernel` multiplies every time of a step.
    """
    if isinstance(timing, Measured):
        rows = _of_parts(timing)
    else:

        def rows(calibration: Calibration, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
            return apply(calibration, timing.row(model, gpu, parallelism))

    return lambda calibration: Calibrated(rows, calibration, f"{timing.source}, calibrated")


def _of_parts(timing: Measured) -> Rows:
    """Reads each profile once, however many calibrations are tried."""
    known: dict[tuple[str, str, Parallelism], Parts] = {}

    def rows(calibration: Calibration, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        key = model.name, gpu.name, parallelism
        if key not in known:
            known[key] = timing.entry(model, gpu, parallelism).parts
        return known[key].row(calibration)

    return rows


def apply(calibration: Calibration, row: StepRow) -> StepRow:
    """`row` with every time of a step multiplied by `kernel` and the overheads added."""
    factor = calibration.kernel
    return replace(
        row,
        base_s=factor * row.base_s + calibration.step_s,
        per_prefill_token_s=factor * row.per_prefill_token_s,
        prefill_quadratic_s=factor * row.prefill_quadratic_s,
        per_sequence_s=factor * row.per_sequence_s + calibration.sequence_s,
        per_context_token_s=factor * row.per_context_token_s,
        per_sampled_s=factor * row.per_sampled_s,
        linear=_scaled(row.linear, factor),
        attention=_scaled(row.attention, factor),
        logits=_scaled(row.logits, factor),
        decode=None if row.decode is None else _scaled_surface(row.decode, factor),
        prefill_step_s=factor * row.prefill_step_s + calibration.prefill_step_s,
        skew_s=factor * row.skew_s,
        masked_s=factor * row.masked_s,
        request_s=row.request_s + calibration.request_s,
    )


def _scaled(curve: Curve | None, factor: float) -> Curve | None:
    return None if curve is None else Curve(curve.knots, _times(curve.values, factor))


def _scaled_surface(surface: Surface, factor: float) -> Surface:
    return replace(surface, values=tuple(_times(values, factor) for values in surface.values))


def _times(values: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in values)
