"""Step times against a plain second definition, term by term as framework.timing.table states it, of drawn rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from framework.timing.curves import Curve, Surface
from framework.timing.estimate import StepTimes, chunked_s, estimate_s, estimates_s, prefill_alone_s, step_alone_s
from framework.timing.step_row import StepRow
from framework.timing.table import (
    base_s,
    chunk_s,
    decode_limit,
    decode_line,
    decode_s,
    decode_with_chunks_s,
    extrapolation,
    host_s,
    stack,
    step_s,
    tiles_of_decodes_s,
    uneven_s,
)

CURVES = ("linear", "attention", "bounded", "logits", "waste", "decode_limits")


def rising(rng: np.random.Generator, count: int) -> tuple[float, ...]:
    return tuple(np.cumsum(rng.uniform(0.1, 2.0, count)).tolist())


def knots(rng: np.random.Generator, most: float) -> tuple[float, ...]:
    inner = np.unique(np.round(most ** rng.uniform(0.1, 1.0, rng.integers(1, 6)), 1))
    return (float(rng.choice([0.25, 1.0])), *inner.tolist())


def drawn(seed: int) -> StepRow:
    """A row where every term costs something, and each limit can be passed; some have no curves, or no tiles."""
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {
        name: float(rng.uniform(0.1, 1.0)) for name, kind in StepRow.__annotations__.items() if kind == "float"
    }
    for name in CURVES:
        at = knots(rng, 200.0)
        values[name] = Curve(at, rising(rng, len(at)))
    batches, contexts = knots(rng, 8.0), knots(rng, 300.0)
    values["decode"] = Surface(batches, contexts, tuple(rising(rng, len(contexts)) for _ in batches))
    values |= {"decode_rows": 16.0, "head_group": 4.0, "decodes_at_once": float(rng.uniform(0.5, 6.0))}
    values |= {"graph_tokens": 20.0, "tokens_limit": 30.0, "length_limit": 25.0, "sampled_limit": 3.0}
    values |= {"host_s": float(rng.uniform(0.0, 400.0)), "eager_s": float(rng.uniform(0.0, 400.0))}
    if seed % 4 == 1:
        values |= dict.fromkeys((*CURVES, "decode"))
    if seed % 4 == 2:
        values |= {"decode_rows": 0.0}
    if seed % 4 == 3:
        values |= {"tile_row_s": 0.0, "tile_pair_s": 0.0}
    return StepRow(**values)


ROWS = [drawn(seed) for seed in range(12)]
TABLES = stack(ROWS)


def segment(at: Sequence[float], x: float) -> int:
    return max(bisect_right(at, x) - 1, 0)


def line(at: Sequence[float], values: Sequence[float], x: float) -> tuple[float, float]:
    """Value and slope at x of the affine pieces, of which the first and the last go on."""
    i = min(segment(at, x), len(at) - 2)
    slope = (values[i + 1] - values[i]) / (at[i + 1] - at[i])
    return values[i] + slope * (x - at[i]), slope


def curve(one: Curve | None, x: float) -> float:
    return 0.0 if one is None or x == 0 else line(one.knots, one.values, x)[0]


def surface(row: StepRow, batch: float, context: float) -> tuple[float, float, float]:
    """Value and slope over the context, and where the slope ends."""
    if row.decode is None or batch == 0:
        return 0.0, 0.0, np.inf
    batches, contexts = row.decode.batches, row.decode.contexts
    b = min(segment(batches, batch), len(batches) - 2)
    share = (batch - batches[b]) / (batches[b + 1] - batches[b])
    (low, low_slope), (high, high_slope) = (line(contexts, values, context) for values in row.decode.values[b : b + 2])
    ends = (*contexts, np.inf)[segment(contexts, context) + 1]
    return low + share * (high - low), low_slope + share * (high_slope - low_slope), ends


def base(row: StepRow, prefill: int, decodes: int, sampled: int, drafts: int = 0) -> float:
    return (
        row.base_s
        + row.per_prefill_token_s * prefill
        + row.per_sequence_s * decodes
        + row.between_sequence_s * (decodes - drafts)
        + row.per_sampled_s * sampled
        + (row.prefill_step_s if prefill else 0.0)
        + curve(row.linear, prefill + decodes)
        + curve(row.logits, sampled)
    )


def chunk(row: StepRow, prefix: int, tokens: int) -> float:
    length = prefix + tokens
    time_s = row.prefill_quadratic_s * (length**2 - prefix**2)
    time_s += curve(row.attention, length) * (1 - prefix**2 / length**2)
    waste = curve(row.waste, tokens) / curve(row.waste, length) if row.waste else 1.0
    apart_s = curve(row.bounded, length) - (curve(row.bounded, prefix) if prefix else 0.0)
    return time_s * waste + row.masked_s * tokens**2 + apart_s


def tiles(row: StepRow, decodes: int, context: int) -> float:
    if row.tile_pair_s:
        return row.decode_rows * (row.tile_row_s * decodes + row.tile_pair_s * context)
    return decodes * chunk(row, context // decodes, int(row.decode_rows))


def with_chunks(row: StepRow, decodes: int, context: int, alone_s: float) -> float:
    """Of one kernel: the tiles of the first head run beside what is read; the others do unless one head's fill it."""
    if not row.decode_rows:
        return alone_s
    tiles_s = tiles(row, decodes, context)
    first_s = tiles_s / row.head_group
    apart_s, joint_s = max(alone_s, first_s) + tiles_s - first_s, max(alone_s, tiles_s)
    return joint_s + min(max(2.0 - row.decodes_at_once / decodes, 0.0), 1.0) * (apart_s - joint_s)


