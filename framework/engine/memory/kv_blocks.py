"""Counting KV memory: how many blocks tokens take, how many an instance has left, and what it holds over time."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State


@inner
def blocks_for(s: State, tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return (tokens + s.options.block_tokens - 1) // s.options.block_tokens


@inner
def blocks_of(s: State, i: int, tokens: int) -> int:
    """Blocks that a request of so many KV tokens has on i: those that hold them, or the instance's reservation."""
    reserved = s.instances[i].reserve_blocks
    return reserved if reserved > 0 else blocks_for(s, tokens)


@inner
def fits(s: State, i: int, r: int) -> bool:
    """Whether r's peak KV could ever be admitted to i, and is not more than i reserves."""
    inst = s.instances[i]
    peak = s.requests[r].input_tokens + s.lists[s.options.output_at + r] - 1
    largest = inst.total_blocks if s.options.spares_idle else inst.total_blocks - inst.watermark
    return blocks_for(s, peak) <= (inst.reserve_blocks if inst.reserve_blocks > 0 else largest)


@inner
def available(s: State, i: int) -> int:
    """Blocks that can be taken: free ones, and those of cached prefixes that nobody references."""
    return s.instances[i].free_blocks + s.instances[i].evictable_blocks


@inner
def watermark_of(s: State, i: int) -> int:
    """Blocks that whoever comes to i leaves available."""
    inst = s.instances[i]
    if unlikely(s.options.spares_idle) and inst.running + inst.prefilling == 0 and inst.lingering_head < 0:
        return 0
    return inst.watermark


@inner
def note_use(s: State, i: int, blocks: int, time_s: float) -> None:
    """From `time_s` on, so many more blocks are in use: what is in use is 0 at both ends of a run, so that the sum of
    -blocks * time over all changes is the integral of blocks in use over time.
    """
    s.instances[i].kv_block_s -= blocks * time_s


@inner
def add_kv_tokens(s: State, i: int, tokens: int, time_s: float) -> None:
    """From `time_s` on, so many more KV tokens are held on i; their integral over time is kept as that of blocks is."""
    note_tokens(s, i, tokens, tokens * time_s)


@inner
def note_tokens(s: State, i: int, tokens: int, added_s: float) -> None:
    """The same for tokens added at several times, `added_s` summed over the tokens."""
    s.instances[i].kv_tokens += tokens
    s.instances[i].kv_token_s -= added_s


@inner
def seats(s: State, i: int) -> int:
    """Requests that count against i's largest batch."""
    inst = s.instances[i]
    here = inst.running + inst.prefilling
    return here + inst.computed if unlikely(s.options.pulls) else here + inst.joining + inst.reserved


@inner
def has_room(s: State, i: int, blocks: int) -> bool:
    """Whether KV of `blocks` blocks and its request may come to i: those that were preempted there come first."""
    inst = s.instances[i]
    if unlikely(inst.recompute_tokens > 0):
        return False
    return seats(s, i) < inst.max_batch and available(s, i) - blocks >= watermark_of(s, i)
