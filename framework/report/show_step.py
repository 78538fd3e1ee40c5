"""How long one step takes, what of, and how well it uses the hardware, without a simulation.

    python -m framework.report.show_step model=llama3_8b gpu=h100 prefill=2048
    python -m framework.report.show_step model=llama3_70b gpu=h100 tp=4 decode=64x4096 --json

What the step has to do, at least one of:
    prefill=TOKENS, TOKENS@PREFIX (a chunk after cached tokens), COUNTxTOKENS (several prompts)
    decode=BATCHxCONTEXT (of each sequence, the token that is computed included)
Where: model=, gpu= (names of conf/), tp= pp= dp= ep=, dtype= expert_dtype= kv_dtype= (of the weights, of those of the
    experts, of the KV cache), backend= (vllm, trtllm, sglang), timing= (measured, roofline); further keys as for
    run.py: model.layers=16, gpu.bandwidth_bytes_s=4e12, timing.profiles=DIR
calibrated=true: with the terms fitted to measured deployments; otherwise kernels alone.

FLOPs count two for each token and weight that it passes, embedding and output projection apart, and attention; bytes
are weights once (experts as far as they are chosen) and KV read and written (framework.timing.flops). MFU = FLOPs /
(time x peak of the weights' type x GPUs), MBU = bytes / (time x bandwidth x GPUs), intensity = FLOPs / bytes.
--json prints one object: step_ms, parts_ms, mfu, mbu, intensity, extrapolated and more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from framework.cli.arguments import configured, split_arguments, truth, whole
from framework.cli.launch import launch
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.flops import Chunk, Step, flops, moved_bytes
from framework.timing.measured import Measured
from framework.timing.roofline import attainable_flops, ridge_flops_per_byte
from framework.timing.table import StepRow, StepTables, Timing, beyond, stack, step_s

_OWN = ("prefill", "decode", "tp", "pp", "dp", "ep", "dtype", "expert_dtype", "kv_dtype", "backend", "calibrated")
_GROUPS = ("model", "gpu", "timing")
_MS = 1e3
_MOST_CHUNKS = 100_000


@dataclass(frozen=True)
class Shown:
    """One step on one instance: what it does, how long it takes, and how well that is.

    `parts_ms` sum to `step_ms`. `kernels_ms`, `calibrated_ms`: the step without and with fitted terms, the latter None
    where nothing was fitted. `peak_flops`, `bandwidth_bytes_s`: of the whole instance. `extrapolation`: the largest
    ratio to the end of what was measured, in `beyond_what`.
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
        return self.flops / (self.step_ms / _MS * self.peak_flops)

    @property
    def mbu(self) -> float:
        return self.moved_bytes / (self.step_ms / _MS * self.bandwidth_bytes_s)

    @property
    def intensity(self) -> float:
        return self.flops / self.moved_bytes

    @property
    def ridge(self) -> float:
        return ridge_flops_per_byte(self.peak_flops, self.bandwidth_bytes_s)

    @property
    def attainable_flops(self) -> float:
        return attainable_flops(self.intensity, self.peak_flops, self.bandwidth_bytes_s)

    @property
    def bound(self) -> str:
        return "compute" if self.intensity >= self.ridge else "memory"

    @property
    def extrapolated(self) -> bool:
        return self.extrapolation > 1

    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        derived = ("mfu", "mbu", "intensity", "ridge", "attainable_flops", "bound", "extrapolated")
        stated = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "step"}
        work = {
            "prefill": [{"tokens": chunk.tokens, "prefix": chunk.prefix} for chunk in self.step.chunks],
            "decode": {"batch": self.step.batch, "context": self.step.context},
        }
        return stated | work | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True)
class _Times:
    """Step times in pieces, without and (where anything was fitted) with fitted terms, and their limits."""

    source: str
    scaled_from: str
    kernels: Mapping[str, StepRow]
    fitted: Mapping[str, StepRow] | None
    row: StepRow


