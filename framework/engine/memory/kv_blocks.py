"""KV memory in numbers: blocks for tokens, blocks left on an instance, and their integrals over time."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State


@inner
def blocks_for(s: State, tokens: int) -> int:
    """Blocks that `tokens` tokens take."""
    return (tokens + s.options.block_tokens - 1) // s.options.block_tokens


@inner
def blocks_of(s: State, i: int, tokens: int) -> int:
    """Blocks that a request of `tokens` KV tokens takes on i: for tokens and states, or i's fixed reservation."""
    inst = s.instances[i]
    return inst.reserve_blocks if inst.reserve_blocks > 0 else blocks_for(s, tokens) + inst.state_blocks


@inner
def fits(s: State, i: int, r: int) -> bool:
    """Whether i could ever admit r at its peak KV, which may not exceed i's reservation."""
    inst = s.instances[i]
    peak = s.requests[r].input_tokens + s.lists[s.options.output_at + r] - 1
    largest = largest_request(s, i)
    return blocks_for(s, peak) + inst.state_blocks <= (inst.reserve_blocks if inst.reserve_blocks > 0 else largest)


@inner
def largest_request(s: State, i: int) -> int:
    """Blocks that one request could have on i, if i pages."""
    inst = s.instances[i]
    return int(inst.total_blocks if s.options.spares_idle else inst.total_blocks - inst.watermark)


@inner
def available(s: State, i: int) -> int:
    """Blocks that can be taken: free ones, and cached prefixes that no request references."""
    return s.instances[i].free_blocks + s.instances[i].evictable_blocks


@inner
def watermark_of(s: State, i: int) -> int:
    """Blocks that admissions to i leave available."""
    inst = s.instances[i]
    if unlikely(s.options.spares_idle) and inst.running + inst.prefilling == 0 and inst.deferred_head < 0:
        return 0
    return inst.watermark


@inner
def note_use(s: State, i: int, blocks: int, time_s: float) -> None:
    """Count `blocks` more blocks in use from `time_s` on.

    Nothing is in use at either end of a run, so the sum of -blocks * time over all changes is the integral of blocks in
    use.
    """
    s.instances[i].kv_block_s -= blocks * time_s


@inner
def add_kv_tokens(s: State, i: int, tokens: int, time_s: float) -> None:
    """Count `tokens` more KV tokens on i from `time_s` on; the integral is kept as for blocks."""
    note_tokens(s, i, tokens, tokens * time_s)


@inner
def note_tokens(s: State, i: int, tokens: int, added_s: float) -> None:
    """Add KV tokens that came at different times; `added_s` is the sum of these times over the tokens."""
    s.instances[i].kv_tokens += tokens
    s.instances[i].kv_token_s -= added_s


@inner
def swapped_bytes(s: State, r: int) -> float:
    """Bytes of r that are swapped: the KV of its tokens, and its states."""
    return float(s.requests[r].kv * s.options.kv_bytes_per_token + s.options.state_bytes)


@inner
def seats(s: State, i: int) -> int:
    """Requests that count against i's largest batch."""
    inst = s.instances[i]
    here = inst.running + inst.prefilling
    return here + inst.computed if unlikely(s.options.pulls) else here + inst.joining + inst.reserved


@inner
def has_room(s: State, i: int, blocks: int) -> bool:
    """Whether a request with `blocks` blocks of KV may come to i; requests that i preempted go first."""
    inst = s.instances[i]
    if unlikely(inst.recompute_tokens > 0):
        return False
    return seats(s, i) < inst.max_batch and available(s, i) - blocks >= watermark_of(s, i)