def host(row: StepRow, tokens: int, decodes: int) -> float:
    return row.host_s + row.host_sequence_s * decodes + (row.eager_s if tokens > row.graph_tokens else 0.0)


def decoding(row: StepRow, decodes: int, context: int) -> float:
    return row.per_context_token_s * context + surface(row, decodes, context)[0]


Step = tuple[list[tuple[int, int]], int, int, int]  # chunks (prefix, tokens), decodes, their context, the longest


def steps(seed: int) -> list[Step]:
    """Short and long steps, of chunks alone, of decodes alone, and of both."""
    rng = np.random.default_rng(seed)
    found = []
    for kind in ("chunks", "decodes", "both", "both", "both", "decodes"):
        chunks = [(int(rng.integers(0, 60)), int(rng.integers(1, 90))) for _ in range(rng.integers(1, 4))]
        decodes = int(rng.integers(1, 12))
        longest = int(rng.integers(1, 80))
        context = int(rng.integers(decodes, decodes * longest + 1)) if longest > 1 else decodes
        found.append(
            (chunks if kind != "decodes" else [], *((decodes, context, longest) if kind != "chunks" else (0, 0, 0)))
        )
    return found


@pytest.mark.parametrize("k", range(len(ROWS)))
def test_terms_of_steps(k: int) -> None:
    row = ROWS[k]
    for chunks, decodes, context, longest in steps(k):
        prefill = sum(tokens for _, tokens in chunks)
        for sampled, drafts in ((0, 0), (decodes, decodes // 2), (5, 0)):
            expected = base(row, prefill, decodes, sampled, drafts)
            assert base_s(TABLES, k, prefill, decodes, sampled, drafts) == pytest.approx(expected)
        for prefix, tokens in chunks:
            assert chunk_s(TABLES, k, prefix, tokens) == pytest.approx(chunk(row, prefix, tokens))
        assert host_s(TABLES, k, prefill + decodes, decodes) == pytest.approx(host(row, prefill + decodes, decodes))
        assert uneven_s(TABLES, k, decodes, context, longest) == pytest.approx(
            row.skew_s * (decodes * longest - context)
        )
        value_s, slope_s, ends = surface(row, decodes, context)
        assert decode_s(TABLES, k, decodes, context) == pytest.approx(
            (row.per_context_token_s * context + value_s, row.per_context_token_s + slope_s, ends)
        )
        begins, until, knot, at_knot_s, slope = decode_line(TABLES, k, decodes, context)
        assert at_knot_s + slope * (context - knot) == pytest.approx(value_s)
        assert (slope, until) == pytest.approx((slope_s, ends))
        contexts = row.decode.contexts if row.decode is not None and decodes else ()
        assert begins == (-np.inf if context < (*contexts, np.inf, np.inf)[1] else knot)
        assert knot in (*contexts, 0.0)
        if decodes:
            assert tiles_of_decodes_s(TABLES, k, decodes, context) == pytest.approx(tiles(row, decodes, context))
            for alone_s in (0.0, 2.0, 50.0, 1e4):
                expected = with_chunks(row, decodes, context, alone_s)
                assert decode_with_chunks_s(TABLES, k, decodes, context, alone_s) == pytest.approx(expected)


def whole(row: StepRow, step: Step, sampled: int, with_longest: bool) -> float:
    chunks, decodes, context, longest = step
    prefill = sum(tokens for _, tokens in chunks)
    time_s = base(row, prefill, decodes, sampled) + sum(chunk(row, *one) for one in chunks)
    decoding_s = decoding(row, decodes, context)
    if with_longest:
        decoding_s += row.skew_s * (decodes * longest - context)
    if chunks and decodes:
        decoding_s = with_chunks(row, decodes, context, decoding_s)
    return max(time_s + decoding_s, host(row, prefill + decodes, decodes))


@pytest.mark.parametrize("k", range(len(ROWS)))
def test_whole_steps(k: int) -> None:
    for step in steps(100 + k):
        chunks, decodes, context, longest = step
        asked = ([prefix for prefix, _ in chunks], [tokens for _, tokens in chunks], decodes, context)
        assert step_s(TABLES, k, *asked) == pytest.approx(whole(ROWS[k], step, decodes + len(chunks), False))
        assert step_s(TABLES, k, *asked, 2, longest) == pytest.approx(whole(ROWS[k], step, 2, True))


@pytest.mark.parametrize("k", range(len(ROWS)))
def test_how_far_steps_lie_beyond_what_was_measured(k: int) -> None:
    row = ROWS[k]
    for decodes in (1, 3, 9):
        limit = curve(row.decode_limits, decodes) or np.inf
        assert decode_limit(TABLES, k, decodes) == pytest.approx(limit)
        for tokens, sampled, context, length in (
            (60, 1, 1, 1),
            (1, 9, 1, 1),
            (1, 1, 600, 1),
            (1, 1, 1, 75),
            (3, 1, 1, 2),
        ):
            expected = max(tokens / 30, length / 25, sampled / 3, context / limit)
            assert extrapolation(TABLES, k, tokens, sampled, decodes, context, length) == pytest.approx(expected)


TIMES = StepTimes(TABLES.rows, TABLES.data, np.arange(len(ROWS)), np.arange(len(ROWS)) % 3 + 1)


def planned(row: StepRow, stages: int, prompt: int, decodes: int, context: int) -> float:
    """A step of one whole prompt, which each stage computes of its micro-batch, whatever the host needs."""
    time_s = base(row, stages * prompt, decodes, decodes + (stages if prompt else 0))
    time_s += stages * chunk(row, 0, prompt) if prompt else 0.0
    if decodes:
        decoding_s = decoding(row, decodes, context)
        time_s += with_chunks(row, decodes, context, decoding_s) if prompt else decoding_s
    return time_s


@pytest.mark.parametrize(
    ("prompt", "decodes", "context"), [(0, 0, 0), (1, 0, 0), (40, 0, 0), (0, 1, 9), (1, 1, 1), (40, 5, 90)]
)
def test_steps_of_a_plan(prompt: int, decodes: int, context: int) -> None:
    expected = [planned(row, k % 3 + 1, prompt, decodes, context) for k, row in enumerate(ROWS)]
    assert estimates_s(TIMES, prompt, decodes, context).tolist() == pytest.approx(expected)
    for k, time_s in enumerate(expected):
        assert estimate_s(TIMES, k, prompt, decodes, context) == pytest.approx(time_s)
        assert step_alone_s(TABLES, k, k % 3 + 1, prompt, decodes, context) == pytest.approx(time_s)


@pytest.mark.parametrize("tokens", [1, 12, 13, 33, 99])
@pytest.mark.parametrize("decodes", [0, 1, 5])
def test_chunks_of_a_plan(tokens: int, decodes: int) -> None:
    prompts, left, chunks = [(4, 12), (7, 0), (0, 20), (30, 8)], tokens, []
    for prefix, lacks in prompts:
        if min(left, lacks):
            chunks.append((prefix, min(left, lacks)))
            left -= min(left, lacks)
    for k, row in enumerate(ROWS):
        step = (chunks, decodes, 20 * decodes, 40 if decodes else 0)
        expected = whole(row, step, decodes + len(chunks), with_longest=True)
        found = chunked_s(TIMES, k, np.array(prompts).T, tokens, decodes, 20 * decodes, 40)
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("cached", "prompt", "most"), [(0, 10, 16), (0, 10, 4), (3, 10, 4), (10, 10, 4), (0, 1, 1)])
def test_prompts_alone(stages: int, cached: int, prompt: int, most: int) -> None:
    for k, row in enumerate(ROWS):
        done, expected = cached, 0.0
        while done < prompt:
            tokens = min(int(np.ceil(most / stages)), prompt - done)
            expected += base(row, stages * tokens, 0, stages) + stages * chunk(row, done, tokens)
            done += tokens
        assert prefill_alone_s(TABLES, k, stages, cached, prompt, most) == pytest.approx(expected)
