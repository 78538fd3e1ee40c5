"""Which kernel calls to measure for a model, the most useful first.

Cases are listed in rounds. The first round covers every shape and every operation coarsely (steps of 4 to 16 in tokens,
batch and context), so a table cut off by a time budget still spans the whole range. Later rounds add the powers of two
between, uneven batches and prefixes, then sizes between powers of two and just past the edges of GEMM tiles. An uneven
batch always has its even counterpart in the same or an earlier round.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.model import Model
from framework.timing.kernels.table import NAMES, OPERATIONS

Identity = tuple[str, tuple[tuple[str, str | int], ...]]  # equal for two cases that are the same measurement
MIXED = "mixed_attention"
LAYER = "layer"
STREAMS = "two_streams"
LAUNCH = "launch"
_STEP = ("model", "tp", "tokens", "prefix", "decodes", "context")
# `longest`, of an uneven batch, is no key of the table: then `context` is the mean.
KEYS = {
    **{name: OPERATIONS[name] for name in ("gemm", "prefill_attention", "decode_attention", "all_reduce")},
    "elementwise": OPERATIONS["elementwise"],
    MIXED: (*OPERATIONS["prefill_attention"], "decodes", "context"),
    LAYER: _STEP,
    STREAMS: (*_STEP, "stream", "percent"),
    LAUNCH: ("mode", "kernels"),
}
NAMED = (*NAMES, "model", "stream", "mode")  # key columns that hold names; all others hold whole numbers
_TOKENS_LIMIT = 32768  # most tokens of one step
_PROMPT_LIMIT = 131072  # longest prompt that is prefilled in one piece
_CACHED_BYTES = 2**27  # most bytes that elementwise kernels move
_SAMPLED_LIMIT = 2048  # sequences of one step that emit a token
_CONTEXT_LIMIT = 2**21  # summed over a batch: more than the KV of any model that one node serves
_UNEVEN_RATIOS = (1.5, 2.0, 4.0)  # longest context over the mean
_REACHED = 0.7  # share of the peaks that a kernel is assumed to reach, for estimates of time
_CALL_S = 5e-6


@dataclass(frozen=True)
class Case:
    """One kernel call: an operation and its key columns, in the order of `KEYS`, then `longest` for an uneven batch.

    Round 0 is measured first. `flops` and `bytes` are what the call computes and moves through memory; for all_reduce
    they are 0 and what each GPU sends. `parts` are the calls of a case of several calls.
    """

    operation: str
    key: tuple[tuple[str, str | int], ...]
    round: int
    flops: float
    bytes: float
    parts: tuple[Case, ...] = ()

    @property
    def identity(self) -> Identity:
        """A value that is equal for two cases that are the same measurement."""
        return self.operation, self.key

    def size(self, name: str) -> int:
        """The whole number in the key column `name`; 0 for a column that this case lacks."""
        return int(dict(self.key).get(name, 0))

    def dtype(self, name: str = "dtype") -> str:
        """The data type in the key column `name`."""
        return str(dict(self.key)[name])

    def estimate_s(self, gpu: Gpu) -> float:
        """A rough estimate of the seconds of one call on that GPU."""
        rate = gpu.link_bytes_s if self.operation == "all_reduce" else gpu.bandwidth_bytes_s
        peak = max(gpu.peak_flops.values()) if self.flops and self._is_8_bit() else gpu.peak("bf16")
        return _CALL_S + max(self.flops / peak, self.bytes / rate) / _REACHED

    def __str__(self) -> str:
        return " ".join([self.operation, *(f"{name}={value}" for name, value in self.key)])

    def _is_8_bit(self) -> bool:
        return self.operation == "gemm" and DTYPE_BYTES[self.dtype()] <= 1


def model_cases(models: Sequence[Model], tps: Sequence[int], dtypes: Sequence[str]) -> list[Case]:
    """The cases of all models on each number of GPUs, the most useful first, none twice.

    `dtypes` are those of the weights in GEMMs; the output projection stays in bf16, and KV has each model's own type.
    Experts and MLA are left out: torch has no kernels for them. Raises InputError for a tp that does not divide the
    attention heads.
    """
    found: dict[Identity, Case] = {}
    for case in _all(models, tps, dtypes):
        known = found.get(case.identity)
        if known is None or case.round < known.round:
            found[case.identity] = case
    order = {name: place for place, name in enumerate(KEYS)}
    # GPU counts stay together: each needs its own processes.
    return sorted(found.values(), key=lambda case: (case.round, order[case.operation], case.size("gpus")))


def unmeasured_parts(models: Sequence[Model]) -> list[str]:
    """One line for each part of a model that no case covers."""
    lines = [f"{model.name}: its experts are not measured" for model in models if model.experts is not None]
    lines += [f"{model.name}: its latent attention is not measured" for model in models if model.latent is not None]
    return [f"{line}; torch has no such kernel, take them from other tables" for line in lines]


@functools.lru_cache(256)  # every model has batches of the same contexts
def contexts_of(batch: int, mean: int, longest: int) -> tuple[int, ...]:
    """The contexts of an uneven batch of `batch` sequences, in tokens, whose mean is exactly `mean`.

    One of them is `longest`, and the others are drawn below it, from a beta distribution with the wanted mean and a
    concentration of 3 (the spread of a batch that mixes fresh with nearly finished sequences). The same arguments
    always give the same batch. Raises ValueError where there is no such batch.
    """
    if longest == mean:
        return (mean,) * batch
    missing = batch * mean - longest
    if not batch - 1 <= missing <= (batch - 1) * longest:
        raise ValueError(f"no batch of {batch} has mean {mean} and longest {longest}")
    share = missing / (batch - 1) / longest
    drawn = np.random.default_rng([batch, mean, longest]).beta(3 * share, 3 * (1 - share), batch - 1)
    contexts = np.clip(np.rint(drawn * longest), 1, longest).astype(int)
    while (gap := missing - int(contexts.sum())) != 0:  # what rounding and clipping left, one token each
        movable = np.flatnonzero(contexts < longest if gap > 0 else contexts > 1)[: abs(gap)]
        contexts[movable] += np.sign(gap)
    return (longest, *map(int, contexts))


def gemm_shapes(model: Model, tp: int) -> list[tuple[int, int]]:
    """The shapes (n, k) of a layer's weight matrices on one of `tp` GPUs, each once; not the output projection's."""
    heads, kv_heads = model.heads_on(tp)
    hidden, head_dim = model.hidden, model.head_dim
    shapes = [((heads + 2 * kv_heads) * head_dim, hidden), (hidden, heads * head_dim)]
    if model.latent is not None:
        latent = model.latent
        shapes = [
            (latent.query_rank + latent.kv_rank + latent.rope_dim, hidden),
            (heads * (latent.nope_dim + latent.rope_dim), latent.query_rank),
            (heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
            (hidden, heads * latent.value_dim),
        ]
    mlps = [model.intermediate] if model.expert_layers < model.layers else []
    if model.experts is not None:
        shapes.append((model.experts.count, hidden))
        mlps += [model.experts.shared_intermediate] if model.experts.shared_intermediate else []
    for mlp in mlps:
        shapes += [((model.mlp_matrices - 1) * mlp // tp, hidden), (hidden, mlp // tp)]
    return list(dict.fromkeys(shapes))


def _all(models: Sequence[Model], tps: Sequence[int], dtypes: Sequence[str]) -> Iterator[Case]:
    for model in models:
        for tp in tps:
            for place, dtype in enumerate(dtypes):  # types after the first wait a round
                yield from (gemm_case(dtype, *mnk, wait + place) for mnk, wait in _layer_gemms(model, tp))
            yield from (gemm_case("bf16", *mnk, wait) for mnk, wait in _logits_gemms(model, tp))
            if model.latent is None:
                yield from _attention(model, tp)
            if tp > 1:
                yield from _all_reduces(tp)
    yield from (_case("elementwise", (size,), 1, 0.0, size) for size in _powers(256, _CACHED_BYTES))


def _layer_gemms(model: Model, tp: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    for n, k in gemm_shapes(model, tp):
        yield from (((m, n, k), wait) for m, wait in _rows(_TOKENS_LIMIT))


def _logits_gemms(model: Model, tp: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    n = -(-model.vocab // tp)
    yield from (((m, n, model.hidden), wait) for m, wait in _rows(_SAMPLED_LIMIT))


def _rows(limit: int) -> Iterator[tuple[int, int]]:
    """Rows of activations and their round: powers of 4, of 2, half-way between, one past the edge of a tile."""
    powers = _powers(1, limit)
    yield from ((m, 0 if i % 2 == 0 or m == limit else 1) for i, m in enumerate(powers))
    yield from ((3 * m // 2, 2) for m in powers if m >= 16 and 3 * m // 2 <= limit)
    yield from ((m + 1, 3) for m in powers if 16 <= m < 8192 and m < limit)


def gemm_case(dtype: str, m: int, n: int, k: int, wait: int) -> Case:
    """The product of (m, k) activations and (n, k) weights."""
    values = DTYPE_BYTES[dtype]
    traffic = values * (n * k + m * k) + DTYPE_BYTES["bf16"] * m * n
    return _case("gemm", (dtype, m, n, k), wait, 2.0 * m * n * k, traffic)


def _attention(model: Model, tp: int) -> Iterator[Case]:
    for window in {0: None, model.window: None}:
        layer = AttentionLayer(model.kv_dtype, *model.heads_on(tp), model.head_dim, window)
        for grid in (_prefills, _decodes, _uneven_decodes, _mixed):
            for case in grid(layer):
                if max(case.size("prefix") + case.size("tokens"), case.size("context")) <= model.max_context:
                    yield case


@dataclass(frozen=True)
class AttentionLayer:
    """The key columns that all attention cases of a layer share."""

    kv_dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int

    def case(self, operation: str, sizes: tuple[int, ...], wait: int, queries: Iterable[tuple[int, int]]) -> Case:
        """The case of an operation; `queries` has the new tokens of each sequence, and the tokens behind them."""
        pairs = keys = 0.0
        for tokens, behind in queries:
            reach = min(self.window or behind + tokens, behind + tokens)
            pairs += tokens * reach - (min(tokens, reach) ** 2 / 2 if reach > behind else 0)
            keys += tokens + (min(behind, self.window - 1) if self.window else behind)
        traffic = 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.kv_dtype] * keys
        shared = (self.kv_dtype, self.heads, self.kv_heads, self.head_dim, self.window)
        return _case(operation, (*shared, *sizes), wait, 4.0 * self.heads * self.head_dim * pairs, traffic)


def _prefills(layer: AttentionLayer) -> Iterator[Case]:
    grid = [(1, tokens, 0, i % 2) for i, tokens in enumerate(_powers(16, _TOKENS_LIMIT))]
    grid += [(1, t, prefix, 1) for t in (128, 512, 2048, 8192) for prefix in (512, 2048, 8192, 32768, 122880)]
    grid += [(b, t, 0, 2) for b in (4, 16, 64) for t in _powers(16, 8192) if b * t <= _TOKENS_LIMIT]
    grid += [(1, t, prefix, 2) for t in (16, 1024, 4096) for prefix in (1024, 4096, 16384, 65536)]
    grid += [(4, t, prefix, 3) for t in (128, 512, 2048) for prefix in (512, 2048, 8192, 32768)]
    grid += [(1, 3 * t // 2, 0, 3) for t in _powers(64, 16384)]
    grid += [(1, t, 0, 3) for t in _powers(2 * _TOKENS_LIMIT, _PROMPT_LIMIT)]
    grid += [(1, t, 4096, 2) for t in (256, 512, 2048, 8192)]  # the chunks of `_mixed`
    for batch, tokens, prefix, wait in grid:
        yield layer.case("prefill_attention", (batch, tokens, prefix), wait, [(tokens, prefix)] * batch)


def _decodes(layer: AttentionLayer) -> Iterator[Case]:
    for i, batch in enumerate(_powers(1, 1024)):
        for j, context in enumerate(_powers(16, 131072)):
            if batch * context <= _CONTEXT_LIMIT:
                coarse = i % 2 == 0 and j % 2 == 0
                wait = 2 if batch > 512 or context < 64 else 0 if coarse else 1
                yield _decode(layer, batch, context, wait)
    for batch in (24, 48, 96, 192, 384):
        yield from (_decode(layer, batch, c, 3) for c in _powers(256, 16384) if batch * c <= _CONTEXT_LIMIT)


def _decode(layer: AttentionLayer, batch: int, context: int, wait: int) -> Case:
    return layer.case("decode_attention", (batch, context), wait, [(1, context - 1)] * batch)


def _uneven_decodes(layer: AttentionLayer) -> Iterator[Case]:
    if layer.window:  # its kernels read no more than the window of any sequence
        return
    for batch, wait in ((32, 1), (128, 1), (8, 2), (64, 2), (256, 2)):
        for mean in (512, 2048, 8192):
            if batch * mean > _CONTEXT_LIMIT:
                continue
            yield _decode(layer, batch, mean, wait)
            for ratio in _UNEVEN_RATIOS:
                longest = int(ratio * mean)
                lengths = [(1, context - 1) for context in contexts_of(batch, mean, longest)]
                even = layer.case("decode_attention", (batch, mean), wait, lengths)
                yield Case(even.operation, (*even.key, ("longest", longest)), wait, even.flops, even.bytes)


def _mixed(layer: AttentionLayer) -> Iterator[Case]:
    """One chunk and a batch of decodes in one call."""
    for tokens, wait in ((512, 2), (2048, 2), (256, 3), (8192, 3)):
        for prefix in (0, 4096):
            for decodes in (16, 64, 256):
                for context in (1024, 4096):
                    queries = [(tokens, prefix), *[(1, context - 1)] * decodes]
                    yield layer.case(MIXED, (1, tokens, prefix, decodes, context), wait, queries)


def _all_reduces(gpus: int) -> Iterator[Case]:
    for i, size in enumerate(_powers(256, 2**30)):
        sent = 2 * (gpus - 1) / gpus * size
        yield _case("all_reduce", ("bf16", gpus, size), i % 2, 0.0, sent)


def _case(operation: str, values: tuple[str | int, ...], wait: int, flops: float, traffic: float) -> Case:
    return Case(operation, tuple(zip(KEYS[operation], values, strict=True)), wait, flops, traffic)


def _powers(first: int, last: int) -> list[int]:
    return [1 << e for e in range((first - 1).bit_length(), last.bit_length())]
