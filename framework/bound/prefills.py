"""What the prefill of each request costs at least: tokens that no cache can save, and attention however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.bound.tables import curve_at
from framework.compiler.decorators import compiled
from framework.timing.table import StepRow
from framework.workload import Workload, block_names, dense

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Names = NDArray[np.integer[Any]]
Small = NDArray[np.int32]
Held = tuple[Integers, Integers, Names]  # `blocks`, `begins` and `names` of Prefixes
Found = tuple[Small, Small, Small, Flags]  # for each name: how many hold it, the first two of them, whether it is free


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
        """The seconds of prompts of so many tokens, of which the first `cached` are there already."""
        tokens, cached = (np.minimum(which, len(self.last) - 1) for which in (tokens, cached))
        squares = tokens.astype(np.float64) ** 2 - cached.astype(np.float64) ** 2
        if self.whole:
            return self.last[tokens] * squares
        return np.maximum(self.upto_s(tokens) - self.upto_s(cached), self.least[tokens] * squares)


def attention(row: StepRow, longest: int, chunk: float, *, whole: bool) -> Attention:
    """The attention of targets of up to `longest` tokens, in chunks of up to `chunk` where they are cut."""
    ends = np.arange(1.0, longest + 1)
    rate = row.prefill_quadratic_s + curve_at(row.attention, ends) / (ends * ends)
    if row.waste is not None:  # A chunk that ends there has waste, whatever its length.
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
    time. Each of the first `blocks` (N,) blocks of a prompt is charged to all that hold it, in equal parts: block j of
    request r, whose name is `names[begins[r] + j]`, by `part[name]`; `begins` (N,).
    """

    cached: Integers
    blocks: Integers
    block_tokens: int
    begins: Integers
    names: Names
    part: Floats

    @property
    def held_by_others(self) -> Integers:
        """Tokens of the leading blocks of each prompt that others hold too, at whatever time, (N,)."""
        run = self.blocks.copy()
        _cut_alone(self.blocks, self.begins, self.names, self.part, run)
        return run * self.block_tokens

    def charged(self, upto: Callable[[Integers], Floats], tokens: Integers) -> Floats:
        """The part of each request in a cost of which the first x tokens of any prompt make `upto(x)`, (N,)."""
        edges = upto(np.arange(int(self.blocks.max(initial=0)) + 1) * self.block_tokens)
        parts = np.zeros(len(tokens))
        _add_parts((self.blocks, self.begins, self.names), self.part, np.diff(edges), parts)
        return upto(tokens) - upto(self.blocks * self.block_tokens) + parts


def no_prefixes(workload: Workload) -> Prefixes:
    """Nothing is saved."""
    none = np.zeros(len(workload), np.int64)
    return Prefixes(none, none, 1, none, np.zeros(0, np.int64), np.zeros(0))


def shared_prefixes(workload: Workload, due_s: Floats | None) -> Prefixes:
    """What whole blocks of the trace save.

    `due_s` (N,): when each request must have its first token, in recorded time; None where arrivals are not known. The
    first to hold a block finds it only if another comes in time to compute it.
    """
    assert workload.hash_spans is not None
    size = workload.hash_block_tokens
    blocks = np.minimum(workload.hash_counts, workload.input_tokens // size)
    names = dense(workload.hash_ids)
    free = np.zeros(int(names.max(initial=-1)) + 1, bool)
    return _saved(workload, due_s, size, (blocks, workload.hash_spans[:, 0], names), free)


def shared_blocks(workload: Workload, due_s: Floats | None, block_tokens: int) -> Prefixes:
    """The prefixes of KV blocks shared from their allocation on; those that a turn before generates are free."""
    own, offsets = block_names(workload, block_tokens)
    names = dense(own)
    blocks = np.minimum(np.diff(offsets), workload.input_tokens // block_tokens)
    free = np.zeros(int(names.max(initial=-1)) + 1, bool)
    _mark_generated(blocks, offsets, names, free)
    return _saved(workload, due_s, block_tokens, (blocks, offsets[:-1], names), free)


def _saved(workload: Workload, due_s: Floats | None, size: int, held: Held, free: Flags) -> Prefixes:
    """What blocks of `size` tokens save. `free`: whether one is there without having been prefilled, by its name."""
    blocks, begins, names = held
    holders, first, second = (np.zeros(len(free), np.int32) for _ in range(3))
    _count_holders(blocks, begins, names, holders, first, second)
    run = np.minimum(blocks, (workload.input_tokens - 1) // size)  # one token at least is left to compute
    due_s = np.full(len(blocks), np.inf) if due_s is None else due_s
    _cut_missing(held, (holders, first, second, free), workload.arrival_s, due_s, run)
    del first, second  # There may be as many names as blocks.
    part = holders.astype(np.float64)
    np.maximum(part, 1.0, out=part)
    np.divide(1.0, part, out=part)
    part[free] = 0.0
    return Prefixes(run * size, blocks, size, begins, names, part)


# --- over the blocks of all prompts, of which there may be a thousand times as many as prompts ------------------------


@compiled
def _count_holders(
    blocks: Integers, begins: Integers, names: Names, holders: Small, first: Small, second: Small
) -> None:
    """How many hold each name, and the first two of them."""
    for r in range(len(blocks)):
        for at in range(begins[r], begins[r] + blocks[r]):
            name = names[at]
            holders[name] += 1
            if holders[name] == 1:
                first[name] = r
            elif holders[name] == 2:
                second[name] = r


@compiled
def _cut_missing(held: Held, found: Found, arrival_s: Floats, due_s: Floats, run: Integers) -> None:
    """Let the run of each prompt end before the first block that nobody has computed for it in time."""
    blocks, begins, names = held
    holders, first, second, free = found
    for r in range(len(blocks)):
        for j in range(min(blocks[r], run[r])):
            name = names[begins[r] + j]
            in_time = first[name] != r or arrival_s[second[name]] <= due_s[r]
            if not free[name] and not (holders[name] > 1 and in_time):
                run[r] = j
                break


@compiled
def _cut_alone(blocks: Integers, begins: Integers, names: Names, part: Floats, run: Integers) -> None:
    """Let the run of each prompt end before the first block that it holds alone."""
    for r in range(len(blocks)):
        for j in range(blocks[r]):
            if part[names[begins[r] + j]] == 1.0:
                run[r] = j
                break


@compiled
def _add_parts(held: Held, part: Floats, each: Floats, parts: Floats) -> None:
    """Add to `parts` what each prompt has of `each` block."""
    blocks, begins, names = held
    for r in range(len(blocks)):
        for j in range(blocks[r]):
            parts[r] += each[j] * part[names[begins[r] + j]]


@compiled
def _mark_generated(blocks: Integers, offsets: Integers, names: Names, free: Flags) -> None:
    """Mark the names of blocks that lie behind prompts."""
    for r in range(len(blocks)):
        for at in range(offsets[r] + blocks[r], offsets[r + 1]):
            free[names[at]] = True
