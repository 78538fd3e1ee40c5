"""The duration of a step (SEMANTICS.md: Duration of a step, and the mechanisms), and its start."""

from __future__ import annotations

from framework.codes import PREFILL_STEP_END, STEP_END
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request
from framework.reference.steps.step import Chunk, Step


def context_of(i: Instance, decodes: list[Request], depth: int) -> int:
    """KV tokens that a step of i reads for these decodes, and for those elsewhere whose KV it has."""
    own = sum([r.input_tokens + r.emitted + depth - r.elsewhere for r in decodes])
    return own + i.guests if decodes else 0


def longest_of(decodes: list[Request], depth: int) -> int:
    """The longest context of these decodes."""
    return max(r.input_tokens + r.emitted + depth - r.elsewhere for r in decodes)


def choose_depth(s: Simulation, i: Instance) -> int:
    """Drafts for each decode of i's next step; an adaptive depth is the one with the most tokens a second."""
    drafts = s.options.drafts
    if not drafts.adaptive:
        return i.most_drafts
    best, best_tokens, best_s = 0, 0.0, 1.0
    for depth in range(i.most_drafts + 1 if i.running else 1):
        tokens = sum(drafts.acceptance**k for k in range(depth + 1))
        time_s = verify_s(s, i, i.running, depth) + depth * draft_s(s, i, i.running) if i.running else 0.0
        if depth == 0 or tokens * best_s > best_tokens * time_s:
            best, best_tokens, best_s = depth, tokens, time_s
    return best


def verify_s(s: Simulation, i: Instance, decodes: list[Request], depth: int) -> float:
    """Seconds of a step of these decodes of i, contexts taken as equal, without drafting."""
    pool, tokens = i.spec.row, len(decodes) * (1 + depth)
    context = context_of(i, decodes, depth)
    base_s = s.timing.base_s(pool, 0, tokens, tokens, tokens - len(decodes))
    return base_s + s.timing.decode_s(pool, len(decodes), context)


def draft_s(s: Simulation, i: Instance, decodes: list[Request]) -> float:
    """Seconds to draft one token for each of these decodes of i."""
    return s.options.drafts.cost * verify_s(s, i, decodes, 0)


def start_step(s: Simulation, i: Instance, decodes: list[Request], chunks: list[Chunk]) -> None:
    """Start the step that has been formed."""
    depth = i.depth if decodes else 0
    context = context_of(i, decodes, depth)
    duration = max(
        like_rank_s(s, i, [r for r in decodes if r.rank == k], [chunk for chunk in chunks if chunk[0].rank == k])
        for k in range(i.spec.ranks)
    )
    bubble_s, widest, filled = 0.0, chunks, min(i.spec.stages, len(decodes)) or 1
    if i.spec.stages > 1 and chunks:
        batches = [batch for batch in micro_batches(i, chunks) if batch or decodes]
        times = [like_micro_batch_s(s, i, decodes, batch) for batch in batches]
        duration = max(times)
        bubble_s = i.spec.stages * duration - sum(times)
        widest, filled = i.spec.stages * batches[times.index(duration)], len(batches)
    tokens = len(decodes) * (1 + depth) + sum([tokens for _, _, tokens in chunks])
    duration = max(duration, s.timing.host_s(i.spec.row, tokens, len(decodes)))
    slowdown = i.slowness
    if i.mode == "concurrent" or i.prefill_step is not None:
        slowdown *= s.options.decode_slowdown[100 - i.prefill_percent]
    if i.prefill_step is not None:
        duration += contention_s(s, i, i.prefill_step, context)
    duration = slowdown * duration + i.swap_bytes / i.spec.host_bytes_s
    if depth > 0:
        duration += slowdown * (depth * draft_s(s, i, decodes))
    duration = with_loads_s(s, i, duration)
    if any(r.elsewhere for r in decodes):
        duration += 2 * s.options.layers * s.options.latency_s
    if i.prefill_step is None:
        i.counted_s = s.now_s
    if i.spec.stages > len(decodes) and not chunks:
        bubble_s = (i.spec.stages - len(decodes)) * duration
    longest = max((prefix + tokens for _, prefix, tokens in chunks), default=0)
    beyond = beyond_measured(s, i, decodes, widest, longest)
    i.step = Step(s.now_s, s.now_s + duration, i.mode, decodes, chunks, context, depth, bubble_s, beyond, filled)
    if len(i.group) == 1:
        s.push(i.step.end_s, STEP_END, i.id)


def beyond_measured(s: Simulation, i: Instance, decodes: list[Request], chunks: list[Chunk], longest: int) -> float:
    """How far a step of i exceeds the measured range; at most 1: within. `longest`: prefix and chunk of one prompt."""
    depth = i.depth if decodes else 0
    drafted = len(decodes) * (1 + depth)
    context = context_of(i, decodes, depth)
    sampled = drafted + sum([prefix + tokens == r.prefill_until != r.split for r, prefix, tokens in chunks])
    tokens = drafted + sum([tokens for _, _, tokens in chunks])
    return s.timing.extrapolation(i.spec.row, tokens, sampled, len(decodes), context, longest)


def micro_batches(i: Instance, chunks: list[Chunk]) -> list[list[Chunk]]:
    """The chunks by micro-batch: each goes to the micro-batch with the fewest tokens."""
    dealt: list[list[Chunk]] = [[] for _ in range(i.spec.stages)]
    for chunk in chunks:
        min(dealt, key=lambda batch: sum([tokens for _, _, tokens in batch])).append(chunk)
    return dealt


