"""What a step holds, by the mode of its instance (SEMANTICS.md: Prefill, Data-parallel ranks, Pipeline parallelism)."""

from __future__ import annotations

import math
from collections.abc import Callable

from framework.reference.kv import admit, cover, finds_room, make_room, may_come, selected, swap_in
from framework.reference.prefixes import known_tokens, share_chunk
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request
from framework.reference.steps.duration import micro_batches, start_prefill_step
from framework.reference.steps.step import Chunk

Form = tuple[list[Request], list[Chunk]]  # the decodes and the chunks of a step


def form_step(s: Simulation, i: Instance) -> Form:
    """The decodes and chunks of i's next step, decodes first; next to a prefill step it has decodes alone."""
    return _FORMS["decode_only" if i.prefill_step else i.mode](s, i)


def form_decode_first(s: Simulation, i: Instance) -> Form:
    """Decodes, then chunks of prompts as the budget allows."""
    preempted = make_room(s, i)
    swap_in(s, i, preempted)
    spent = [sum([r.rank == k for r in selected(i)]) * (1 + i.depth) for k in range(i.spec.ranks)]
    return selected(i), form_chunks(s, i, spent, preempted)


def form_concurrent(s: Simulation, i: Instance) -> Form:
    """Decodes and, concurrently, a step of the prefill stream."""
    preempted = make_room(s, i)
    swap_in(s, i, preempted)
    form_stream(s, i, preempted)
    return selected(i), []


def form_stream(s: Simulation, i: Instance, barred: bool) -> None:
    """The next step of the prefill stream. `barred`: nothing is admitted."""
    chunks = form_chunks(s, i, [0], barred)
    if chunks:
        start_prefill_step(s, i, chunks)


def form_chunks(s: Simulation, i: Instance, spent: list[int], preempted: bool) -> list[Chunk]:
    """Take chunks of prefilling requests, in order, and of new ones unless one was preempted; `spent` of the
    budgets.
    """
    budget = i.token_budget // i.spec.ranks
    chunks: list[Chunk] = []
    for r in list(i.prefilling):
        size = min(budget, i.chunk_size(r.prefilled))
        tokens = min(longest_chunk(s, r), tokens_left(i, size, spent[r.rank], r.rank, chunks))
        if r in i.prefilling and tokens > 0:
            if not cover(s, i, r, r.prefilled + tokens):
                preempted = True
                break
            share_chunk(s, i, r, r.prefilled + tokens)
            chunks.append((r, r.prefilled, tokens))
            spent[r.rank] += tokens
    if not preempted and not i.chunk_preempted:
        admit_by_chunks(s, i, spent, chunks)
    return chunks


def admit_by_chunks(s: Simulation, i: Instance, spent: list[int], chunks: list[Chunk]) -> None:
    """Admit new requests, each with its first chunk, which joins the others of the step; `spent` of the budgets."""
    while not i.swapped and may_come(s, i):
        r, rank = min(i.waiting)[2], i.coming_rank
        known = known_tokens(s, i, r)
        tokens = first_chunk(s, i, r, known, spent[rank], chunks)
        covered = known + tokens if i.mode == "unified" else r.goal
        occupied = bool(i.running or i.prefilling)
        room = covered if occupied and s.options.engine.admission_room == "chunk" else None
        if tokens <= 0 or not finds_room(s, i, room):
            break
        admit(s, i, covered)
        share_chunk(s, i, r, known + tokens)
        chunks.append((r, known, tokens))
        spent[rank] += tokens


def first_chunk(s: Simulation, i: Instance, r: Request, known: int, spent: int, chunks: list[Chunk]) -> int:
    """Tokens of the first chunk of r, which comes next, behind its `known` ones; 0 or less: there is no room for it."""
    budget, rank = i.token_budget // i.spec.ranks, i.coming_rank
    wanted = min(r.goal - known, s.options.engine.longest_chunk or r.goal)
    if s.options.engine.chunked_prefill:
        return min(wanted, tokens_left(i, min(budget, i.chunk_size(known)), spent, rank, chunks))
    left = tokens_left(i, budget, spent, rank, chunks)
    return wanted if wanted <= left or 0 < left == math.ceil(budget / i.spec.stages) else 0


def longest_chunk(s: Simulation, r: Request) -> int:
    """The most tokens of r, whose prefill is under way, in one step."""
    left = r.prefill_until - r.prefilled
    return left if s.options.engine.longest_chunk is None else min(left, s.options.engine.longest_chunk)


