"""The time of one step and its use of the hardware, without a simulation.

FLOPs and bytes are counted by framework.timing.flops. MFU = FLOPs / (time x peak of the weights' type x GPUs), MBU =
bytes / (time x bandwidth x GPUs), intensity = FLOPs / bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.flops import Step, flops, moved_bytes
from framework.timing.joint_attention import JOINT
from framework.timing.measured import Measured
from framework.timing.roofline import attainable_flops, ridge_flops_per_byte
from framework.timing.step_row import StepRow, Timing
from framework.timing.table import StepTables, decode_with_chunks_s, extrapolation, stack, step_s

_MS = 1e3


@dataclass(frozen=True)
class StepFigures:
    """One step on one instance: its work, its time, and its use of the hardware.

    Times are milliseconds; `parts_ms`, by part, sum to `step_ms`. `kernels_ms` and `calibrated_ms` are the step without
    and with fitted terms, the latter None if nothing was fitted. `peak_flops` (FLOP/s) and `bandwidth_bytes_s` are
    those of the whole instance. `extrapolation` is the largest ratio to the end of the measured range, and
    `beyond_what` names the quantity with that ratio.
    """

    model: str
    gpu: str
    parallelism: str
    dtype: str
    expert_dtype: str
    kv_dtype: str
    step: Step
    source: str
    scaled_from: str
    step_ms: float
    kernels_ms: float
    calibrated_ms: float | None
    parts_ms: Mapping[str, float]
    flops: float
    moved_bytes: float
    peak_flops: float
    bandwidth_bytes_s: float
    extrapolation: float
    beyond_what: str

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the share of the peak FLOP/s that the step reaches."""
        return self.flops / (self.step_ms / _MS * self.peak_flops)

    @property
    def mbu(self) -> float:
        """Model bandwidth utilisation: the share of the peak bandwidth that the step reaches."""
        return self.moved_bytes / (self.step_ms / _MS * self.bandwidth_bytes_s)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity of the step, FLOP/byte."""
        return self.flops / self.moved_bytes

    @property
    def ridge(self) -> float:
        """Arithmetic intensity above which the instance is limited by compute, FLOP/byte."""
        return ridge_flops_per_byte(self.peak_flops, self.bandwidth_bytes_s)

    @property
    def attainable_flops(self) -> float:
        """FLOP/s that the roofline allows at the step's intensity."""
        return attainable_flops(self.intensity, self.peak_flops, self.bandwidth_bytes_s)

    @property
    def bound(self) -> str:
        """The limit of the step by the roofline: "compute" or "memory"."""
        return "compute" if self.intensity >= self.ridge else "memory"

    @property
    def extrapolated(self) -> bool:
        """Whether the step lies beyond the measured range."""
        return self.extrapolation > 1

    def as_json(self) -> dict[str, Any]:
        """All fields and properties by name, and the step as its prefills and decodes: the output of json=true."""
        derived = ("mfu", "mbu", "intensity", "ridge", "attainable_flops", "bound", "extrapolated")
        stated = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "step"}
        work = {
            "prefill": [{"tokens": chunk.tokens, "prefix": chunk.prefix} for chunk in self.step.chunks],
            "decode": {"batch": self.step.batch, "context": self.step.context},
        }
        return stated | work | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True)
class _Times:
    """Step times by part, without and (if anything was fitted) with fitted terms; `row` has their sum and limits."""

    source: str
    scaled_from: str
    kernels: Mapping[str, StepRow]
    fitted: Mapping[str, StepRow] | None
    row: StepRow


