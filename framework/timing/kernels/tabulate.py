"""From the full kernel tables to the curves of a step: few knots, between which curves stay close to the measurements.

Few knots keep the file small. Between them curves are affine, and within the given tolerance of the function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, FloatArray, Surface
from framework.timing.joint_attention import is_joint
from framework.timing.kernels.decode_imbalance import imbalance_s
from framework.timing.kernels.step_cost import StepCost, step_cost
from framework.timing.kernels.table import Kernels
from framework.timing.profile import Setup, StepParts, limits_of_decodes
from framework.timing.step_row import StepRow

_TOLERANCE = 0.01  # tolerance of the parts that depend on the tokens of a step together
# Attention may deviate by this share of itself, or by that share of the step, whichever is more.
_PART_TOLERANCE, _STEP_TOLERANCE = 0.02, 0.003
_STEEPER = 8.0  # a chunk takes a difference of such attention: slopes must be close, not values alone
_LOGITS_TOLERANCE = 0.001  # likewise, of the projection to the vocabulary
_CHUNKS = (512.0, 1024.0, 2048.0, 4096.0, 8192.0)  # chunk sizes of chunked prefill, at which the error is 0
_RATIO = 1.04  # between points at which the tables are evaluated
_LARGEST_BATCH = 512.0
_LARGEST_CONTEXT = 2.0**21  # summed; from here on time grows in proportion
_TOGETHER = np.asarray(2.0 ** np.arange(7), float)  # prompts that one step may hold
_ALONE_WEIGHT = 3.0  # weight of the error of one prompt, the most common step
_LARGEST_STEP = 2.0**14  # tokens
_FILLING = 16.0  # prompts whose tiles fill a GPU for many rounds
_OF_TILES = np.array([1024.0, 2048.0, 4096.0])  # tokens of such prompts, which determine the time of a tile


def tabulate(kernels: Kernels, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepParts:
    """The step times of a model on an instance from measured kernel times, part by part.

    `gpu` states peaks and bandwidth for the interpolation between measured shapes. Raises InputError, naming operation
    and shape, if a kernel that a step needs was not measured, if tp does not divide the heads, and if measured times
    lead to impossible curves, such as those that fall after their last knot.
    """
    cost = step_cost(kernels, model, gpu, parallelism)
    try:
        rows = _rows(cost)
    except ValueError as error:
        raise InputError(f"measured times of {model.name} on {gpu.name} {parallelism}: {error}") from error
    skew_s = imbalance_s(kernels, model, parallelism.tp) / cost.groups
    rows["decode_attention"] = replace(rows["decode_attention"], skew_s=skew_s)
    return StepParts(Setup.of(model, parallelism), rows).without_bumps


def _rows(cost: StepCost) -> dict[str, StepRow]:
    """The step times by part, in the order of `StepParts`."""
    tokens, curves = _token_curves(cost)
    lengths, attention_s, bounded_s, floor_s = _prompts(cost)
    batches, contexts, decode_s = _decodes(cost)
    sampled, logits_s = _sampled(cost)
    rows = {part: StepRow(linear=Curve.of(tokens, curve_s)) for part, curve_s in curves.items()}
    rows["gemm"] = replace(rows["gemm"], tokens_limit=cost.tokens_limit)
    rows["prefill_attention"] = StepRow(
        attention=Curve.of(lengths, attention_s),
        bounded=Curve.of(lengths, bounded_s).rising() if bounded_s.any() else None,
        prefill_step_s=floor_s,
        length_limit=cost.attention.length_limit(),
    )
    if is_joint(cost.operations.gpu, cost.model, cost.operations.kernels.provenance.backend):
        row_s, pair_s = _tiles(cost)
        rows["prefill_attention"] = replace(rows["prefill_attention"], tile_row_s=row_s, tile_pair_s=pair_s)
    rows["decode_attention"] = StepRow(
        decode=Surface.of(batches, contexts, decode_s),
        decode_limits=limits_of_decodes(batches, cost.context_limits(batches)),
    )
    rows["logits"] = StepRow(logits=Curve.of(sampled, logits_s), sampled_limit=cost.sampled_limit)
    rows["overhead"] = StepRow(base_s=cost.base_s)
    return rows


def _token_curves(cost: StepCost) -> tuple[FloatArray, Mapping[str, FloatArray]]:
    """Knots over the tokens of a step, shape (T,), and the seconds of each part there, shape (T,) too."""
    last = cost.tokens_limit
    tokens = samples(1.0, last, 1.02, also=[*cost.token_steps, *(cost.token_steps + 1.0)])
    parts = {
        "gemm": cost.gemm_s,
        "experts": cost.experts_s,
        "elementwise": cost.elementwise_s,
        "communication": cost.communication_s,
    }
    curves = np.stack([part_s(tokens) for part_s in parts.values()])
    curves = np.vstack([curves, curves.sum(axis=0)])
    slack = np.broadcast_to(_TOLERANCE * curves[-1], curves.shape)
    knots = tokens[choose_knots(tokens, curves, slack, keep=_CHUNKS)]
    knots = np.append(knots, 2.0 * last)
    return knots, {part: part_s(knots) for part, part_s in parts.items()}


def _prompts(cost: StepCost) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Knots over the length of a prompt, the attention of one above the floor there, in layers that attend to all of it
    and in others, and the floor of a step.

    T(b, l) = floor + b above(l) is the time of b prompts of l tokens. A short prompt alone does not fill the GPU: its
    time is launch, and many together take hardly longer. Floor and above(l) minimise the largest error, as a share of
    the step, in any step of 1 to 64 prompts and 16,384 tokens (the floor: the mean over lengths); the error of one
    prompt alone has three times the weight.
    """
    last = max(cost.attention.length_limit(), float(cost.model.max_context))
    lengths = samples(1.0, last, _RATIO, also=cost.token_steps / cost.groups)
    batch = _TOGETHER[:, None]
    fits = (batch == 1.0) | (batch * lengths <= _LARGEST_STEP)
    together_s = cost.prefill_s(batch * cost.groups, lengths) + cost.copies_s
    step_s = together_s + cost.linear_s(batch * cost.groups * lengths)
    floors = np.linspace(0.0, float(together_s[0].min()), 40)
    choices = [_above(floor, together_s, step_s, fits) for floor in floors]
    best = int(np.argmin([np.mean(error) for _, error in choices]))
    floor_s, above_s = float(floors[best]), choices[best][0]
    slack = np.maximum(_PART_TOLERANCE * (above_s + floor_s), _STEP_TOLERANCE * step_s[0])
    bounded_s = above_s * cost.attention.bounded_share(lengths)
    chosen = choose_knots(lengths, np.stack([above_s, bounded_s]), np.stack([slack, slack / _STEEPER]))
    own_s, others_s = (values[chosen] / cost.groups for values in (above_s - bounded_s, bounded_s))
    return lengths[chosen], own_s, others_s, floor_s


