"""Hash ids of prompts' blocks: their checks, and ids of contents as ids of prefixes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from framework.errors import InputError
from traces.block_ids import list_column
from traces.parsing.rows import Check

_SIGNED = 2**63
_SIZES = (16, 32, 64, 128, 256, 512, 1024)  # tokens in a block of servers
_MOST = 0.9  # share of the rows that another size fits from which that size is assumed


def id_of(value: Any) -> int | None:
    """A hash id as a signed 64-bit number: an unsigned one by its bits, a longer one or a name by a hash of it, whose
    collisions have odds of n^2 / 2^65; None for an invalid id.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, str) or not -_SIGNED <= value < 2 * _SIGNED:
        return int.from_bytes(
            hashlib.blake2b(str(value).encode("utf-8", "replace"), digest_size=8).digest(), signed=True
        )
    return value - 2 * _SIGNED if value >= _SIGNED else value


def ceil_blocks(inputs: str, block_tokens: int) -> pl.Expr:
    """Blocks of a prompt, a partial last one counted."""
    return (pl.col(inputs) / block_tokens).ceil()


def floor_blocks(inputs: str, block_tokens: int) -> pl.Expr:
    """Full blocks of a prompt."""
    return (pl.col(inputs) / block_tokens).floor()


def hash_checks(
    path: Path,
    columns: tuple[str, str],
    block_tokens: int,
    least_ids: Callable[[str, int], pl.Expr],
    frame: pl.DataFrame,
) -> list[Check]:
    """Checks for one id per block of the prompt; `least_ids` says whether a partial last block needs one."""
    hashes, inputs = columns
    if block_tokens < 1:
        raise InputError(f"{path}: {hashes} without the tokens in a block; set trace.block_tokens")
    held = pl.col(hashes).list.len().cast(pl.Int64)
    fits = {size: frame.select((held == ceil_blocks(inputs, size)).mean()).item() for size in _SIZES}
    has_several = (frame[hashes].list.len().max() or 0) > 1  # type: ignore[operator]
    better = next((size for size, share in fits.items() if has_several and (share or 0.0) > _MOST), None)
    advice = "another block size? set trace.block_tokens" if better is None else f"set trace.block_tokens={better}"
    reason = (
        f"hash_ids do not fit the length: {{{inputs}:g}} tokens in blocks of {block_tokens} need"
        f" ceil({{{inputs}:g}} / {block_tokens}) ids ({advice})"
    )
    return [
        (pl.col(hashes).is_null(), f"{hashes} is missing, though other rows have it"),
        (pl.col(hashes).list.eval(pl.element().is_null()).list.any(), f"{hashes} holds a null"),
        ((held < least_ids(inputs, block_tokens)) | (held > ceil_blocks(inputs, block_tokens)), reason),
    ]


def chained(lists: pl.Series) -> pl.Series:
    """Ids of block contents as ids of prefixes: each is hashed with the previous one, then numbered from 0.

    The hash has 64 bits (mixing function of Steele et al., OOPSLA 2014): n prefixes collide with odds of n^2 / 2^65.
    """
    lengths = lists.list.len().to_numpy().astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    flat = lists.explode(empty_as_null=False, keep_nulls=False).to_numpy().astype(np.uint64)
    rows = np.argsort(-lengths, kind="stable")  # longest first: rows with a block j come first
    chain = np.zeros(len(rows), np.uint64)
    for block in range(int(lengths.max(initial=0))):
        alive = int(np.searchsorted(-lengths[rows], -block, side="left"))
        at = offsets[rows[:alive]] + block
        mixed = (chain[:alive] ^ flat[at]) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        chain[:alive] = flat[at] = mixed ^ (mixed >> np.uint64(31))
    names = np.unique(flat, return_inverse=True)[1].reshape(-1).astype(np.int64)
    column = list_column(names, offsets)
    return column.alias(lists.name)


def named_apart(lists: pl.Series, blocks: pl.Series) -> tuple[pl.Series, tuple[str, ...]]:
    """Lists of ids, in which a prompt without one gets `blocks` ids of its own; what to report of these."""
    lost = lists.is_null()
    if not lost.any():
        return lists, ()
    counts = pl.select(pl.when(lost).then(blocks).otherwise(lists.list.len())).to_series().to_numpy().astype(np.int64)
    is_lost = np.repeat(lost.to_numpy(), counts)
    flat = np.empty(len(is_lost), np.int64)
    flat[~is_lost] = np.unique(lists.explode(empty_as_null=False, keep_nulls=False).to_numpy(), return_inverse=True)[
        1
    ].reshape(-1)
    flat[is_lost] = np.arange(int(is_lost.sum())) + len(is_lost)
    note = f"{int(lost.sum()):,} of {len(lists):,} requests have no hash ids: their prompts are taken as unrelated"
    return list_column(flat, np.concatenate(([0], np.cumsum(counts)))).alias(lists.name), (note,)
