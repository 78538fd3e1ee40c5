"""The error of step times by class of deployments: what 8 of 10 measured deployments keep.

`steps` is relative to the time of a step; `ttft` is a factor on the time to first token of a server that keeps up with
its load. If it hardly does, the error of TTFT is many times that of its steps; replays with longer and shorter steps
show this. Widths come from closed loops of `make fidelity` (every second deployment of vLLM with a dense model, every
sixth with experts) whose terms had not seen them: those of another GPU's fit, or none. docs/given_rows.md has counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.measured import Measured
from framework.timing.step_row import Timing


@dataclass(frozen=True)
class Width:
    """The widths of a class of deployments, and its name, "" if they were not counted."""

    steps: float
    ttft: float
    of: str


WIDTHS = {
    ("dense", True): Width(0.10, 1.35, "dense models with a fit"),
    ("dense", False): Width(0.15, 1.5, "dense models without a fit"),
    ("moe", True): Width(0.15, 1.5, "mixtures of experts with a fit"),
    ("moe", False): Width(0.15, 2.0, "mixtures of experts without a fit"),
}
OTHERS = Width(0.20, 2.0, "models on other servers than vLLM")
_COUNTED = "vllm"  # the backend of WIDTHS


def width_of(timing: Timing, model: Model, gpu: Gpu, parallelism: Parallelism) -> Width:
    """The width of the step times of one instance; of a card without measured kernels, the error that it states.

    Raises InputError for a source whose errors are neither counted nor stated.
    """
    if isinstance(timing, Measured) and timing.estimates(gpu) and gpu.kernels is not None:
        return Width(gpu.kernels.spread - 1.0, gpu.kernels.spread, "")
    if not isinstance(timing, Measured) or timing.estimates(gpu):
        raise InputError(
            "output.sensitivity=auto: the errors of these step times are unknown; give a share of them, as 0.2"
        )
    if timing.backend != _COUNTED:
        return OTHERS
    kind = "dense" if model.experts is None else "moe"
    return WIDTHS[kind, timing.is_fitted(model, gpu, parallelism)]