def _tiles(cost: StepCost) -> tuple[float, float]:
    """Seconds of a row of a prefill tile, and of a row for each key, if tiles fill the GPU.

    A row of a causal prompt of l tokens has l / 2 keys on average, plus the masked part of a block of keys, equally in
    prompts and decodes: that is in the time of the row. The line is the one through the prompts with the least error as
    a share of their times.
    """
    batch = np.asarray(_FILLING * cost.groups)
    row_s = cost.prefill_s(batch, _OF_TILES) / (batch * _OF_TILES)
    share = np.stack([np.ones(len(_OF_TILES)), _OF_TILES / 2], axis=1) / row_s[:, None]
    (alone_s, pair_s), *_ = np.linalg.lstsq(share, np.ones(len(_OF_TILES)), rcond=None)
    if alone_s < 0.0:
        return 0.0, float(np.mean(2 * row_s / _OF_TILES))
    return float(alone_s), float(pair_s)


def _above(
    floor_s: float, together_s: FloatArray, step_s: FloatArray, fits: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """For each length the time of a prompt above the floor that fits all batches best, and its largest error.

    Arrays over (batches, lengths): attention of these prompts, the whole step, and which of them count. The error is a
    share of the step.
    """
    batch = _TOGETHER[:, None]
    candidates = np.maximum((together_s - floor_s) / batch, 0.0)
    errors = np.abs(floor_s + batch[None] * candidates[:, None] - together_s[None]) / step_s[None]
    errors[:, 0] *= _ALONE_WEIGHT
    largest = np.where(fits[:, None] & fits[None], errors, 0.0).max(axis=1)
    best = np.argmin(np.where(fits, largest, np.inf), axis=0)
    columns = np.arange(together_s.shape[1])
    return candidates[best, columns], largest[best, columns]


def _decodes(cost: StepCost) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Knots over sequences and their summed context, and the decode attention there."""
    groups = cost.groups
    batches = samples(1.0, _LARGEST_BATCH * groups, 1.1, also=2.0 ** np.arange(10))
    chunk = 0 if cost.model.local is None else cost.model.local.chunk_tokens  # a decode that fills it reads least again
    largest = max(_LARGEST_CONTEXT, 4.0 * chunk * _LARGEST_BATCH)
    contexts = samples(1.0, largest * groups, _RATIO)
    grid = cost.decode_s(batches[:, None], contexts[None])
    real = (contexts >= batches[:, None]) & (contexts <= batches[:, None] * cost.model.max_context)
    step_s = grid + cost.linear_s(batches)[:, None]
    slack = np.where(real, np.maximum(_PART_TOLERANCE * grid, _STEP_TOLERANCE * step_s), np.inf)
    at_context = choose_knots(contexts, grid, slack)
    at_batch = choose_knots(batches, grid.T, slack.T)
    knots = np.append(contexts[at_context], 2.0 * contexts[-1])
    return batches[at_batch], knots, cost.decode_s(batches[at_batch][:, None], knots[None])


def _sampled(cost: StepCost) -> tuple[FloatArray, FloatArray]:
    """Knots over the sequences that emit, and the projection to the vocabulary there."""
    sampled = samples(1.0, cost.sampled_limit, _RATIO, also=[*cost.token_steps, *(cost.token_steps + 1.0)])
    logits_s = cost.logits_s(sampled)
    slack = np.maximum(_PART_TOLERANCE * logits_s, _LOGITS_TOLERANCE * cost.linear_s(sampled))
    knots = sampled[choose_knots(sampled, logits_s[None], slack[None])]
    knots = np.append(knots, 2.0 * cost.sampled_limit)
    return knots, cost.logits_s(knots)


def choose_knots(xs: FloatArray, curves: FloatArray, slack: FloatArray, keep: Iterable[float] = ()) -> NDArray[np.intp]:
    """Indices, shape (knots,), of points between which affine interpolation of all curves stays within their slack.

    `xs` are N increasing points. `curves` and `slack` have shape (K, N): the values of K curves, and the error that is
    allowed around each; inf allows any. Each segment reaches as far as it can. The first and the last point and those
    in `keep` are knots.
    """
    forced = [*np.flatnonzero(np.isin(xs, list(keep))), len(xs) - 1]
    knots = [0]
    while knots[-1] < len(xs) - 1:
        at = knots[-1]
        stop = next(index for index in forced if index > at)
        knots.append(at + _reach(xs[at : stop + 1], curves[:, at : stop + 1], slack[:, at : stop + 1]))
    return np.asarray(knots)


def _reach(xs: FloatArray, curves: FloatArray, slack: FloatArray) -> int:
    """The largest j for which the line from point 0 to point j passes all points between within their slack."""
    run = xs[1:] - xs[0]
    slopes = (curves[:, 1:] - curves[:, :1]) / run
    room = slack[:, 1:] / run
    lowest = np.maximum.accumulate(slopes - room, axis=1)
    highest = np.minimum.accumulate(slopes + room, axis=1)
    passes = np.all((slopes[:, 1:] >= lowest[:, :-1]) & (slopes[:, 1:] <= highest[:, :-1]), axis=0)
    return int(np.flatnonzero(passes)[-1]) + 2 if np.any(passes) else 1


def samples(first: float, last: float, ratio: float, also: Iterable[float] = ()) -> FloatArray:
    """Whole numbers from `first` to `last`, each `ratio` times the one before or the next whole number, and those in
    `also`.
    """
    spread = np.geomspace(first, last, int(np.ceil(np.log(last / first) / np.log(ratio))) + 1)
    points = np.unique(np.round(np.concatenate([spread, [first, last], np.asarray(list(also), float)])))
    return points[(points >= first) & (points <= last)]
