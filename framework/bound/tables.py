"""Lower envelopes of a pool's step times, on grids between which they are affine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framework.bound.steps import Chunks, Decodes, PoolSteps, lower_hull
from framework.system.cluster import PoolSpec
from framework.timing.table import Curve, StepRow, Surface

Floats = NDArray[np.float64]

_EVERY_BATCH, _RATIO = 256, 1.02  # batches on the grid: all up to here, then a geometric sequence with this ratio
_LEAST_S = 1e-15  # replaces zero time


@dataclass(frozen=True)
class Extent:
    """How large steps can be: `prompt_tokens` of the longest prompt, `kv_tokens` and `batch` of an instance; for
    requests that may be good, the least and the most tokens that one decode reads, of which several requests may share
    `shared_tokens`. With `stages` a step takes as long as that many copies of its slowest micro-batch, with `ranks` as
    that many copies of its slowest rank.
    """

    prompt_tokens: int
    kv_tokens: int
    batch: int
    least_context: int
    most_context: int
    shared_tokens: int
    stages: int = 1
    ranks: int = 1


def least_steps(
    pool: PoolSpec, row: StepRow, extent: Extent, budget: int, batching: str, *, again: bool = False
) -> PoolSteps:
    """The least step times of `pool`, whose steps hold up to `budget` tokens formed as `batching` says.

    `again`: instances that only decode recompute prompts.
    """
    chunks = decodes = None
    again_only = again and pool.role == "decode"
    apart = ("prefill_first", "static", "concurrent", "chunks_first")
    mixes = (pool.role == "mixed" or again_only) and batching not in apart
    if pool.role != "decode" or again_only:
        whole = batching not in ("decode_first", "unified", "concurrent", "chunks_first")
        chunks = _chunks(row, extent, budget, whole=whole, mixes=mixes)
    if pool.role != "prefill" and extent.most_context > 0:
        decodes = _decodes(row, extent, chunks if mixes else None)
    return PoolSteps(chunks, decodes, mixes, again_only)


def _chunks(row: StepRow, extent: Extent, budget: int, *, whole: bool, mixes: bool) -> Chunks:
    most = extent.stages * extent.kv_tokens
    limit = float(max(min(budget, most), 1))
    last = extent.ranks * max(limit, (extent.prompt_tokens if extent.stages == 1 else most) + extent.batch)
    knots = np.zeros(0) if row.linear is None else np.asarray(row.linear.knots)
    tokens = np.unique(np.concatenate([[1.0, limit, last], knots[knots > 1]]))
    ends_prompts = whole and not mixes  # each of its steps ends prompts, and nothing else emits there
    logits_s = float(curve_at(row.logits, np.arange(1.0, extent.batch + 1)).min())
    start_s = row.base_s + row.prefill_step_s + (logits_s if ends_prompts else 0.0)
    ending_s = row.per_sampled_s + (0.0 if ends_prompts else logits_s)
    linear_s = _monotone(curve_at(row.linear, tokens))
    if extent.stages > 1 or extent.ranks > 1:  # the slowest takes at least the average, and a hull lies below that
        linear_s = np.interp(tokens, *lower_hull(tokens, linear_s))
    return Chunks(max(start_s, _LEAST_S), row.per_prefill_token_s, ending_s, tokens, linear_s, limit, whole)


def _decodes(row: StepRow, extent: Extent, chunks: Chunks | None) -> Decodes | None:
    low, high = float(extent.least_context), float(extent.most_context)
    room = extent.kv_tokens + float(extent.batch) * extent.shared_tokens
    most = min(extent.batch, max(room // low, 1))
    batches = _batches(row, most, np.zeros(0) if chunks is None else chunks.tokens)
    contexts = _contexts(row, low, max(low, min(room, most * high)))
    if extent.ranks > 1:
        pure_s, beside_s = _times_on_ranks(row, batches, contexts, extent.ranks)
    else:
        pure_s, beside_s = _times_of_decodes(row, batches, contexts)
    if chunks is not None:  # a step with chunks that do not count may be faster
        pure_s = np.minimum(pure_s, _monotone(chunks.start_s + chunks.linear(batches)[:, None] + beside_s))
    pure_s = np.maximum(pure_s, _LEAST_S)
    gaps = np.diff(batches)
    steepest = np.maximum(np.diff(pure_s, axis=0), np.diff(beside_s, axis=0)) / pure_s[:-1]
    # Seconds times decodes are convex between two batches; this is their sag, as a share of the seconds.
    sag = np.where(gaps > 1, 0.25 * gaps * steepest.max(axis=1), 0.0)
    paced = batches - np.maximum(np.append(sag, 0.0), np.insert(sag, 0, 0.0))
    # The least and the most that requests of one batch size read; on a coarse grid adjacent sizes count too.
    below = np.where(np.insert(gaps, 0, 1.0) > 1, np.insert(batches[:-1], 0, 0.0), batches)
    above = np.where(np.append(gaps, 1.0) > 1, np.append(batches[1:], 0.0), batches)
    read = np.clip(contexts, low * below[:, None], np.minimum(high * above, room)[:, None])
    pure_s, beside_s = (
        np.stack([np.interp(at, contexts, row_s) for at, row_s in zip(read, one, strict=True)])
        for one in (pure_s, beside_s)
    )
    return Decodes(batches, read, pure_s, beside_s, np.maximum(paced, 0.0), room)


def _times_of_decodes(row: StepRow, batches: Floats, contexts: Floats) -> tuple[Floats, Floats]:
    """Seconds of steps of decodes, and what decodes add to steps with chunks except linear layers; each (D, C)."""
    attention_s = _surface(row.decode, batches, contexts) + row.per_context_token_s * contexts
    logits_s, each_s = curve_at(row.logits, batches), _each_s(row) * batches
    beside_s = np.minimum.accumulate(logits_s[::-1])[::-1] + each_s
    own_s = row.base_s + curve_at(row.linear, batches) + logits_s + each_s
    return _monotone(own_s[:, None] + attention_s), _monotone(beside_s[:, None] + attention_s)


def _each_s(row: StepRow) -> float:
    """Seconds per decode, without its context."""
    return row.per_sequence_s + row.between_sequence_s + row.per_sampled_s


def _times_on_ranks(row: StepRow, batches: Floats, contexts: Floats, ranks: int) -> tuple[Floats, Floats]:
    """The times if the slowest rank counts, from a convex lower bound of each part: it takes at least the mean.

    A rank's part is that of as many ranks like it, so the grids go up to that many times the largest step. With chunks
    some ranks may have no decodes.
    """
    wide = _batches(row, ranks * float(batches[-1]), batches)
    long = _contexts(row, float(contexts[0]), ranks * float(contexts[-1]))
    long = np.union1d(long, contexts)
    logits_s, each_s = curve_at(row.logits, wide), _each_s(row)
    own_s = row.base_s + curve_at(row.linear, wide) + logits_s
    pure_s = np.interp(batches, *lower_hull(wide, own_s)) + each_s * batches
    beside_s = np.interp(batches, *lower_hull(np.append(0.0, wide), np.append(0.0, logits_s))) + each_s * batches
    read_s = _surface(row.decode, wide, long).min(axis=0)
    apart_s = np.interp(contexts, *lower_hull(np.append(0.0, long), np.append(0.0, read_s)))
    together_s = np.interp(contexts, *lower_hull(long, read_s))
    linear_s = row.per_context_token_s * contexts
    return _monotone(pure_s[:, None] + together_s + linear_s), _monotone(beside_s[:, None] + apart_s + linear_s)


def _batches(row: StepRow, most: float, tokens: Floats) -> Floats:
    """Batches between which all parts of a step are affine, close enough together."""
    grid = [1.0, most]
    while grid[-2] < most:
        step = 1.0 if grid[-2] < _EVERY_BATCH else np.ceil((_RATIO - 1) * grid[-2])
        grid.insert(-1, min(grid[-2] + step, most))
    knots = [curve.knots for curve in (row.linear, row.logits) if curve is not None]
    knots += [] if row.decode is None else [row.decode.batches]
    inner = [knot for one in (*knots, tokens) for knot in one if 1 < knot < most]
    return np.unique([*grid, *inner])


def _contexts(row: StepRow, low: float, high: float) -> Floats:
    knots = () if row.decode is None else row.decode.contexts
    return np.unique([low, *(knot for knot in knots if low < knot < high), high])


def _surface(surface: Surface | None, batches: Floats, contexts: Floats) -> Floats:
    """The decode surface at each batch and context, (D, C); its last segments continue."""
    if surface is None:
        return np.zeros((len(batches), len(contexts)))
    lines = np.stack([curve_at(Curve(surface.contexts, values), contexts) for values in surface.values])
    knots = np.asarray(surface.batches)
    b = np.clip(np.searchsorted(knots, batches, side="right") - 1, 0, len(knots) - 2)
    share = ((batches - knots[b]) / (knots[b + 1] - knots[b]))[:, None]
    return np.asarray(lines[b] + share * (lines[b + 1] - lines[b]), np.float64)


def curve_at(curve: Curve | None, xs: Floats) -> Floats:
    """The curve's values at xs not below its first knot; the last segment continues."""
    if curve is None:
        return np.zeros(len(xs))
    slope = (curve.values[-1] - curve.values[-2]) / (curve.knots[-1] - curve.knots[-2])
    return np.interp(xs, curve.knots, curve.values) + slope * np.maximum(xs - curve.knots[-1], 0.0)


def rising(row: StepRow) -> StepRow:
    """The row with its times over tokens of a step lowered to the least of as many or more."""
    return replace(row, linear=_rising(row.linear), logits=_rising(row.logits))


def _rising(curve: Curve | None) -> Curve | None:
    if curve is None:
        return None
    return Curve(curve.knots, tuple(np.minimum.accumulate(curve.values[::-1])[::-1].tolist()))


def _monotone(values: Floats) -> Floats:
    """The largest array not above `values` that never falls along any axis."""
    for axis in range(values.ndim):
        values = np.flip(np.minimum.accumulate(np.flip(values, axis), axis=axis), axis)
    return values
