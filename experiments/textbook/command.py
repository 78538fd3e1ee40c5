"""The arithmetic and the effects that textbooks of LLM serving state, each next to what is measured or simulated here.

    python -m experiments.textbook
    python -m experiments.textbook only=arithmetic,batch
    python -m experiments.textbook only=batching requests=500

Kernels are measured steps alone (`servelab timing`); a server adds the terms that are fitted to measured deployments.
Effects are simulated: one H100 serves Llama-3.1-8B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from experiments.textbook.arithmetic import rules
from experiments.textbook.batches import CONTEXT, batches
from experiments.textbook.effects import (
    BATCH,
    CHUNKS,
    RATE,
    SPREADS,
    TARGET_RATES,
    chunk_size,
    idle,
    spread,
    target,
    transfer_s,
)
from experiments.textbook.machine import machine
from experiments.textbook.tables import (
    batch_table,
    chunk_table,
    idle_table,
    link_table,
    rule_lines,
    said,
    spread_table,
    target_table,
)
from framework.checks import require_choice
from framework.cli.command import Arguments, command
from framework.cli.terminal import results_console

_PROMPT = 4096
_LINKS = {
    "10 Gb/s Ethernet": 1.25e9,
    "25 Gb/s": 3.125e9,
    "100 Gb/s": 12.5e9,
    "400 Gb/s": 50e9,
    "NVLink 4, 450 GB/s": 450e9,
}
_SERVED = "Llama-3.1-8B on one H100"


def _arithmetic(requests: int) -> Iterator[RenderableType]:
    yield from rule_lines(rules())


def _batch(requests: int) -> Iterator[RenderableType]:
    points = batches(machine("llama2_7b", "a100"))
    above = [1e3 * (one.said_s - one.kernels_s) for one in points]
    yield said(
        f"A token's time against the batch: the textbook's served 7B, weights and KV at {CONTEXT:,} tokens over the"
        " bandwidth, and kernels of Llama-2-7B on an A100. Three points of the textbook predict the fourth. They are"
        f" {min(above):.0f} to {max(above):.0f} ms above the kernels: a served token includes the server's own work,"
        " and the textbook states neither its GPU nor its contexts."
    )
    yield batch_table(points)


def _links(requests: int) -> Iterator[RenderableType]:
    size = machine("llama3_8b", "h100").model.kv_bytes_per_token * _PROMPT
    yield said(
        f"KV of a prompt of {_PROMPT:,} tokens between instances, {size / 2**20:.0f} MiB of Llama-3.1-8B; within 100 ms"
        f" it needs {size / 0.1 / 1e9:.1f} GB/s. Simulated copies add the latency of a transfer"
        " (cluster.link_latency_s)."
    )
    yield link_table([(name, size / bytes_s, transfer_s(bytes_s, _PROMPT)) for name, bytes_s in _LINKS.items()])


def _batching(requests: int) -> Iterator[RenderableType]:
    yield said(
        f"Idle seats of one static batch of {BATCH} ({_SERVED}): the sum of (T_max - T_i) x TPOT of the longest one."
        " Simulated steps become faster as requests end, so seats idle at less than that TPOT, a mean over all steps."
    )
    yield idle_table([idle(cv) for cv in SPREADS if cv])
    yield Text()
    yield said(
        f"Output tok/s at saturation by the spread of output lengths ({BATCH} at once, {_SERVED}). The textbook's gain"
        " of continuous batching is 2 to 5."
    )
    yield spread_table([spread(cv, requests) for cv in SPREADS])


def _chunks(requests: int) -> Iterator[RenderableType]:
    sizes = [chunk_size(tokens, requests) for tokens in CHUNKS]
    yield said(
        f"Chunk size trades TTFT against stalls ({RATE:g} req/s, {_SERVED}); where they balance: ▸. The textbook's"
        " usual balance is 256 to 512 tokens; the guide (docs/guide.md) has the sizes with the highest goodput."
    )
    yield chunk_table(sizes)


def _targets(requests: int) -> Iterator[RenderableType]:
    yield said(
        f"The targets of 2025 (slo=targets_2025), chat of 1,155 and 211 tokens, {_SERVED}. A GPU counts as busy while a"
        " single sequence decodes, so 95 % of its time says little; MBU says more. KV memory would be full only with"
        " batches whose steps are longer than 20 ms: that target and the one of TPOT exclude each other here."
    )
    yield target_table([target(rate, requests) for rate in TARGET_RATES])


_PARTS: Mapping[str, Callable[[int], Iterator[RenderableType]]] = {
    "arithmetic": _arithmetic,
    "batch": _batch,
    "links": _links,
    "batching": _batching,
    "chunks": _chunks,
    "targets": _targets,
}


@command(
    __doc__,
    keys={"only": f"parts: {','.join(_PARTS)}, all by default", "requests": "of each simulated run, 2000 by default"},
)
def main(arguments: Arguments) -> None:
    """Measure and print."""
    requests = arguments.whole("requests", 2000)
    asked = arguments.several("only") or list(_PARTS)
    for name in asked:
        require_choice("only", name, tuple(_PARTS))
    console = results_console()
    for place, name in enumerate(asked):
        if place:
            console.print()
        for shown in _PARTS[name](requests):
            console.print(shown)
