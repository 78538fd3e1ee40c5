"""Published step times: fitted to a publication's engine, or measured for whole prompts.

`Published` takes all times of a step from a publication; `PublishedPrompts` takes those of steps with one whole prompt
from a publication and the rest from another source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from framework.checks import NotNegative, check_fields, require_at_least, require_count
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface
from framework.timing.step_row import StepRow, Timing
from framework.timing.table import stack, step_s

_CONTEXTS = (1.0, 2.0**20)  # a decode's time is affine in its context: any two points determine it


@dataclass(frozen=True)
class PublishedFit:
    """The step times of one model on `tp` GPUs of one kind, in seconds.

    A step of prompts costs prefill_base_s + prefill_per_token_s * tokens + prefill_quadratic_s * sum of squared lengths
    + `prefill_curve_s`: points (tokens of the step, seconds), between which it is affine, and up to the first of which
    it is 0. A step of decodes costs seconds + per_context_token_s * summed context, given by the rows (batch, seconds,
    per_context_token_s) of `decode_s` and linear in the batch between them; the first row is of one decode. A step with
    both costs the sum of the two, less the base cost of the cheaper one. Raises InputError for negative numbers and for
    rows of another length.
    """

    model: str
    gpu: str
    tp: int
    prefill_base_s: NotNegative
    decode_s: Sequence[Sequence[float]]
    prefill_per_token_s: NotNegative = 0.0
    prefill_quadratic_s: NotNegative = 0.0
    prefill_curve_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        check_fields(self, f"{self}: ")
        for name, columns in (("decode_s", 3), ("prefill_curve_s", 2)):
            for row in getattr(self, name):
                if len(row) != columns:
                    raise InputError(f"{self}: {name} must have rows of {columns} numbers, got {row}")
                for value in row:
                    require_at_least(f"{self}: {name}", value, 0)

    def __str__(self) -> str:
        return f"timing.laws: {self.model} on {self.tp} {self.gpu}"

    def row(self, stages: int) -> StepRow:
        """The step times of an instance of `stages` pipeline stages, over which as many equal micro-batches are spread.

        Raises InputError for points that do not rise.
        """
        batches, seconds, slopes = zip(*self.decode_s, strict=True)
        shared_s = min(self.prefill_base_s, *seconds)
        values = [
            tuple(one_s - shared_s + slope_s * context / stages for context in _CONTEXTS)
            for one_s, slope_s in zip(seconds, slopes, strict=True)
        ]
        try:
            return StepRow(
                base_s=shared_s,
                prefill_step_s=self.prefill_base_s - shared_s,
                per_prefill_token_s=self.prefill_per_token_s / stages,
                prefill_quadratic_s=self.prefill_quadratic_s / stages,
                linear=self._curve(stages),
                decode=Surface(_of_stages(batches, stages), _CONTEXTS, (*values[: stages > 1], *values)),
            )
        except ValueError as error:
            raise InputError(f"{self}: {error}") from error

    def _curve(self, stages: int) -> Curve | None:
        if not self.prefill_curve_s:
            return None
        tokens, seconds = zip(*self.prefill_curve_s, strict=True)
        return Curve((1.0, *(float(stages * one) for one in tokens)), (0.0, *seconds))


def _of_stages(batches: Sequence[float], stages: int) -> tuple[float, ...]:
    """The batches of an instance at which each micro-batch has one of `batches`; one decode costs as much as `stages`
    do.
    """
    all_of_them = tuple(float(stages * batch) for batch in batches)
    return (1.0, *all_of_them) if stages > 1 else all_of_them


@dataclass(frozen=True)
class Published:
    """Step times by `laws`, each the fields of a `PublishedFit`; `source`: where they were published.

    Raises InputError for fits with other fields, and if there is no fit of a model, GPU and tp.
    """

    source: str
    laws: Sequence[Mapping[str, Any] | PublishedFit]

    def __post_init__(self) -> None:
        object.__setattr__(self, "laws", tuple(_fit_of(one) for one in self.laws))

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance."""
        if parallelism.dp > 1 or parallelism.ep > 1:
            raise InputError(f"timing {self.source} knows tp and pp only, not {parallelism}")
        known = [one for one in self.laws if isinstance(one, PublishedFit)]
        for fit in known:
            if (fit.model, fit.gpu, fit.tp) == (model.name, gpu.name, parallelism.tp):
                return fit.row(parallelism.pp)
        there = ", ".join(f"{one.model} on {one.gpu} tp {one.tp}" for one in known)
        raise InputError(
            f"timing {self.source} has no times of {model.name} on {gpu.name} tp {parallelism.tp};"
            f" it has {there}: choose one of them, or timing=roofline"
        )


def _fit_of(fields: Mapping[str, Any] | PublishedFit) -> PublishedFit:
    if isinstance(fields, PublishedFit):
        return fields
    try:
        return PublishedFit(**fields)
    except TypeError as error:  # a key too many or too few
        raise InputError(f"timing.laws: {error}") from error


@dataclass(frozen=True)
class PublishedPrompts:
    """The step times of `times`, except that steps of one whole prompt take the published time.

    `prompts_s` has points (tokens of the prompt, seconds of the step) of `model` on `tp` GPUs named `gpu`; `measured`
    says by whom. Attention of a chunk takes longer by `masked_s` seconds for each squared token of its own, as in
    kernels that also compute above the diagonal. Linear layers take the rest of a point's step. They are affine in
    tokens between points and continue beyond the last; below the first they take as long as in `times`, times the
    factor at the first. Raises InputError for fewer than two points, for points that do not rise, for a `masked_s`
    below 0, and for another model, GPU or parallelism.
    """

    times: Timing
    measured: str
    model: str
    gpu: str
    tp: int
    prompts_s: Sequence[Sequence[float]]
    masked_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "timing.")
        for point in self.prompts_s:
            if len(point) != 2:
                raise InputError(f"timing.prompts_s must have points of tokens and seconds, got {point}")
            require_count("timing.prompts_s: tokens", point[0])
            require_at_least(f"timing.prompts_s: seconds of {point[0]} tokens", point[1], 0)
        if len(self.prompts_s) < 2 or np.any(np.diff(np.array(self.prompts_s, float), axis=0) <= 0):
            raise InputError("timing.prompts_s must have two points or more, with rising tokens and seconds")

    @property
    def source(self) -> str:
        return f"{self.times.source}, prompts as measured by {self.measured}"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance. Raises InputError as `times` does, and for a point below its attention."""
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
