"""Ids of the blocks of prompts that begin with one of several trunks and go on with an owner's own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.errors import InputError
from traces.block_ids import list_column

Ints = NDArray[np.int64]
_MOST_BLOCKS = 500_000_000  # most blocks of all prompts: drawing one takes some 8 bytes
_PIECE = 5_000  # rows whose blocks are drawn at once


@dataclass(frozen=True)
class Trunks:
    """`count` trunks of `tokens` tokens each, such as system prompts; `of` (owners,) is the trunk of each owner.

    Prompts are cut into blocks of `block_tokens` tokens.
    """

    of: Ints
    tokens: int
    count: int
    block_tokens: int


def prefix_blocks(prompt: Ints, owner: Ints, trunks: Trunks, rows: Ints) -> pl.Series:
    """A list column with the ids of the blocks of some rows' prompts.

    A block inside the trunk belongs to the trunk, a further one to the owner (a later prompt of the owner has it
    again); a partial last block has no id. Ids are numbered in this order: owners, trunks. `prompt` and `owner` (N,)
    are of all rows. Raises InputError for more blocks than fit into memory.
    """
    full = prompt // trunks.block_tokens
    if (blocks := int(full.sum())) > _MOST_BLOCKS:
        raise InputError(
            f"trace: the prompts have {blocks:,} prefix blocks, at most {_MOST_BLOCKS:,} are drawn; set a"
            " larger block_tokens, or fewer or shorter prompts"
        )
    shared = trunks.tokens // trunks.block_tokens
    longest, most_shared = np.zeros(len(trunks.of), np.int64), np.zeros(trunks.count, np.int64)
    np.maximum.at(longest, owner, full)
    np.maximum.at(most_shared, trunks.of[owner], np.minimum(full, shared))
    own = np.maximum(longest - shared, 0)
    own_start = np.cumsum(own) - own - shared
    trunk_start = own.sum() + np.cumsum(most_shared) - most_shared

    def column(chosen: Ints) -> pl.Series:
        offsets = np.concatenate(([0], np.cumsum(full[chosen])))
        whose = owner[np.repeat(chosen, full[chosen])]
        block = np.arange(offsets[-1]) - np.repeat(offsets[:-1], full[chosen])
        starts = np.where(block < shared, trunk_start[trunks.of[whose]], own_start[whose])
        return list_column((starts + block).astype(np.int32), offsets)

    return pl.concat([column(rows[at : at + _PIECE]) for at in range(0, len(rows), _PIECE)], rechunk=False)
