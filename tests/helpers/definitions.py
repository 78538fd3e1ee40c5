"""What both engines read of step times, memory, slowdowns and draws, defined once more in plain Python.

Each function follows the documented definition (framework/timing/table.py, framework/engine/SEMANTICS.md, and the
docstrings of the data classes) and shares no code with the framework, so that an error there shows as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from framework.engine.kv.kv_compression import KvFormat
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface
from framework.timing.step_row import StepRow

BYTES = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "fp8": Fraction(1),
    "nvfp4": Fraction(9, 16),  # half a byte, and one for each 16 values
    "mxfp4": Fraction(17, 32),  # one for each 32
    "int4": Fraction(33, 64),  # two for each 128
}

# --- step times -------------------------------------------------------------------------------------------------------


def affine(knots: Sequence[float], values: Sequence[float], x: float) -> float:
    """On the line through the two knots around x; the last segment goes on."""
    i = 0
    while i < len(knots) - 2 and knots[i + 1] <= x:
        i += 1
    left, right = knots[i], knots[i + 1]
    return values[i] + (values[i + 1] - values[i]) * ((x - left) / (right - left))


def curve_at(curve: Curve | None, x: float) -> float:
    """An absent curve adds nothing, and neither does any where there is nothing to do."""
    return affine(curve.knots, curve.values, x) if curve is not None and x > 0 else 0.0


def surface_at(surface: Surface | None, batch: float, context: float) -> float:
    """Affine in the context for each batch of the table, then between these batches."""
    if surface is None or batch == 0:
        return 0.0
    return affine(surface.batches, [affine(surface.contexts, line, context) for line in surface.values], batch)


def base_s(row: StepRow, prefill_tokens: int, decodes: int, sampled: int, drafts: int = 0) -> float:
    time_s = row.base_s + row.per_prefill_token_s * prefill_tokens
    time_s += row.per_sequence_s * decodes + row.between_sequence_s * (decodes - drafts) + row.per_sampled_s * sampled
    if prefill_tokens > 0:
        time_s += row.prefill_step_s
    return time_s + curve_at(row.linear, prefill_tokens + decodes) + curve_at(row.logits, sampled)


def chunk_s(row: StepRow, prefix: int, chunk: int) -> float:
    length = prefix + chunk
    time_s = row.prefill_quadratic_s * (length**2 - prefix**2)
    time_s += curve_at(row.attention, length) * float(1 - Fraction(prefix, length) ** 2)
    if row.waste is not None:
        time_s *= curve_at(row.waste, chunk) / curve_at(row.waste, length)
    return time_s + row.masked_s * chunk**2 + curve_at(row.bounded, length) - curve_at(row.bounded, prefix)


def decode_s(row: StepRow, decodes: int, context: float) -> float:
    return row.per_context_token_s * context + surface_at(row.decode, decodes, context)


def uneven_s(row: StepRow, decodes: int, context: int, longest: int) -> float:
    return row.skew_s * sum([longest] * decodes, -context)


def extrapolation(row: StepRow, tokens: int, sampled: int, decodes: int, context: float, length: int) -> float:
    ratios = [tokens / row.tokens_limit, length / row.length_limit, sampled / row.sampled_limit]
    if decodes > 0 and row.decode_limits is not None:
        ratios.append(context / curve_at(row.decode_limits, decodes))
    return max(ratios)


# --- memory -----------------------------------------------------------------------------------------------------------


def _matrices(model: Model, layer: int) -> Iterator[tuple[str, int]]:
    """The weights of a layer, as (`shared` or `expert`, how many), matrix by matrix."""
    hidden, latent, experts, linear = model.hidden, model.latent, model.experts, model.linear
    yield from [("shared", hidden)] * 2  # norms
    if linear is not None and layer < linear.layers:
        keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
        yield from [("shared", hidden * keys)] * 2  # queries, keys
        yield from [("shared", hidden * values)] * 3  # values, gate, output
        yield from [("shared", hidden * linear.value_heads)] * 2  # how much a head forgets, and how much it writes
        yield from [("shared", linear.kernel)] * (2 * keys + values)  # convolution
    elif latent is None:
        sides = 3 if model.output_gate else 2  # queries, output, gate
        yield from [("shared", hidden * model.heads * model.head_dim)] * sides
        yield from [("shared", hidden * model.kv_heads * model.head_dim)] * 2  # keys, values
    else:
        yield "shared", hidden * latent.query_rank
        yield "shared", latent.query_rank * model.heads * (latent.nope_dim + latent.rope_dim)
        yield "shared", hidden * (latent.kv_rank + latent.rope_dim)
        yield "shared", latent.kv_rank * model.heads * (latent.nope_dim + latent.value_dim)
        yield "shared", model.heads * latent.value_dim * hidden
        if model.sparse is not None:
            yield "shared", latent.query_rank * model.sparse.index_heads * model.sparse.index_dim
            yield from [("shared", hidden)] * (model.sparse.index_dim + model.sparse.index_heads)
    if experts is None or layer < experts.dense_layers:
        yield from [("shared", hidden * model.intermediate)] * model.mlp_matrices
        return
    yield "shared", hidden * experts.count  # router
    yield from [("shared", hidden * experts.shared_intermediate)] * model.mlp_matrices
    yield from [("expert", hidden * experts.intermediate)] * (model.mlp_matrices * experts.count)


def weight_bytes(model: Model) -> tuple[Fraction, Fraction]:
    """Bytes of all weights but the experts', and of theirs; embeddings are never narrower than bf16."""
    layers = [matrix for layer in range(model.layers) for matrix in _matrices(model, layer)]
    shared = model.hidden + sum(count for kind, count in layers if kind == "shared")
    routed = sum(count for kind, count in layers if kind == "expert")
    embeddings = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    expert_dtype = model.experts.dtype if model.experts is not None and model.experts.dtype else model.dtype
    own = BYTES[model.dtype]
    return shared * own + embeddings * max(own, BYTES["bf16"]), routed * BYTES[expert_dtype]


