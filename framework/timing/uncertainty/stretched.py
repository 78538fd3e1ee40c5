"""Step times of another source, all multiplied by one factor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from framework.checks import Positive, check_fields
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.step_row import StepRow, Timing


@dataclass(frozen=True)
class Stretched:
    """The times of `timing`, of steps, hosts and requests alike, multiplied by `factor`.

    Raises InputError for a factor that is not positive.
    """

    timing: Timing
    factor: Positive

    def __post_init__(self) -> None:
        check_fields(self, "stretched.")

    @property
    def source(self) -> str:
        """The multiplied source, and the factor."""
        return f"{self.timing.source} x {self.factor:.3g}"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance. Raises InputError if the source has none."""
        row = self.timing.row(model, gpu, parallelism)
        outside = ("host_s", "host_sequence_s", "eager_s", "request_s", "intake_s", "intake_token_s", "late_s")
        return replace(row.times(self.factor), **{name: self.factor * getattr(row, name) for name in outside})
