"""The seconds of one step, their parts, and the use of the hardware, without a simulation.

    python -m framework.report.show_step model=llama3_8b gpu=h100 prefill=2048
    python -m framework.report.show_step model=llama3_70b gpu=h100 tp=4 decode=64x4096 json=true

FLOPs count two for each token and weight that it passes, without embedding and output projection, plus attention; bytes
are weights once (experts as far as they are chosen) and KV read and written (framework.timing.flops). MFU = FLOPs /
(time x peak of the weights' type x GPUs), MBU = bytes / (time x bandwidth x GPUs), intensity = FLOPs / bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from framework.cli.arguments import configured, whole
from framework.cli.command import Arguments, command
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.report.step_figures import StepFigures, step_figures
from framework.report.step_table import step_table
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.flops import Chunk, Step

_KEYS = {
    "prefill": "TOKENS, TOKENS@PREFIX (a chunk after cached tokens), COUNTxTOKENS (several prompts)",
    "decode": "BATCHxCONTEXT; of each sequence, the token that is computed included",
    **dict.fromkeys(("tp", "pp", "dp", "ep"), "of the instance, 1 by default"),
    "dtype": "of the weights",
    "expert_dtype": "of the experts' weights",
    "kv_dtype": "of the KV cache",
    "backend": "vllm, trtllm or sglang",
    "calibrated": "true: with the terms fitted to measured deployments; otherwise kernels alone",
    "json": "true: one object, with step_ms, parts_ms, mfu, mbu, intensity, extrapolated and more",
}
_GROUPS = ("model", "gpu", "timing")
_MOST_CHUNKS = 100_000


def parse_step(prefill: str | None, decode: str | None) -> Step:
    """The step that the values of `prefill=` and `decode=` describe. Raises InputError for wrong values."""
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


def run(arguments: Arguments) -> StepFigures:
    """The figures for a command line. Raises InputError, or an error of Hydra's, for a wrong one."""
    own, overrides = arguments.own, list(arguments.settings)
    step = parse_step(own.get("prefill"), own.get("decode"))
    if "backend" in own:
        overrides.append(f"timing.backend={own['backend']}")
    sizes = {name: arguments.whole(name, 1) for name in ("tp", "pp", "ep", "dp")}
    built = configured(overrides, _GROUPS)
    model = _typed(built["model"], own)
    return step_figures(
        model, built["gpu"], Parallelism(**sizes), built["timing"], step, calibrated=arguments.truth("calibrated")
    )


def _typed(model: Model, own: Mapping[str, str]) -> Model:
    """The model with the given data types."""
    if "expert_dtype" in own:
        if model.experts is None:
            raise InputError(f"expert_dtype = {own['expert_dtype']}: model {model.name} has no experts")
        model = replace(model, experts=replace(model.experts, dtype=own["expert_dtype"]))
    return replace(model, dtype=own.get("dtype", model.dtype), kv_dtype=own.get("kv_dtype", model.kv_dtype))


@command(__doc__, keys=_KEYS, settings=_GROUPS)
def main(arguments: Arguments) -> None:
    """Print one step, as a table or as JSON. Raises InputError for a wrong command line."""
    figures = run(arguments)
    if arguments.truth("json"):
        print(json.dumps(figures.as_json(), indent=2, allow_nan=False))
    else:
        results_console().print(step_table(figures))


if __name__ == "__main__":
    main.start()
