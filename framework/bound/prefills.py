"""What the prefill of each request costs at least: tokens that no cache can save, and attention however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.bound.tables import curve_at
from framework.timing.table import StepRow
from framework.workload import Workload, block_names

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Attention:
    """Least seconds of prefill attention in one pool.

    A chunk from token a to token b costs g(b) (b^2 - a^2) or more, so token x costs (2 x - 1) g(b) or more with b the
    end of its chunk. `tokens_s` (X + 1,): sum over the first x tokens of the least that each can cost; `least` (X +
    1,): the least g up to x; `last` (X + 1,): g itself, the least for each token of a prompt of x that is not cut
    (`whole`).
    """

    tokens_s: Floats
    least: Floats
    last: Floats
    whole: bool

    def upto_s(self, tokens: Integers) -> Floats:
        """The least that so many first tokens of any prompt cost."""
        return self.tokens_s[np.minimum(tokens, len(self.tokens_s) - 1)]

    def prompt_s(self, cached: Integers, tokens: Integers) -> Floats:
        """Of prompts of so many tokens, of which the first `cached` are there already."""
        tokens, cached = (np.minimum(which, len(self.last) - 1) for which in (tokens, cached))
        squares = tokens.astype(np.float64) ** 2 - cached.astype(np.float64) ** 2
        if self.whole:
            return self.last[tokens] * squares
        return np.maximum(self.upto_s(tokens) - self.upto_s(cached), self.least[tokens] * squares)


def attention(row: StepRow, longest: int, chunk: float, whole: bool) -> Attention:
    """For targets of up to `longest` tokens, in chunks of up to `chunk` where they are cut."""
    ends = np.arange(1.0, longest + 1)
    rate = row.prefill_quadratic_s + curve_at(row.attention, ends) / (ends * ends)
    if row.waste is not None:  # of a chunk that ends there, whatever its length
        rate *= min(row.waste.values) / curve_at(row.waste, ends)
    ahead = _least_ahead(rate, longest if whole else int(min(chunk, longest)))
    tokens_s = np.cumsum((2 * ends - 1) * ahead)
    least = np.minimum.accumulate(rate)
    return Attention(np.insert(tokens_s, 0, 0.0), np.insert(least, 0, 0.0), np.insert(rate, 0, 0.0), whole)


def _least_ahead(values: Floats, width: int) -> Floats:
    """The least of each value and the width - 1 that follow it: minima over blocks from either end meet in a window.

    M. van Herk, "A fast algorithm for local minimum and maximum filters", Pattern Recognition Letters 13(7), 1992.
    """
    count = len(values)
    padded = np.full(-(-(count + width) // width) * width, np.inf)
    padded[:count] = values
    blocks = padded.reshape(-1, width)
    forward = np.minimum.accumulate(blocks, axis=1).ravel()
    backward = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.minimum(backward[:count], forward[width - 1 :][:count])


@dataclass(frozen=True)
class Prefixes:
    """What an unbounded cache could save: `cached` (N,) prompt tokens that others may have computed for a request in
    time. Each of the first `blocks` (N,) blocks of a prompt is charged to all that hold it, in equal parts: block
    number `block` (B,) of request `request` (B,) by `part` (B,).
    """

    cached: Integers
    blocks: Integers
    block_tokens: int
    request: Integers
    block: Integers
    part: Floats

    @property
    def held_by_others(self) -> Integers:
        """Tokens of the leading blocks of each prompt that others hold too, at whatever time, (N,)."""
        run, alone = self.blocks.copy(), self.part == 1.0
        np.minimum.at(run, self.request[alone], self.block[alone])
        return run * self.block_tokens

    def charged(self, upto: Callable[[Integers], Floats], tokens: Integers) -> Floats:
        """For each request its part of a cost of which the first x tokens of any prompt make `upto(x)`, (N,)."""
        each = upto((self.block + 1) * self.block_tokens) - upto(self.block * self.block_tokens)
        parts = np.bincount(self.request, each * self.part, minlength=len(tokens))
        return upto(tokens) - upto(self.blocks * self.block_tokens) + parts


def no_prefixes(workload: Workload) -> Prefixes:
    """Nothing is saved."""
    none = np.zeros(len(workload), np.int64)
    empty = np.zeros(0, np.int64)
    return Prefixes(none, none, 1, empty, empty, np.zeros(0))


def shared_prefixes(workload: Workload, due_s: Floats | None) -> Prefixes:
    """What whole blocks of the trace save.

    `due_s` (N,): when each request must have its first token, in recorded time; None where arrivals are not known. The
    first to hold a block finds it only if another comes in time to compute it.
    """
    assert workload.hash_offsets is not None
    size = workload.hash_block_tokens
    blocks = np.minimum(np.diff(workload.hash_offsets), workload.input_tokens // size)
    request, block = _numbered(blocks)
    names = workload.hash_ids[workload.hash_offsets[request] + block]
    return _saved(workload, due_s, size, blocks, names, np.zeros(len(names), bool))


def shared_blocks(workload: Workload, due_s: Floats | None, block_tokens: int) -> Prefixes:
    """The same of KV blocks that are shared from their allocation on; those that a turn before generates are free."""
    names, offsets = block_names(workload, block_tokens)
    blocks = np.minimum(np.diff(offsets), workload.input_tokens // block_tokens)
    request, block = _numbered(blocks)
    of_prompts = offsets[request] + block
    generated = np.ones(len(names), bool)
    generated[of_prompts] = False
    free = np.isin(names[of_prompts], names[generated])
    return _saved(workload, due_s, block_tokens, blocks, names[of_prompts], free)


def _numbered(blocks: Integers) -> tuple[Integers, Integers]:
    """Request and number of each of so many blocks, (B,)."""
    request = np.repeat(np.arange(len(blocks)), blocks)
    return request, np.arange(len(request)) - np.repeat(np.cumsum(blocks) - blocks, blocks)


def _saved(
    workload: Workload, due_s: Floats | None, size: int, blocks: Integers, names: Integers, free: Flags
) -> Prefixes:
    """What blocks of `size` tokens save, the first `blocks` (N,) of each prompt. Of each block its name, and whether it
    is there without having been prefilled, (B,).
    """
    request, block = _numbered(blocks)
    _, first, which, holders = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    found = holders[which] > 1
    if due_s is not None:
        later = np.argsort(which, kind="stable")
        second = later[np.minimum(np.cumsum(holders) - holders + 1, len(later) - 1)]
        leads = first[which] == np.arange(len(which))
        found &= ~leads | (workload.arrival_s[request[second[which]]] <= due_s[request])
    found |= free
    run = np.minimum(blocks, (workload.input_tokens - 1) // size)  # one token at least is left to compute
    np.minimum.at(run, request[~found], block[~found])
    return Prefixes(run * size, blocks, size, request, block, np.where(free, 0.0, 1.0 / holders[which]))
