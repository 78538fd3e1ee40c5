"""The times of a step's parts for one model, GPU, backend, parallelism and data types."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import COMPUTE_TOKENS, LATE_TOKENS, Calibration
from framework.timing.curves import Curve, FloatArray
from framework.timing.server import Server
from framework.timing.step_row import StepRow
from framework.timing.two_batch_overlap import in_two_batches

NODE_GPUS = 8  # GPUs that reach each other over the fast link of one node


@dataclass(frozen=True)
class Setup:
    """What the parts of a step depend on besides model, GPU and backend. `expert_dtype` is `dtype` without experts."""

    parallelism: Parallelism
    dtype: str
    expert_dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, model: Model, parallelism: Parallelism) -> Setup:
        """The setup in which `model` runs on an instance of that parallelism."""
        return cls(parallelism, model.dtype, model.expert_dtype, model.kv_dtype)

    @property
    def types(self) -> str:
        """The data types in words."""
        experts = "" if self.expert_dtype == self.dtype else f", {self.expert_dtype} experts"
        return f"{self.dtype}{experts}, {self.kv_dtype} KV"

    def __str__(self) -> str:
        return f"{self.parallelism}, {self.types}"


@dataclass(frozen=True)
class StepParts:
    """The step times of one setup, part by part, over all layers; a whole step takes their sum.

    `rows` holds a `StepRow` for each part, in display order. The parts of a measured step are "gemm", "experts",
    "elementwise" and "communication", which have a curve over the tokens of a step; "prefill_attention",
    "decode_attention", "logits" and "overhead". Each row also states the measured range of its part. `scaled_from` is
    the GPU whose measurement was scaled to this one, "" if the times are this GPU's own. `estimated` names the
    operations that were not measured and come from the datasheet. With `two_batches` a step runs as two micro-batches,
    one of which communicates while the other computes. Raises ValueError for negative numbers, and for seconds that are
    not finite.
    """

    setup: Setup
    rows: Mapping[str, StepRow]
    scaled_from: str = ""
    estimated: tuple[str, ...] = ()
    two_batches: bool = False

    def __post_init__(self) -> None:
        for part, row in self.rows.items():
            for name, value in vars(row).items():
                if isinstance(value, float) and (not value >= 0 or (value == np.inf and name.endswith("_s"))):
                    raise ValueError(f"{name} of {part} must be finite and not negative, got {value}")

    @property
    def without_bumps(self) -> StepParts:
        """The same parts with experts that take no longer for few tokens than for more.

        Kernel tables have such bumps if no tuned configuration of the kernel was found for a number of tokens
        (Mixtral-8x7B on two H100: 80 tokens 22.1 ms, 256 tokens 18.2); a server pads, or has the configuration.
        """
        experts = self.rows["experts"]
        if experts.linear is None:
            return self
        return replace(self, rows={**self.rows, "experts": replace(experts, linear=experts.linear.without_bumps())})

    def __getitem__(self, part: str) -> StepRow:
        return self.rows[part]

    @property
    def over_tokens(self) -> Mapping[str, Curve]:
        """The curves over the tokens of a step, by part."""
        return {part: row.linear for part, row in self.rows.items() if row.linear is not None}

    def calibrated(self, calibration: Calibration, overheads: StepRow | None = None) -> Mapping[str, StepRow]:
        """The parts under a calibration; "overhead" has all additions.

        `overheads` is what the server adds, None: a synchronous one with the calibration's terms.
        """
        rows: Mapping[str, StepRow] = {part: _calibrated(part, row, calibration) for part, row in self.rows.items()}
        if self.two_batches:
            rows = in_two_batches(rows)
        if overheads is None:
            overheads = Server().fitted(calibration).overheads(0, self.setup.parallelism)
        added = calibration.overheads + overheads
        return {**rows, "overhead": rows["overhead"] + added}

    def row(self, calibration: Calibration, overheads: StepRow | None = None) -> StepRow:
        """The times of a whole step under a calibration, on a server: exactly the sum of its calibrated parts."""
        return functools.reduce(operator.add, self.calibrated(calibration, overheads).values())


def _calibrated(part: str, row: StepRow, calibration: Calibration) -> StepRow:
    """The row of a part with the factors of a calibration."""
    if part == "communication":
        factor = calibration.communication
        return row if factor == 1.0 else row.mapped(linear=lambda curve: curve.times_up_to(LATE_TOKENS, factor))
    return _slower(part, row.times(calibration.kernel), calibration.compute)


def _slower(part: str, row: StepRow, compute: float) -> StepRow:
    """The row with the arithmetic-bound times of that part multiplied by `compute`."""
    if compute == 1.0:
        return row
    if part == "prefill_attention":
        tiles = dict.fromkeys(("tile_row_s", "tile_pair_s"), lambda time_s: time_s * compute)
        curves = dict.fromkeys(("attention", "bounded"), lambda curve: curve.times(compute))
        return row.mapped(**curves, **tiles)
    if part in ("gemm", "experts"):
        return row.mapped(linear=lambda curve: curve.rising_faster(COMPUTE_TOKENS, compute))
    return row


def limits_of_decodes(batches: FloatArray, contexts: FloatArray) -> Curve | None:
    """The largest measured summed context, as a curve over the batch; None if there is no limit.

    Both arrays have shape (B,): `contexts[i]` tokens are the limit of `batches[i]` decodes. Beyond the last batch the
    limit keeps rising; if it would fall, it stays constant.
    """
    if not np.all(np.isfinite(contexts)):
        return None
    if contexts[-1] < contexts[-2]:
        batches, contexts = np.append(batches, 2 * batches[-1]), np.append(contexts, contexts[-1])
    return Curve.of(batches, contexts)