def step_figures(
    model: Model, gpu: Gpu, parallelism: Parallelism, timing: Timing, step: Step, *, calibrated: bool = False
) -> StepFigures:
    """The figures of `step` on one instance, with fitted terms if `calibrated` is true.

    Raises InputError if `timing` has no times for the instance.
    """
    times = _times(model, gpu, parallelism, timing, calibrated=calibrated)
    kernels_ms = _parts_ms(times.kernels, times.row, step)
    fitted_ms = None if times.fitted is None else _parts_ms(times.fitted, times.row, step)
    parts_ms = fitted_ms if calibrated and fitted_ms is not None else kernels_ms
    ratio, what = _extrapolation(times.row, step)
    return StepFigures(
        model=model.name,
        gpu=gpu.name,
        parallelism=str(parallelism),
        dtype=model.dtype,
        expert_dtype=model.expert_dtype,
        kv_dtype=model.kv_dtype,
        step=step,
        source=times.source + (JOINT if _is_joint(times.row, step) else ""),
        scaled_from=times.scaled_from,
        step_ms=sum(parts_ms.values()),
        kernels_ms=sum(kernels_ms.values()),
        calibrated_ms=None if fitted_ms is None else sum(fitted_ms.values()),
        parts_ms=parts_ms,
        flops=flops(model, step),
        moved_bytes=moved_bytes(model, parallelism, step),
        peak_flops=gpu.peak(model.dtype) * parallelism.gpus,
        bandwidth_bytes_s=gpu.bandwidth_bytes_s * parallelism.gpus,
        extrapolation=ratio,
        beyond_what=what if ratio > 1 else "",
    )


def _times(model: Model, gpu: Gpu, parallelism: Parallelism, timing: Timing, *, calibrated: bool) -> _Times:
    if not isinstance(timing, Measured) or timing.estimates(gpu):
        row = timing.row(model, gpu, parallelism)
        return _Times(timing.source, "", row.parts(), None, row)
    entry = timing.entry(model, gpu, parallelism)
    fitted = None
    if entry.calibration is not None:
        added = timing.server.fitted(entry.calibration).overheads(model.layers, parallelism)
        fitted = entry.parts.calibrated(entry.calibration, added)
    kernels = entry.parts.calibrated(Calibration())
    row = entry.joint.of(entry.parts.row(Calibration()))
    source = f"measured ({entry.described(calibrated=calibrated)})"
    return _Times(source, entry.parts.scaled_from, kernels, fitted, row)


def _parts_ms(parts: Mapping[str, StepRow], row: StepRow, step: Step) -> Mapping[str, float]:
    """The milliseconds of each part; if attention is one kernel, decodes with chunks have their tiles in it."""
    tables = stack(list(parts.values()))
    found = {part: _MS * _step_s(tables, k, step) for k, part in enumerate(parts)}
    if _is_joint(row, step):
        kernel = {name: getattr(row, name) for name in ("decode_rows", "head_group", "decodes_at_once")}
        attention = replace(parts["prefill_attention"], **kernel)
        alone_s = found["decode_attention"] / _MS
        joint_s = decode_with_chunks_s(stack([attention]), 0, step.batch, step.decode_context, alone_s)
        found["decode_attention"] = _MS * joint_s
    return found


def _is_joint(row: StepRow, step: Step) -> bool:
    """Whether chunks and decodes of the step share a kernel for their attention."""
    return bool(row.decode_rows and step.chunks and step.batch)


def _step_s(tables: StepTables, k: int, step: Step) -> float:
    prefixes, chunks = [chunk.prefix for chunk in step.chunks], [chunk.tokens for chunk in step.chunks]
    return step_s(tables, k, prefixes, chunks, step.batch, step.decode_context, step.sampled)


def _extrapolation(row: StepRow, step: Step) -> tuple[float, str]:
    """The largest ratio to the end of the measured range, and the quantity with that ratio."""
    tables = stack([row])
    batch = step.batch
    ratios = {
        f"{step.tokens:,} tokens": extrapolation(tables, 0, step.tokens, 0, 0, 0, 0),
        f"{step.sampled:,} sequences": extrapolation(tables, 0, 0, step.sampled, 0, 0, 0),
        f"{batch:,} decodes of {step.context:,} tokens": extrapolation(tables, 0, 0, 0, batch, step.decode_context, 0),
        f"a prompt of {step.longest_prompt:,} tokens": extrapolation(tables, 0, 0, 0, 0, 0, step.longest_prompt),
    }
    what = max(ratios, key=lambda name: ratios[name])
    return ratios[what], what
