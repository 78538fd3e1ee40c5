"""What a step's parts cost for one model, GPU, backend, parallelism and data types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.table import Curve, StepRow, Surface

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Setup:
    """What the parts of a step depend on besides model, GPU and backend. `expert_dtype` is `dtype` without experts."""

    parallelism: Parallelism
    dtype: str
    expert_dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, model: Model, parallelism: Parallelism) -> Setup:
        """How `model` runs on such an instance."""
        return cls(parallelism, model.dtype, model.expert_dtype, model.kv_dtype)

    @property
    def types(self) -> str:
        """The data types in words."""
        experts = "" if self.expert_dtype == self.dtype else f", {self.expert_dtype} experts"
        return f"{self.dtype}{experts}, {self.kv_dtype} KV"

    def __str__(self) -> str:
        return f"{self.parallelism}, {self.types}"


@dataclass(frozen=True, eq=False)
class Parts:
    """Seconds of a step's parts, over all layers, at knots between which they are affine.

    A step of t tokens (prefill tokens and decodes), chunks (p_i, s_i) of s_i tokens after p_i, b decodes with summed
    context c and n sequences that emit a token costs, with T = attention_s and l_i = p_i + s_i,

        base_s + (gemm_s + experts_s + elementwise_s + communication_s)(t)
        + [attention_floor_s + sum over chunks T(l_i) (1 - p_i^2 / l_i^2)  if there is a chunk]
        + decode_s(b, c) + logits_s(n) + skew_s (b * longest context - c)

    Shapes: `tokens` and the four curves over it (T,); `lengths`, `attention_s` (L,); `batches` (B,), `contexts` (C,),
    summed over the batch, `decode_s` (B, C); `sampled`, `logits_s` (S,). All knots are increasing and begin at 1 or
    below; the last segment of each curve goes on. Limits say where measurement ends: tokens of a step, length of a
    prompt, sequences that emit, and for each batch knot the summed context. `expert_dtype` is `dtype` without experts.
    `scaled_from`: the GPU whose measurement was scaled to this one, "" if it is this GPU's own. Raises ValueError for
    arrays that do not fit together, and for times that are negative or not finite.
    """

    parallelism: Parallelism
    dtype: str
    expert_dtype: str
    kv_dtype: str
    tokens: FloatArray
    gemm_s: FloatArray
    experts_s: FloatArray
    elementwise_s: FloatArray
    communication_s: FloatArray
    lengths: FloatArray
    attention_s: FloatArray
    attention_floor_s: float
    batches: FloatArray
    contexts: FloatArray
    decode_s: FloatArray
    sampled: FloatArray
    logits_s: FloatArray
    base_s: float
    tokens_limit: float
    length_limit: float
    sampled_limit: float
    context_limits: FloatArray
    skew_s: float = 0.0
    scaled_from: str = ""

    def __post_init__(self) -> None:
        for name, shape in self._shapes().items():
            value = np.asarray(getattr(self, name), np.float64)
            if value.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, it has {value.shape}")
            if not np.all(value >= 0) or (name.endswith("_s") and not np.all(np.isfinite(value))):
                raise ValueError(f"{name} must be finite and not negative")
        for name in ("tokens", "lengths", "batches", "contexts", "sampled"):
            knots = getattr(self, name)
            if len(knots) < 2 or knots[0] > 1 or np.any(np.diff(knots) <= 0):
                raise ValueError(f"{name} must be at least two increasing knots from 1 or below")

    @property
    def setup(self) -> Setup:
        return Setup(self.parallelism, self.dtype, self.expert_dtype, self.kv_dtype)

    def row(self, calibration: Calibration) -> StepRow:
        """The step times of one pool, calibrated: exactly the sum of `pieces`."""
        parts = self.pieces(calibration)
        over_tokens = [parts[name].linear for name in ("gemm", "experts", "elementwise", "communication")]
        linear = np.sum([curve.values for curve in over_tokens if curve is not None], axis=0)
        return StepRow(
            base_s=parts["overhead"].base_s,
            per_sequence_s=parts["overhead"].per_sequence_s,
            request_s=calibration.request_s,
            linear=_curve(self.tokens, linear),
            attention=parts["prefill_attention"].attention,
            prefill_step_s=parts["prefill_attention"].prefill_step_s + parts["overhead"].prefill_step_s,
            decode=parts["decode_attention"].decode,
            skew_s=parts["decode_attention"].skew_s,
            logits=parts["logits"].logits,
            tokens_limit=self.tokens_limit,
            length_limit=self.length_limit,
            sampled_limit=self.sampled_limit,
            decode_limits=self._decode_limits(),
        )

    def pieces(self, calibration: Calibration) -> Mapping[str, StepRow]:
        """Each part of a step as step times of its own, calibrated, in the order in which to show them."""
        kernel, communication = calibration.kernel, calibration.communication
        surface = tuple(tuple(map(float, line)) for line in kernel * self.decode_s)
        return {
            "gemm": StepRow(linear=_curve(self.tokens, kernel * self.gemm_s)),
            "experts": StepRow(linear=_curve(self.tokens, kernel * self.experts_s)),
            "elementwise": StepRow(linear=_curve(self.tokens, kernel * self.elementwise_s)),
            "communication": StepRow(linear=_curve(self.tokens, communication * self.communication_s)),
            "prefill_attention": StepRow(
                attention=_curve(self.lengths, kernel * self.attention_s),
                prefill_step_s=kernel * self.attention_floor_s,
            ),
            "decode_attention": StepRow(
                decode=Surface(_floats(self.batches), _floats(self.contexts), surface), skew_s=kernel * self.skew_s
            ),
            "logits": StepRow(logits=_curve(self.sampled, kernel * self.logits_s)),
            "overhead": StepRow(
                base_s=kernel * self.base_s + calibration.step_s,
                per_sequence_s=calibration.sequence_s,
                prefill_step_s=calibration.prefill_step_s,
            ),
        }

    def _decode_limits(self) -> Curve | None:
        """Largest measured summed context by batch; beyond the last batch it stays where it would fall."""
        if not np.all(np.isfinite(self.context_limits)):
            return None
        batches, limits = _floats(self.batches), _floats(self.context_limits)
        if limits[-1] < limits[-2]:
            batches, limits = (*batches, 2 * batches[-1]), (*limits, limits[-1])
        return Curve(batches, limits)

    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        names = {field.name for field in fields(self)} - {"parallelism", "dtype", "expert_dtype", "kv_dtype"}
        tokens = ("tokens", "gemm_s", "experts_s", "elementwise_s", "communication_s")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names - {"scaled_from"}, ())
        shapes |= dict.fromkeys(tokens, (len(self.tokens),))
        shapes |= dict.fromkeys(("lengths", "attention_s"), (len(self.lengths),))
        shapes |= dict.fromkeys(("batches", "context_limits"), (len(self.batches),))
        shapes |= dict.fromkeys(("sampled", "logits_s"), (len(self.sampled),))
        return shapes | {"contexts": (len(self.contexts),), "decode_s": (len(self.batches), len(self.contexts))}


def _curve(knots: FloatArray, values: FloatArray) -> Curve:
    return Curve(_floats(knots), _floats(values))


def _floats(values: FloatArray) -> tuple[float, ...]:
    return tuple(map(float, values))
