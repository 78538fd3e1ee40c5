"""Cases of whole steps, which no kernel table has: a layer, two streams that share a GPU, launches.

A layer is the matrix products and the attention of one layer of a model, without its elementwise kernels, for a step
with a chunk of `tokens` after `prefix` and `decodes` sequences of `context`; either may be missing. With two streams
the chunk's layer runs in one and that of the decodes in the other. The time is that of `stream`'s layer while the other
stream repeats its own without a pause, or alone if the other has none. `stream` has `percent` of the multiprocessors,
the other stream the rest; at 100 both have all of them.

A launch is that of the smallest possible kernel. `mode` is one of three. `eager`: one call of the host after another,
seconds of each. `graph`: in a graph of `kernels` that wait for each other, seconds of each on the GPU. `replay`:
seconds of the host to launch that graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framework.system.model import Model
from framework.timing.microbench.cases import (
    KEYS,
    LAUNCH,
    LAYER,
    MIXED,
    STREAMS,
    AttentionLayer,
    Case,
    gemm_case,
    gemm_shapes,
)

WHOLE = 100  # percent
STREAM_NAMES = ("prefill", "decode")
_CHUNKS = ((512, 0), (2048, 0), (8192, 0), (2048, 32768))  # (tokens, prefix), measured with decodes in another stream
_DECODES = ((16, 1024), (64, 4096), (256, 1024), (64, 16384))  # (sequences, context) of decodes measured with a chunk
_PERCENTS = (25, 50, 75)
_ALONE = (12, 25, 37, 50, 62, 75, 88, WHOLE)


@dataclass(frozen=True)
class Work:
    """The content of a step: a chunk of `tokens` after `prefix`, and `decodes` sequences of `context`; 0 for
    neither.
    """

    tokens: int = 0
    prefix: int = 0
    decodes: int = 0
    context: int = 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Its sizes, in the order of the key columns."""
        return self.tokens, self.prefix, self.decodes, self.context


def step_cases(models: Sequence[Model], tps: Sequence[int]) -> list[Case]:
    """The cases of steps: of dense models with grouped-query attention on `tps` GPUs, and launches."""
    dense = [model for model in models if model.experts is None and model.latent is None]
    cases = [case for model in dense for tp in tps for case in (*_layers(model, tp), *_streams(model, tp))]
    return [*cases, *_launches()]


def _layers(model: Model, tp: int) -> Iterator[Case]:
    works = [Work(tokens, prefix) for tokens in (512, 2048, 8192) for prefix in (0, 4096, 32768)]
    works += [Work(tokens) for tokens in (32768, 65536, 131072)]
    works += [Work(0, 0, decodes, context) for decodes in (1, 16, 64, 256, 512) for context in (1024, 4096, 16384)]
    works += [Work(0, 0, decodes, 131072) for decodes in (1, 8)]
    works += [
        Work(tokens, prefix, decodes, context)
        for tokens in (256, 512, 2048, 8192)
        for prefix in (0, 4096)
        for decodes in (16, 64, 256)
        for context in (1024, 4096)
    ]
    yield from (_layer(model, tp, work, 2) for work in works if _fits(model, work))


def _streams(model: Model, tp: int) -> Iterator[Case]:
    chunks = [Work(*chunk) for chunk in _CHUNKS]
    decodes = [Work(0, 0, *batch) for batch in _DECODES]
    for work in filter(lambda work: _fits(model, work), [*chunks, *decodes]):
        name = STREAM_NAMES[work.tokens == 0]
        yield from (_stream(model, tp, (work,), name, percent) for percent in _ALONE)
    for percent in (WHOLE, *_PERCENTS):
        for chunk in chunks:
            for batch in decodes:
                if _fits(model, chunk) and _fits(model, batch):
                    yield from (_stream(model, tp, (chunk, batch), name, percent) for name in STREAM_NAMES)


def _launches() -> Iterator[Case]:
    for mode, counts in (("eager", (1000,)), ("graph", (1, 16, 256, 1024)), ("replay", (1, 16, 256, 1024))):
        for kernels in counts:
            yield Case(LAUNCH, tuple(zip(KEYS[LAUNCH], (mode, kernels), strict=True)), 2, 0.0, 1.0)


def _fits(model: Model, work: Work) -> bool:
    return max(work.prefix + work.tokens, work.context) <= model.max_context


def _layer(model: Model, tp: int, work: Work, wait: int) -> Case:
    """The case of a layer, whose parts are its products and its attention."""
    rows = work.tokens + work.decodes
    parts = (*(gemm_case("bf16", rows, n, k, wait) for n, k in gemm_shapes(model, tp)), _attention(model, tp, work))
    return _sum(LAYER, (model.name, tp, *work.sizes), wait, parts)


def _attention(model: Model, tp: int, work: Work) -> Case:
    layer = AttentionLayer("bf16", *model.heads_on(tp), model.head_dim, 0)
    decodes = [(1, work.context - 1)] * work.decodes
    if not work.tokens:
        return layer.case("decode_attention", (work.decodes, work.context), 0, decodes)
    operation, decode_shape = (MIXED, (work.decodes, work.context)) if decodes else ("prefill_attention", ())
    return layer.case(
        operation, (1, work.tokens, work.prefix, *decode_shape), 0, [(work.tokens, work.prefix), *decodes]
    )


def _stream(model: Model, tp: int, works: tuple[Work, ...], name: str, percent: int) -> Case:
    """Layers in two streams, the measured one first among the parts."""
    parts = sorted((_layer(model, tp, work, 0) for work in works), key=lambda part: _name(part) != name)
    sizes = [sum(column) for column in zip(*(work.sizes for work in works), strict=True)]
    return _sum(STREAMS, (model.name, tp, *sizes, name, percent), 2 if percent == WHOLE else 3, tuple(parts))


def _name(layer: Case) -> str:
    return STREAM_NAMES[layer.size("tokens") == 0]


def _sum(operation: str, values: tuple[str | int, ...], wait: int, parts: tuple[Case, ...]) -> Case:
    key = tuple(zip(KEYS[operation], values, strict=True))
    return Case(operation, key, wait, sum(p.flops for p in parts), sum(p.bytes for p in parts), parts)
