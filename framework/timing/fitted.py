"""Step times that others fitted to an engine of theirs: prompts and decodes apart, by model, GPU and tp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.errors import InputError
from framework.hardware import Gpu, Model, Parallelism
from framework.timing.step import Curve, StepRow, Surface
from framework.validate import require_at_least

_CONTEXTS = (1.0, 2.0**20)  # a decode's time is affine in its context: any two points tell it


@dataclass(frozen=True)
class Law:
    """The times of one model on `tp` GPUs of one kind.

    A step of prompts costs prefill_base_s + prefill_per_token_s * tokens + prefill_quadratic_s * sum of squared lengths
    + prefill_curve_s over the tokens of the step: points (tokens, seconds), nothing up to the first. A step of decodes
    costs seconds + per_context_token_s * summed context, linear in the batch between the rows (batch, seconds,
    per_context_token_s) of decode_s, the first of which is of one decode. A step with both costs what the two would
    cost, less the cheaper one's cost of being a step at all.
    """

    model: str
    gpu: str
    tp: int
    prefill_base_s: float
    decode_s: Sequence[Sequence[float]]
    prefill_per_token_s: float = 0.0
    prefill_quadratic_s: float = 0.0
    prefill_curve_s: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        for name in ("prefill_base_s", "prefill_per_token_s", "prefill_quadratic_s"):
            require_at_least(f"{self}: {name}", getattr(self, name), 0)
        for name, columns in (("decode_s", 3), ("prefill_curve_s", 2)):
            for row in getattr(self, name):
                if len(row) != columns:
                    raise InputError(f"{self}: {name} must have rows of {columns} numbers, got {row}")
                for value in row:
                    require_at_least(f"{self}: {name}", value, 0)

    def __str__(self) -> str:
        return f"timing.laws: {self.model} on {self.tp} {self.gpu}"

    def row(self, stages: int) -> StepRow:
        """Step times of an instance of so many pipeline stages, over which as many equal micro-batches are spread.

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
    """The batches of an instance at which each micro-batch has one of `batches`; one decode costs what `stages` do."""
    all_of_them = tuple(float(stages * batch) for batch in batches)
    return (1.0, *all_of_them) if stages > 1 else all_of_them


@dataclass(frozen=True)
class Fitted:
    """`laws`, each the fields of a `Law`; `source` says where they are from.

    Raises InputError for laws that are none, and where there is none of a model, GPU and tp.
    """

    source: str
    laws: Sequence[Mapping[str, Any] | Law]

    def __post_init__(self) -> None:
        object.__setattr__(self, "laws", tuple(_law(one) for one in self.laws))

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """Step times of one instance."""
        if parallelism.dp > 1 or parallelism.ep > 1:
            raise InputError(f"timing {self.source} knows tp and pp only, not {parallelism}")
        known = [one for one in self.laws if isinstance(one, Law)]
        for law in known:
            if (law.model, law.gpu, law.tp) == (model.name, gpu.name, parallelism.tp):
                return law.row(parallelism.pp)
        there = ", ".join(f"{one.model} on {one.gpu} tp {one.tp}" for one in known)
        raise InputError(
            f"timing {self.source} has no times of {model.name} on {gpu.name} tp {parallelism.tp};"
            f" it has {there}: choose one of them, or timing=roofline"
        )


def _law(fields: Mapping[str, Any] | Law) -> Law:
    if isinstance(fields, Law):
        return fields
    try:
        return Law(**fields)
    except TypeError as error:  # a key too many or too few
        raise InputError(f"timing.laws: {error}") from error