def kv_bytes(model: Model, tp: int = 1, pp: int = 1) -> Fraction:
    """Bytes of a token's KV on one GPU: whole heads of the layers without a window; latent KV is copied to all."""
    values = 2 * model.head_dim * len(range(0, model.kv_heads, tp))  # heads 0, tp, 2 tp, ... are those of GPU 0
    if model.latent is not None:
        values = model.latent.kv_rank + model.latent.rope_dim
    index = 0 if model.sparse is None else model.sparse.index_dim + 4  # in fp8, and a scale
    return (values * BYTES[model.kv_dtype] + index) * len(_growing(model)) / pp


def _growing(model: Model) -> range:
    """Layers whose KV grows with the context."""
    linear = 0 if model.linear is None else model.linear.layers
    return range(linear, model.layers - model.windowed_layers)


def state_bytes(model: Model) -> Fraction:
    """Bytes that a request keeps however long it is: matrices of heads, and inputs of the convolution in bf16."""
    linear = model.linear
    if linear is None:
        return Fraction(0)
    matrix = linear.key_dim * linear.value_dim * BYTES[linear.state_dtype]
    row = 2 * linear.key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    return linear.layers * (linear.value_heads * matrix + (linear.kernel - 1) * row * BYTES["bf16"])


def kept_layers(model: Model, window_kv: str) -> Fraction:
    """Layers that keep KV of the whole context, for each of those without a window."""
    growing = len(_growing(model))
    return Fraction(growing + model.windowed_layers, growing) if window_kv == "kept" else Fraction(1)


def capacity_tokens(model: Model, gpu: Gpu, split: Parallelism, kv_fraction: float, memory_share: float = 1.0) -> int:
    """Each dp group holds what one of its GPUs has room for with its weights."""
    shared, routed = weight_bytes(model)
    own = shared / (split.tp * split.pp) + routed / (split.tp * split.dp * split.pp)
    room = Fraction(gpu.memory_bytes) * Fraction(kv_fraction) - own
    return split.dp * (room // (kv_bytes(model, split.tp, split.pp) * Fraction(memory_share)))


def token_s(bytes_s: float | None, model: Model, split: Parallelism) -> float:
    """Packing or unpacking a token: its bytes on each GPU; dp groups and stages work on tokens of their own."""
    return 0.0 if bytes_s is None else float(kv_bytes(model, split.tp)) / bytes_s / split.dp / split.pp


def admissible_blocks(total: int, watermark: float) -> int:
    """Blocks that admissions may take: all but the watermark, rounded down."""
    kept = 0
    while kept + 1 <= watermark * total:
        kept += 1
    return total - kept


def reserved_blocks(tokens: int | None, block_tokens: int, total: int, watermark: float) -> int:
    """Blocks of each request where all reserve so many tokens, 0 where they page."""
    if tokens is None:
        return 0
    return min(len(range(0, tokens, block_tokens)), admissible_blocks(total, watermark))


def tier_blocks(tokens: int | None, bytes_: float | None, per_token: Fraction, block_tokens: int) -> float:
    """Trace blocks that a store holds; inf: all."""
    if tokens is not None:
        return tokens // block_tokens
    return math.inf if bytes_ is None else Fraction(bytes_) // (per_token * block_tokens)


# --- formats of KV ----------------------------------------------------------------------------------------------------


def formatted_s(
    row: StepRow, kv: KvFormat, pack_s: float, step: tuple[int, int, int], cut: tuple[int, int], read: tuple[int, int]
) -> tuple[float, float, float, float]:
    """base_s of a step (prefill tokens, decodes, sampled), chunk_s of a cut (prefix, chunk), and decode_s and uneven_s
    of its decodes that read (context, longest), with keys and values in that format.
    """
    prefill_tokens, decodes, _ = step
    return (
        base_s(row, *step) + pack_s * prefill_tokens,
        kv.prefill_factor * chunk_s(row, *cut),
        decode_s(row, decodes, kv.read_factor * read[0]),
        kv.read_factor * uneven_s(row, decodes, *read),
    )


# --- shared GPUs, and draws -------------------------------------------------------------------------------------------


def slowdown(points: Mapping[int, float], percent: int) -> float:
    """Linear between points, in proportion below the first."""
    first = min(points)
    if percent <= first:
        return points[first] * first / percent
    known = sorted(points.items())
    return affine([knot for knot, _ in known], [factor for _, factor in known], percent)


def lowbias32(x: int) -> int:
    """C. Wellons, "Prospecting for hash functions": xor-shift 16, times, xor-shift 15, times, xor-shift 16."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x


def right_drafts(seed: int, request: int, token: int, depth: int, acceptance: float) -> int:
    """Of the drafts of a request from `token` on, those before the first wrong one."""
    own = lowbias32(lowbias32(seed % 2**32) ^ request)
    drafts = [lowbias32(own ^ lowbias32(token + k)) / 2**32 < acceptance for k in range(depth)]
    return [*drafts, False].index(False)


def steps_to_decode(seed: int, request: int, output: int, depth: int, acceptance: float) -> int:
    """Decode steps of a request whose first token comes from its prefill."""
    steps, emitted = 0, 1
    while emitted < output:
        emitted += 1 + right_drafts(seed, request, emitted, depth, acceptance)
        steps += 1
    return steps
