"""Step times of which whole prompts were measured elsewhere: on another machine, with another engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from framework.errors import InputError
from framework.hardware import Gpu, Model, Parallelism
from framework.timing.step import Curve, StepRow, Timing, stack, step_s
from framework.validate import require_at_least, require_count


@dataclass(frozen=True)
class Anchored:
    """The steps of `times`, those of one whole prompt as long as they were measured elsewhere.

    `prompts_s`: (tokens, seconds of the step), of `model` on `tp` GPUs named `gpu`; `measured` says by whom. Attention
    of a chunk takes longer by `masked_s` for each squared token of its own, as in kernels that compute above the
    diagonal too. Linear layers take what the rest of a step leaves of a point. They are affine in tokens between points
    and go on so beyond the last; below the first they take as long as in `times`, longer or shorter by the same factor
    as there. Raises InputError for fewer than two points, for points that do not rise, for a `masked_s` below 0, and
    for what else than these was not measured.
    """

    times: Timing
    measured: str
    model: str
    gpu: str
    tp: int
    prompts_s: Sequence[Sequence[float]]
    masked_s: float = 0.0

    def __post_init__(self) -> None:
        for point in self.prompts_s:
            if len(point) != 2:
                raise InputError(f"timing.prompts_s must have points of tokens and seconds, got {point}")
            require_count("timing.prompts_s: tokens", point[0])
            require_at_least(f"timing.prompts_s: seconds of {point[0]} tokens", point[1], 0)
        require_at_least("timing.masked_s", self.masked_s, 0)
        if len(self.prompts_s) < 2 or np.any(np.diff(np.array(self.prompts_s, float), axis=0) <= 0):
            raise InputError("timing.prompts_s must have two points or more, with rising tokens and seconds")

    @property
    def source(self) -> str:
        return f"{self.times.source}, prompts as measured by {self.measured}"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """Step times of one instance; InputError as of `times`, and where a point is shorter than its attention."""
        if (model.name, gpu.name, parallelism) != (self.model, self.gpu, Parallelism(tp=self.tp)):
            raise InputError(
                f"timing {self.source} has times of {self.model} on {self.gpu} tp {self.tp},"
                f" not of {model.name} on {gpu.name} {parallelism}: choose these, or another timing"
            )
        row = replace(self.times.row(model, gpu, parallelism), masked_s=self.masked_s)
        if row.linear is None:
            raise InputError(f"timing {self.source}: {self.times.source} does not tell linear layers from the rest")
        return replace(row, linear=self._linear(row, row.linear))

    def _linear(self, row: StepRow, kernels: Curve) -> Curve:
        rest = stack([replace(row, linear=None)])
        points = [
            (float(tokens), seconds - step_s(rest, 0, [0], [int(tokens)], 0, 0)) for tokens, seconds in self.prompts_s
        ]
        first, first_s = points[0]
        if first_s <= 0:
            raise InputError(f"timing.prompts_s: {first:.0f} tokens take longer without linear layers")
        scale = first_s / float(np.interp(first, kernels.knots, kernels.values))
        below = [(at, value * scale) for at, value in zip(kernels.knots, kernels.values, strict=True) if at < first]
        knots, values = zip(*below, *points, strict=True)
        try:
            return Curve(knots, values)
        except ValueError as error:
            raise InputError(f"timing.prompts_s: without the rest of a step, {error}") from error