def show(
    model: Model, gpu: Gpu, parallelism: Parallelism, timing: Timing, step: Step, calibrated: bool = False
) -> Shown:
    """Time `step` on one instance. InputError where `timing` has no times for it."""
    times = _times(model, gpu, parallelism, timing, calibrated)
    kernels_ms = _parts_ms(times.kernels, step)
    fitted_ms = None if times.fitted is None else _parts_ms(times.fitted, step)
    parts_ms = fitted_ms if calibrated and fitted_ms is not None else kernels_ms
    ratio, what = _beyond(times.row, step)
    return Shown(
        model=model.name,
        gpu=gpu.name,
        parallelism=str(parallelism),
        dtype=model.dtype,
        expert_dtype=model.expert_dtype,
        kv_dtype=model.kv_dtype,
        step=step,
        source=times.source,
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


def _times(model: Model, gpu: Gpu, parallelism: Parallelism, timing: Timing, calibrated: bool) -> _Times:
    if not isinstance(timing, Measured):
        row = timing.row(model, gpu, parallelism)
        return _Times(timing.source, "", _decomposed(row), None, row)
    entry = timing.entry(model, gpu, parallelism)
    fitted = None if entry.calibration is None else entry.parts.pieces(entry.calibration)
    row, kernels = entry.parts.row(Calibration()), entry.parts.pieces(Calibration())
    source = f"measured ({entry.described(calibrated)})"
    return _Times(source, entry.parts.scaled_from, kernels, fitted, row)


def _decomposed(row: StepRow) -> Mapping[str, StepRow]:
    """A row in the pieces that any source has."""
    return {
        "linear": StepRow(linear=row.linear, per_prefill_token_s=row.per_prefill_token_s),
        "prefill_attention": StepRow(
            attention=row.attention,
            prefill_quadratic_s=row.prefill_quadratic_s,
            masked_s=row.masked_s,
            prefill_step_s=row.prefill_step_s,
        ),
        "decode_attention": StepRow(
            decode=row.decode, per_context_token_s=row.per_context_token_s, per_sequence_s=row.per_sequence_s
        ),
        "logits": StepRow(logits=row.logits, per_sampled_s=row.per_sampled_s),
        "overhead": StepRow(base_s=row.base_s),
    }


def _parts_ms(pieces: Mapping[str, StepRow], step: Step) -> Mapping[str, float]:
    tables = stack(list(pieces.values()))
    return {name: _MS * _step_s(tables, k, step) for k, name in enumerate(pieces)}


def _step_s(tables: StepTables, k: int, step: Step) -> float:
    prefixes, chunks = [chunk.prefix for chunk in step.chunks], [chunk.tokens for chunk in step.chunks]
    return step_s(tables, k, prefixes, chunks, step.batch, step.decode_context, step.sampled)


def _beyond(row: StepRow, step: Step) -> tuple[float, str]:
    """The largest ratio to the end of what was measured, and what is that far beyond it."""
    tables = stack([row])
    batch = step.batch
    ratios = {
        f"{step.tokens:,} tokens": beyond(tables, 0, step.tokens, 0, 0, 0, 0),
        f"{step.sampled:,} sequences": beyond(tables, 0, 0, step.sampled, 0, 0, 0),
        f"{batch:,} decodes of {step.context:,} tokens": beyond(tables, 0, 0, 0, batch, step.decode_context, 0),
        f"a prompt of {step.longest_prompt:,} tokens": beyond(tables, 0, 0, 0, 0, 0, step.longest_prompt),
    }
    what = max(ratios, key=lambda name: ratios[name])
    return ratios[what], what


# --- the command ----------------------------------------------------------------------------------------------------


def parse_step(prefill: str | None, decode: str | None) -> Step:
    """The step that `prefill=` and `decode=` ask for; InputError for what they cannot mean."""
    chunks: list[Chunk] = []
    if prefill is not None:
        sizes, at, prefix = prefill.partition("@")
        count, times, tokens = sizes.rpartition("x")
        chunk = Chunk(whole("prefill", tokens), whole("prefill: prefix", prefix) if at and prefix != "0" else 0)
        chunks = [chunk] * (whole("prefill: count", count, _MOST_CHUNKS) if times else 1)
    if decode is None:
        if not chunks:
            raise InputError("which step? give prefill=TOKENS, decode=BATCHxCONTEXT, or both")
        return Step(chunks)
    batch, times, context = decode.partition("x")
    if not times:
        raise InputError(f"decode must be BATCHxCONTEXT, as in 64x4096; got {decode!r}")
    return Step(chunks, whole("decode: batch", batch), whole("decode: context", context))


def run(words: Sequence[str]) -> Shown:
    """What the command line asks for; InputError, or one of Hydra's, for what cannot be."""
    own, overrides = split_arguments(words, _OWN, _GROUPS)
    step = parse_step(own.get("prefill"), own.get("decode"))
    if "backend" in own:
        overrides.append(f"timing.backend={own['backend']}")
    sizes = {name: whole(name, own.get(name, "1")) for name in ("tp", "pp", "ep", "dp")}
    built = configured(overrides, _GROUPS)
    model = _typed(built["model"], own)
    calibrated = truth("calibrated", own.get("calibrated", "false"))
    return show(model, built["gpu"], Parallelism(**sizes), built["timing"], step, calibrated)


def _typed(model: Model, own: Mapping[str, str]) -> Model:
    """The model with the data types that were given."""
    if "expert_dtype" in own:
        if model.experts is None:
            raise InputError(f"expert_dtype = {own['expert_dtype']}: model {model.name} has no experts")
        model = replace(model, experts=replace(model.experts, dtype=own["expert_dtype"]))
    return replace(model, dtype=own.get("dtype", model.dtype), kv_dtype=own.get("kv_dtype", model.kv_dtype))


def main(words: Sequence[str]) -> None:
    """Print one step, as a table or as JSON."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    as_json = "--json" in words
    shown = run([word for word in words if word != "--json"])
    if as_json:
        print(json.dumps(shown.as_json(), indent=2, allow_nan=False))
        return
    from framework.cli.terminal import results_console
    from framework.report.step_table import step_table

    results_console().print(step_table(shown))


if __name__ == "__main__":
    launch(lambda: main(sys.argv[1:]))
