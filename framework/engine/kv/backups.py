"""Backups of KV outside of instances, from which a request that a crash dropped is restored where it next prefills."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State


@inner
def keep_backup(s: State, r: int, tokens: int) -> int:
    """Let r, of which a crash has lost `tokens` KV tokens, be restored from their whole blocks; return their tokens.

    If it has lost none, because it waited, it is restored from what an earlier crash left it.
    """
    at = s.options.backed_up_at + r
    if tokens > 0:
        s.lists[at] = tokens // s.options.backup_tokens * s.options.backup_tokens
    return int(s.lists[at])


@inner
def forget_backup(s: State, r: int) -> None:
    """Let r be computed from its first token, or from what a cache has of it."""
    if unlikely(s.options.faults > 0):
        s.lists[s.options.backed_up_at + r] = 0


@inner
def known_tokens(s: State, r: int, matched: int) -> int:
    """KV tokens that r, which waits, need not compute: its `matched` trace blocks, or its backup if that has more."""
    tokens = matched * s.options.hash_blocks * s.options.block_tokens
    if unlikely(s.options.faults > 0):
        return int(max(tokens, min(s.lists[s.options.backed_up_at + r], s.requests[r].prefill_until - 1)))
    return int(tokens)


@inner
def read_backup(s: State, i: int, r: int, cached: int) -> None:
    """Read back to i, for the step that is being formed, what r, which is admitted, has beyond `cached` tokens."""
    inst, tokens = s.instances[i], s.requests[r].prefilled - cached
    if tokens > 0:
        bytes_s = s.options.restore_bytes_s if s.options.restore_bytes_s > 0.0 else inst.host_bytes_s
        inst.restored_tokens += tokens
        inst.load_s += (tokens * s.options.kv_bytes_per_token + s.options.state_bytes) / bytes_s
    forget_backup(s, r)
