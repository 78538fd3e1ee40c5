"""A calibration over step times of any source, to try it before it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import COMPUTE_TOKENS, Calibration
from framework.timing.measured import Entry, Measured
from framework.timing.server import Server
from framework.timing.step_row import StepRow, Timing

Rows = Callable[[Calibration, Model, Gpu, Parallelism], StepRow]


@dataclass(frozen=True)
class Calibrated:
    """The step times that `rows` gives under one calibration."""

    rows: Rows
    calibration: Calibration
    source: str
    _known: list[tuple[tuple[Model, Gpu, Parallelism], StepRow]] = field(default_factory=list, repr=False)

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance. Raises InputError if the source has none."""
        asked = (model, gpu, parallelism)
        row = next((row for known, row in self._known if known == asked), None)
        if row is None:
            row = self.rows(self.calibration, *asked)
            self._known.append((asked, row))
        return row


def calibrations_of(timing: Timing, server: Server | None = None) -> Callable[[Calibration], Timing]:
    """A function that makes `timing` under any calibration, instead of the one that it would find.

    A source without measured parts does not distinguish communication from kernels. There `communication` has no
    effect, `kernel` multiplies every time of a step, and steps run on `server`, None: a synchronous one.
    """
    if isinstance(timing, Measured):
        rows = _of_parts(timing)
    else:

        def rows(calibration: Calibration, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
            work = (server or Server()).fitted(calibration).overheads(model.layers, parallelism)
            return apply(calibration, timing.row(model, gpu, parallelism), work)

    return lambda calibration: Calibrated(rows, calibration, f"{timing.source}, calibrated")


def _of_parts(timing: Measured) -> Rows:
    """The timing by calibration; reads each profile once for all calibrations."""
    known: dict[tuple[str, str, Parallelism], Entry] = {}

    def rows(calibration: Calibration, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        key = model.name, gpu.name, parallelism
        if key not in known:
            known[key] = timing.entry(model, gpu, parallelism)
        return timing.under(calibration, known[key], model, parallelism)

    return rows


def apply(calibration: Calibration, row: StepRow, work: StepRow) -> StepRow:
    """The step times `row` with every time of a step multiplied by `kernel`, plus `work`, what a server adds.

    Prefill attention, and the additional time of linear layers beyond COMPUTE_TOKENS, are also multiplied by `compute`.
    """
    scaled = row.times(calibration.kernel)
    if calibration.compute != 1.0:
        scaled = scaled.mapped(
            attention=lambda curve: curve.times(calibration.compute),
            linear=lambda curve: curve.rising_faster(COMPUTE_TOKENS, calibration.compute),
        )
    return scaled + work + calibration.overheads
