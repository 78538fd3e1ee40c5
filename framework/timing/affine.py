"""Step times from five coefficients: a user's own fit, or the basis of exact checks."""

from __future__ import annotations

from dataclasses import dataclass

from framework.checks import NotNegative, check_fields
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.step_row import StepRow


@dataclass(frozen=True)
class Affine:
    """Step times that are affine in the content of a step, for any model and GPU. All coefficients are in seconds.

    A step costs base_s + per_prefill_token_s * sum(chunk) + prefill_quadratic_s * sum((prefix + chunk)^2 - prefix^2)
    + per_sequence_s * decodes + per_context_token_s * summed context. A request takes request_s to the front end, which
    takes in one after another, intake_s each.

    Sums are exact in float64 if the coefficients are dyadic (a small integer times a power of two). Raises InputError
    for a negative coefficient.
    """

    base_s: NotNegative = 0.0
    per_prefill_token_s: NotNegative = 0.0
    prefill_quadratic_s: NotNegative = 0.0
    per_sequence_s: NotNegative = 0.0
    per_context_token_s: NotNegative = 0.0
    request_s: NotNegative = 0.0
    intake_s: NotNegative = 0.0
    source: str = "affine"

    def __post_init__(self) -> None:
        check_fields(self, "timing.")

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The coefficients as they are, for every instance."""
        return StepRow(
            base_s=self.base_s,
            per_prefill_token_s=self.per_prefill_token_s,
            prefill_quadratic_s=self.prefill_quadratic_s,
            per_sequence_s=self.per_sequence_s,
            per_context_token_s=self.per_context_token_s,
            request_s=self.request_s,
            intake_s=self.intake_s,
        )
