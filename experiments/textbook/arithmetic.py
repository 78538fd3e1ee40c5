"""The textbook's arithmetic on roofs, prefill, decode and KV, each next to measured step times.

A value has one figure, or the two ends of a range. Kernels are measured alone; a server adds what the terms say that
are fitted to measured deployments, as far as a GPU has some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.textbook.machine import GIB, Machine, machine, served_mbu, served_mfu, served_s
from framework.report.step_figures import StepFigures

Value = tuple[float, ...]  # one figure or both ends of a range; none if nothing is measured
_N = 7e9  # parameters of a textbook's 7B
_PROMPT = 4096
_CONTEXT = 1024  # tokens of each decode, where a rule names none
_PROMPTS = (512, 1024, 2048, 4096, 8192)
_BATCHES = (1, 8, 32, 64, 128)
_SERVED = (32, 64, 128)  # batches that servers reach


@dataclass(frozen=True)
class Rule:
    """A figure of the textbook, the same of kernels and of a server, and why they differ.

    `arithmetic`: its formula with numbers. All values are in `unit`.
    """

    name: str
    arithmetic: str
    unit: str
    textbook: Value
    kernels: Value
    server: Value
    why: str


def rules() -> Iterator[Rule]:
    """All rules, in the order of a textbook."""
    h100, a100 = machine("llama3_8b", "h100"), machine("llama2_7b", "a100")
    yield from (_ridge(h100), _ridge(a100), _prefill(a100), _prefill_mfu(h100))
    yield from (_weights_time(a100), _single_rate(h100), _decode_mbu(h100), _decode_mfu(h100))
    yield from _generations(h100, machine("llama3_8b", "a100"))
    yield from (_kv(a100), _kv(h100))


def _ridge(on: Machine) -> Rule:
    compute, memory = on.prefill(_PROMPT), on.decode(1, _CONTEXT)
    reached = compute.mfu * on.peak_flops / (memory.mbu * on.gpu.bandwidth_bytes_s)
    first = next(tokens for tokens in (128, 256, 512, 1024) if on.prefill(tokens).intensity >= on.ridge)
    return Rule(
        f"ridge of {on.gpu.name}",
        f"{on.peak_flops / 1e12:.0f} TFLOP/s / {on.gpu.bandwidth_bytes_s / 1e12:.2f} TB/s",
        "FLOP/byte",
        (on.ridge,),
        (reached,),
        (),
        f"Kernels reach {_of(compute.mfu)} of the peak and {_of(memory.mbu)} of the bandwidth. "
        f"A prompt of {first} tokens is past the ridge, not only one of 4,096 as often said.",
    )


def _prefill(on: Machine) -> Rule:
    step = on.prefill(_PROMPT)
    return Rule(
        f"prefill of {_PROMPT:,} tokens, 7B, {on.gpu.name}",
        "2 N T / (peak x MFU 0.5)",
        "s",
        (2 * _N * _PROMPT / (312e12 * 0.5),),
        (step.step_ms / 1e3,),
        _known(served_s(step)),
        f"Kernels reach an MFU of {_of(step.mfu)}, not 50 %. The arithmetic leaves out causal attention, "
        f"{_of(_attention(on, step))} of the FLOPs here.",
    )


def _attention(on: Machine, step: StepFigures) -> float:
    return 1 - on.model.flops_per_token * step.step.tokens / step.flops


def _prefill_mfu(on: Machine) -> Rule:
    steps = [on.prefill(tokens) for tokens in _PROMPTS]
    short, long = on.prefill(1024), on.prefill(2048)
    plain = 2 * on.model.parameters * 2048 / (long.step_ms / 1e3 * on.peak_flops)
    return Rule(
        f"MFU of {_PROMPTS[0]} to {_PROMPTS[-1]:,} tokens, {on.gpu.name}",
        "rule of thumb",
        "%",
        (30.0, 45.0),
        _percent(steps, lambda step: step.mfu),
        _percent(steps, served_mfu),
        "The rule is of servers: with their launches and host work, 1,024 and 2,048 tokens are at"
        f" {_of(served_mfu(short))} and {_of(served_mfu(long))}. Kernels alone do better, and so do prompts long"
        " enough to hide that work. FLOPs are"
        f" counted without embeddings and with causal attention; plain 2 N T would say {_of(plain)} for 2,048 tokens in"
        f" place of {_of(long.mfu)}.",
    )


def _weights_time(on: Machine) -> Rule:
    step = on.decode(1, 512)
    return Rule(
        f"least TPOT of a 7B, {on.gpu.name}",
        "14 GB / 2 TB/s",
        "ms",
        (2 * _N / 2e12 * 1e3,),
        (step.step_ms,),
        _known(1e3 * served_s(step)),
        f"It is a bound: kernels of one sequence read at {_of(step.mbu)} of the bandwidth, and some are too small to"
        " read at full speed.",
    )


def _single_rate(on: Machine) -> Rule:
    step = on.decode(1, 512)
    return Rule(
        f"tokens of one sequence, 8B, {on.gpu.name}",
        "3,350 GB/s / 16 GB",
        "tok/s",
        (3350 / 16,),
        (1e3 / step.step_ms,),
        _known(1 / served_s(step)),
        f"MBU is {_of(step.mbu)} of kernels and {_of(served_mbu(step))} of a server. The textbook's own correction, an"
        " MBU of 0.6 to 0.8, says 125 to 167.",
    )


def _decode_mbu(on: Machine) -> Rule:
    steps = [on.decode(batch, _CONTEXT) for batch in _BATCHES]
    return Rule(
        f"MBU of {_BATCHES[0]} to {_BATCHES[-1]} decodes, {on.gpu.name}",
        "rule of thumb",
        "%",
        (50.0, 80.0),
        _percent(steps, lambda step: step.mbu),
        _percent(steps, served_mbu),
        "It holds. A server falls with the batch, because its host works for each sequence. The 90 to 95 % "
        "quoted with FlashAttention and paging are not reached by whole steps.",
    )


def _decode_mfu(on: Machine) -> Rule:
    steps = [on.decode(batch, _CONTEXT) for batch in _SERVED]
    return Rule(
        f"MFU of {_SERVED[0]} to {_SERVED[-1]} decodes, {on.gpu.name}",
        "rule of thumb",
        "%",
        (5.0, 15.0),
        _percent(steps, lambda step: step.mfu),
        _percent(steps, served_mfu),
        f"It holds for these batches and {_CONTEXT:,} tokens of context; one sequence has "
        f"{100 * on.decode(1, _CONTEXT).mfu:.1f} %. The ridge would need a batch of some {on.ridge:.0f}.",
    )


def _generations(new: Machine, old: Machine) -> Iterator[Rule]:
    shares = {
        "prefill": (new.peak_flops / old.peak_flops, [on.prefill(_PROMPT).step_ms for on in (old, new)]),
        "decode": (
            new.gpu.bandwidth_bytes_s / old.gpu.bandwidth_bytes_s,
            [on.decode(1, _CONTEXT).step_ms for on in (old, new)],
        ),
    }
    why = {
        "prefill": "The peaks are dense bf16; 3.43 is quoted as well. Kernels of the older GPU come nearer to its peak "
        f"({_of(old.prefill(_PROMPT).mfu)} against {_of(new.prefill(_PROMPT).mfu)}).",
        "decode": "One sequence reads weights; kernels of the newer GPU come nearer to its bandwidth "
        f"({_of(new.decode(1, _CONTEXT).mbu)} against {_of(old.decode(1, _CONTEXT).mbu)}).",
    }
    by = {"prefill": "peak by peak", "decode": "bandwidth by bandwidth"}
    for phase, (said, (old_ms, new_ms)) in shares.items():
        name = f"{new.gpu.name} over {old.gpu.name}, {phase}"
        yield Rule(name, by[phase], "x", (said,), (old_ms / new_ms,), (), why[phase])


def _kv(on: Machine) -> Rule:
    heads = on.model.kv_heads
    said = 2 * 32 * heads * 128 * _PROMPT * 2 / GIB
    own = on.model.kv_bytes_per_token * _PROMPT
    grouped = f"{heads} KV heads"
    return Rule(
        f"KV of {_PROMPT:,} tokens, {grouped}",
        f"2 x 32 layers x {heads} x 128 x {_PROMPT:,} x 2 bytes",
        "MiB",
        (1024 * said,),
        (1024 * own / GIB,),
        (),
        f"The same by definition ({on.model.name}). Within 100 ms it needs {own / 0.1 / 1e9:.1f} GB/s; the quoted 5.1 "
        "takes 512 MB for 512 MiB."
        if heads < on.model.heads
        else f"The same by definition ({on.model.name}).",
    )


def _percent(steps: Sequence[StepFigures], of: Callable[[StepFigures], float]) -> Value:
    found = [100 * of(step) for step in steps]
    return (min(found), max(found))


def _of(share: float) -> str:
    return f"{100 * share:.0f} %"


def _known(value: float) -> Value:
    return () if value != value else (value,)
