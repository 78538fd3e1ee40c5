"""One GPU and one model: what a datasheet says, and the measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from framework.cli.arguments import configured
from framework.report.show_step import parse_step
from framework.report.step_figures import StepFigures, step_figures
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism

GIB = 2.0**30


@dataclass(frozen=True)
class Machine:
    """`model` on one `gpu`, with the step times of `timing`."""

    model: Model
    gpu: Gpu
    timing: Any

    @property
    def peak_flops(self) -> float:
        """FLOP/s of the datasheet, dense, for the type of the weights."""
        return self.gpu.peak(self.model.dtype)

    @property
    def ridge(self) -> float:
        """The intensity above which compute limits, FLOP/byte."""
        return self.peak_flops / self.gpu.bandwidth_bytes_s

    def prefill(self, tokens: int) -> StepFigures:
        """A step with one prompt; kernels alone, and `calibrated_ms` with the terms fitted to servers."""
        return self._figures(f"{tokens}", None)

    def decode(self, batch: int, context: int) -> StepFigures:
        """A step of `batch` decodes at `context` tokens each."""
        return self._figures(None, f"{batch}x{context}")

    def _figures(self, prefill: str | None, decode: str | None) -> StepFigures:
        return step_figures(self.model, self.gpu, Parallelism(), self.timing, parse_step(prefill, decode))


@cache
def machine(model: str, gpu: str) -> Machine:
    """The machine that conf/ describes under these names."""
    parts = configured((f"model={model}", f"gpu={gpu}"), ("model", "gpu", "timing"))
    return Machine(parts["model"], parts["gpu"], parts["timing"])


def served_mfu(step: StepFigures) -> float:
    """MFU of the step with fitted terms; NaN if nothing was fitted."""
    return step.mfu * _slower(step)


def served_mbu(step: StepFigures) -> float:
    """MBU of the step with fitted terms; NaN if nothing was fitted."""
    return step.mbu * _slower(step)


def served_s(step: StepFigures) -> float:
    """Seconds of the step with fitted terms; NaN if nothing was fitted."""
    return float("nan") if step.calibrated_ms is None else step.calibrated_ms / 1e3


def _slower(step: StepFigures) -> float:
    return step.kernels_ms / 1e3 / served_s(step)
