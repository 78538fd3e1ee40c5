"""Times of the GPU, and of the host that prepares each step and reads its results while the GPU waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from framework.errors import InputError
from framework.hardware import Gpu, Model, Parallelism
from framework.timing.step import StepRow, Timing
from framework.validate import require_at_least, require_count


@dataclass(frozen=True)
class WithHost:
    """The steps of `gpu_times`, each longer by the host's work: (seconds of a step, seconds of a decode) by tp.

    A tp that is not named takes those of the largest named one below it. `host` says whose work it is. Raises
    InputError for seconds below 0 and where tp 1 is not named.
    """

    gpu_times: Timing
    host: str
    by_tp: Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        for tp, seconds in self.by_tp.items():
            require_count("timing.by_tp: tp", tp)
            if len(seconds) != 2:
                raise InputError(f"timing.by_tp: tp {tp} must have seconds of a step and of a decode, got {seconds}")
            for value in seconds:
                require_at_least(f"timing.by_tp: tp {tp}", value, 0)
        if 1 not in self.by_tp:
            raise InputError("timing.by_tp must name tp 1, the least there is")

    @property
    def source(self) -> str:
        return f"{self.gpu_times.source}, with the host's work in {self.host}"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """Step times of one instance; InputError as of `gpu_times`."""
        row = self.gpu_times.row(model, gpu, parallelism)
        step_s, decode_s = self.by_tp[max(tp for tp in self.by_tp if tp <= parallelism.tp)]
        return replace(row, base_s=row.base_s + step_s, per_sequence_s=row.per_sequence_s + decode_s)