def with_loads_s(s: Simulation, i: Instance, duration: float) -> float:
    """Seconds of a step that also loads what its requests found in stores."""
    load_s, i.load_s = i.load_s, 0.0
    return max(duration, load_s) if s.options.loads_layer_wise else duration + load_s


def like_rank_s(s: Simulation, i: Instance, decodes: list[Request], chunks: list[Chunk]) -> float:
    """Seconds of a step of i if each of its ranks had these decodes and chunks."""
    ranks, pool, depth = i.spec.ranks, i.spec.row, i.depth if decodes else 0
    batch, context = ranks * len(decodes), ranks * context_of(i, decodes, depth)
    sampled = batch * (1 + depth) + ranks * sum(
        [prefix + tokens == r.prefill_until != r.split for r, prefix, tokens in chunks]
    )
    prefill_tokens = ranks * sum([tokens for _, _, tokens in chunks])
    duration = s.timing.base_s(pool, prefill_tokens, batch * (1 + depth), sampled, batch * depth)
    prefill_s, decode_s = 0.0, 0.0
    for _, prefix, tokens in chunks:
        prefill_s += ranks * s.timing.chunk_s(pool, prefix, tokens)
    if decodes:
        decode_s += s.timing.decode_s(pool, batch, context)
        decode_s += s.timing.uneven_s(pool, batch, context - i.guests, longest_of(decodes, depth))
        decode_s = decode_with_chunks_s(s, pool, batch, context, decode_s) if chunks else decode_s
    return duration + attentions_s(s, prefill_s, decode_s, bool(chunks and decodes))


def attentions_s(s: Simulation, prefill_s: float, decode_s: float, both: bool) -> float:
    """Attention of a step; if it has `both` kinds, the longer one hides a part of the shorter one."""
    if not both:
        return prefill_s + decode_s
    return max(prefill_s, decode_s) + (1 - s.options.attention_overlap) * min(prefill_s, decode_s)


def decode_with_chunks_s(s: Simulation, pool: int, batch: int, context: int, decode_s: float) -> float:
    """Attention of decodes in a step with chunks, if one kernel has the tiles of both."""
    rows, group, at_once = s.timing.joint_kernel(pool)
    if rows == 0:
        return decode_s
    tiles_s = s.timing.tiles_s(pool, batch, context)
    joint = max(decode_s, tiles_s)
    apart = max(decode_s, tiles_s / group) + (tiles_s - tiles_s / group)
    return joint + min(max(2 - at_once / batch, 0), 1) * (apart - joint)


def like_micro_batch_s(s: Simulation, i: Instance, decodes: list[Request], chunks: list[Chunk]) -> float:
    """Seconds of a step of i with these decodes if each of its micro-batches had these chunks."""
    pool, copies, depth = i.spec.row, i.spec.stages, i.depth if decodes else 0
    context, batch = sum([r.input_tokens + r.emitted + depth for r in decodes]), len(decodes) * (1 + depth)
    emitting = sum([prefix + tokens == r.prefill_until != r.split for r, prefix, tokens in chunks])
    tokens = copies * sum([tokens for _, _, tokens in chunks])
    prefill_s, decode_s = 0.0, 0.0
    for _, prefix, chunk in chunks:
        prefill_s += copies * s.timing.chunk_s(pool, prefix, chunk)
    if decodes:
        longest = max(r.input_tokens + r.emitted + depth for r in decodes)
        decode_s += s.timing.decode_s(pool, len(decodes), context)
        decode_s += s.timing.uneven_s(pool, len(decodes), context, longest)
        decode_s = decode_with_chunks_s(s, pool, len(decodes), context, decode_s) if chunks else decode_s
    attention_s = attentions_s(s, prefill_s, decode_s, bool(chunks and decodes))
    return s.timing.base_s(pool, tokens, batch, batch + copies * emitting, batch - len(decodes)) + attention_s


def start_prefill_step(s: Simulation, i: Instance, chunks: list[Chunk]) -> None:
    """Start a prefill step concurrent with the decodes."""
    pool = i.spec.row
    sampled = sum([prefix + tokens == r.prefill_until != r.split for r, prefix, tokens in chunks])
    base_s = s.timing.base_s(pool, sum([tokens for _, _, tokens in chunks]), 0, sampled)
    attention_s = sum(s.timing.chunk_s(pool, prefix, tokens) for _, prefix, tokens in chunks)
    alone_s = base_s + attention_s
    least_s = s.timing.host_s(pool, sum([tokens for _, _, tokens in chunks]), 0)
    slowdown = i.slowness * s.options.prefill_slowdown[i.prefill_percent]
    end = s.now_s + with_loads_s(s, i, max(alone_s, least_s) * slowdown)
    share = attention_s / alone_s if alone_s > 0 else 0.0
    if i.step is None:
        i.counted_s = s.now_s
    beyond = beyond_measured(s, i, [], chunks, max(prefix + tokens for _, prefix, tokens in chunks))
    i.prefill_step = Step(s.now_s, end, i.mode, [], chunks, 0, beyond=beyond, is_concurrent=True, attention_share=share)
    s.push(end, PREFILL_STEP_END, i.id)


def contention_s(s: Simulation, i: Instance, prefill: Step, context: int) -> float:
    """Additional seconds in which decodes read their context because of a prefill step."""
    each = s.options.kv_bytes_per_token
    read = context * each
    of_attention = read / (read + sum(prefix + tokens for _, prefix, tokens in prefill.chunks) * each)
    of_layers = read / (read + s.options.weight_bytes)
    share = prefill.attention_share * of_attention + (1 - prefill.attention_share) * of_layers
    return (1 / share - 1) * (read / i.spec.memory_bytes_s)