def tokens_left(i: Instance, size: int, spent: int, rank: int, chunks: list[Chunk]) -> int:
    """Tokens for one more chunk, if a step of `size` tokens has `spent` and these chunks already."""
    loads = micro_batch_loads(i, [chunk for chunk in chunks if i.spec.ranks == 1 or chunk[0].rank == rank])
    decodes = spent - sum(loads)
    return math.ceil((size - decodes) / i.spec.stages) - min(loads)


def micro_batch_loads(i: Instance, chunks: list[Chunk]) -> list[int]:
    """Prefill tokens of each micro-batch."""
    return [sum([tokens for _, _, tokens in batch]) for batch in micro_batches(i, chunks)]


def form_decodes(s: Simulation, i: Instance) -> Form:
    """Decodes alone."""
    swap_in(s, i, make_room(s, i))
    return selected(i), []


def form_static(s: Simulation, i: Instance) -> Form:
    """The prompts of a batch, then its decodes; the next batch once nothing of it is left."""
    if i.prefilling:
        chunks = form_batch(s, i)
        if chunks:
            return [], chunks
    preempted = make_room(s, i) or i.chunk_preempted
    swap_in(s, i, preempted)
    if i.running:
        return selected(i), []
    while not preempted and not i.swapped and may_come(s, i) and finds_room(s, i):
        r = min(i.waiting)[2]
        admit(s, i, r.goal)
        share_chunk(s, i, r, r.goal)
    return [], form_batch(s, i)


def form_batch(s: Simulation, i: Instance) -> list[Chunk]:
    """The rest of prefilling prompts, in order, up to the first that exceeds the budget."""
    chunks: list[Chunk] = []
    for r in list(i.prefilling):
        tokens = r.prefill_until - r.prefilled
        if is_full(i, sum(chunk[2] for chunk in chunks), chunks, tokens):
            break
        if r not in i.prefilling or not cover(s, i, r, r.prefill_until):
            break
        share_chunk(s, i, r, r.prefill_until)
        chunks.append((r, r.prefilled, tokens))
    return chunks


def form_prefill_first(s: Simulation, i: Instance) -> Form:
    """Whole prompts, or decodes if there are none."""
    chunks = form_whole_prompts(s, i, 0, barred=False)
    if chunks:
        return [], chunks
    swap_in(s, i, make_room(s, i) or i.chunk_preempted)
    return selected(i), []


def form_chunks_first(s: Simulation, i: Instance) -> Form:
    """Chunks of prompts, or decodes if there are none."""
    chunks = form_chunks(s, i, [0] * i.spec.ranks, preempted=False)
    if chunks:
        return [], chunks
    swap_in(s, i, make_room(s, i) or i.chunk_preempted)
    return selected(i), []


def form_mixed(s: Simulation, i: Instance) -> Form:
    """Decodes, then whole prompts as the budget allows."""
    preempted = make_room(s, i)
    swap_in(s, i, preempted)
    chunks = form_whole_prompts(s, i, len(selected(i)) * (1 + i.depth), barred=preempted)
    return selected(i), chunks


def form_whole_prompts(s: Simulation, i: Instance, spent: int, barred: bool) -> list[Chunk]:
    """Whole prompts: those that prefill, then new ones unless `barred`; the budget has `spent` tokens less."""
    chunks: list[Chunk] = []
    for r in list(i.prefilling):
        if r in i.prefilling and cover(s, i, r, r.prefill_until):
            share_chunk(s, i, r, r.prefill_until)
            chunks.append((r, r.prefilled, r.prefill_until - r.prefilled))
    spent += sum(tokens for _, _, tokens in chunks)
    while not barred and not i.chunk_preempted and not i.swapped and may_come(s, i):
        r = min(i.waiting)[2]
        tokens = r.goal - known_tokens(s, i, r)
        if is_full(i, spent, chunks, tokens) or not finds_room(s, i):
            break
        admit(s, i, r.goal)
        share_chunk(s, i, r, r.goal)
        chunks.append((r, r.prefilled, tokens))
        spent += tokens
    return chunks


def is_full(i: Instance, spent: int, chunks: list[Chunk], tokens: int) -> bool:
    """Whether a whole prompt is one too many; the first of a micro-batch never is."""
    return min(micro_batch_loads(i, chunks)) > 0 and tokens > tokens_left(i, i.token_budget, spent, 0, chunks)


_FORMS: dict[str, Callable[[Simulation, Instance], Form]] = {
    "decode_first": form_decode_first,
    "prefill_first": form_prefill_first,
    "chunks_first": form_chunks_first,
    "mixed": form_mixed,
    "static": form_static,
    "unified": form_decode_first,
    "decode_only": form_decodes,
    "concurrent": form_concurrent,
}
