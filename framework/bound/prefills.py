"""The least cost of each request's prefill: the tokens that no cache can save, and attention for any way to cut it."""

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
# for each name: the number of its holders, the first two of them, whether it is free
Found = tuple[Small, Small, Small, Flags]


@dataclass(frozen=True)
class Attention:
    """Least seconds of prefill attention in one pool.

    A chunk from token a to token b costs at least g(b) (b^2 - a^2), so token x costs at least (2 x - 1) g(b), with b
    the end of its chunk. `tokens_s` (X + 1,): sum over the first x tokens of the least cost of each; `least` (X + 1,):
    the least g up to x; `last` (X + 1,): g itself, the least for each token of an uncut prompt of x tokens (`whole`).
    `bounded_s` (X + 1,): what the first x tokens cost besides, however they are cut.
    """

    tokens_s: Floats
    least: Floats
    last: Floats
    bounded_s: Floats
    whole: bool

    def upto_s(self, tokens: Integers) -> Floats:
        """The least cost of the first `tokens` tokens of any prompt."""
        tokens = np.minimum(tokens, len(self.tokens_s) - 1)
        return self.tokens_s[tokens] + self.bounded_s[tokens]

    def prompt_s(self, cached: Integers, tokens: Integers) -> Floats:
        """Seconds for prompts of `tokens` tokens, of which the first `cached` are cached."""
        tokens, cached = (np.minimum(which, len(self.last) - 1) for which in (tokens, cached))
        squares = tokens.astype(np.float64) ** 2 - cached.astype(np.float64) ** 2
        bounded_s = self.bounded_s[tokens] - self.bounded_s[cached]
        if self.whole:
            return self.last[tokens] * squares + bounded_s
        return np.maximum(self.tokens_s[tokens] - self.tokens_s[cached], self.least[tokens] * squares) + bounded_s


def attention(row: StepRow, longest: int, chunk: float, *, whole: bool) -> Attention:
    """The attention of targets of up to `longest` tokens, in chunks of up to `chunk` tokens if they are cut."""
    ends = np.arange(1.0, longest + 1)
    rate = row.prefill_quadratic_s + curve_at(row.attention, ends) / (ends * ends)
    if row.waste is not None:  # A chunk of any length that ends there has waste.
        rate *= min(row.waste.values) / curve_at(row.waste, ends)
    ahead = _least_ahead(rate, longest if whole else int(min(chunk, longest)))
    tokens_s = np.cumsum((2 * ends - 1) * ahead)
    least = np.minimum.accumulate(rate)
    series = tokens_s, least, rate, curve_at(row.bounded, ends)
    tokens_s, least, last, bounded_s = (np.insert(values, 0, 0.0) for values in series)
    return Attention(tokens_s, least, last, bounded_s, whole)


def _least_ahead(values: Floats, width: int) -> Floats:
    """The least of each value and the width - 1 after it: minima over blocks from either end meet in a window.

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
    """What an unbounded cache could save: `cached` (N,) prompt tokens that others may have computed in time. All
    holders of a block share its cost equally. This applies to the first `blocks` (N,) blocks of a prompt: block j of
    request r has the name `names[begins[r] + j]` and r's share is `part[name]`; `begins` (N,).
    """

    cached: Integers
    blocks: Integers
    block_tokens: int
    begins: Integers
    names: Names
    part: Floats

    @property
    def held_by_others(self) -> Integers:
        """Tokens of the leading blocks of each prompt that other prompts also hold, at any time, (N,)."""
        run = self.blocks.copy()
        _cut_alone(self.blocks, self.begins, self.names, self.part, run)
        return run * self.block_tokens

    def charged(self, upto: Callable[[Integers], Floats], tokens: Integers) -> Floats:
        """The part of each request in a cost `upto(x)` of the first x tokens of any prompt, (N,)."""
        edges = upto(np.arange(int(self.blocks.max(initial=0)) + 1) * self.block_tokens)
        parts = np.zeros(len(tokens))
        _add_parts((self.blocks, self.begins, self.names), self.part, np.diff(edges), parts)
        return upto(tokens) - upto(self.blocks * self.block_tokens) + parts


def no_prefixes(workload: Workload) -> Prefixes:
    """No prefixes: nothing is saved."""
    none = np.zeros(len(workload), np.int64)
    return Prefixes(none, none, 1, none, np.zeros(0, np.int64), np.zeros(0))


def shared_prefixes(workload: Workload, due_s: Floats | None) -> Prefixes:
    """The prefixes of whole blocks of the trace.

    `due_s` (N,): when each request must have its first token, in recorded time; None if arrivals are not known. The
    first holder of a block finds it cached only if another holder comes in time to compute it.
    """
    assert workload.hash_spans is not None
    size = workload.hash_block_tokens
    blocks = np.minimum(workload.hash_counts, workload.input_tokens // size)
    names = dense(workload.hash_ids)
    free = np.zeros(int(names.max(initial=-1)) + 1, bool)
    begins = np.array(workload.hash_spans[:, 0])  # a copy has one layout, so that what follows is compiled once
    return _saved(workload, due_s, size, (blocks, begins, names), free)


def shared_blocks(workload: Workload, due_s: Floats | None, block_tokens: int) -> Prefixes:
    """The prefixes of KV blocks shared from their allocation on; those that an earlier turn generates are free."""
    own, offsets = block_names(workload, block_tokens)
    names = dense(own)
    blocks = np.minimum(np.diff(offsets), workload.input_tokens // block_tokens)
    free = np.zeros(int(names.max(initial=-1)) + 1, bool)
    _mark_generated(blocks, offsets, names, free)
    return _saved(workload, due_s, block_tokens, (blocks, offsets[:-1], names), free)


def _saved(workload: Workload, due_s: Floats | None, size: int, held: Held, free: Flags) -> Prefixes:
    """What blocks of `size` tokens save. `free`: by name, whether a block exists without a prefill."""
    blocks, begins, names = held
    holders, first, second = (np.zeros(len(free), np.int32) for _ in range(3))
    _count_holders(blocks, begins, names, holders, first, second)
    run = np.minimum(blocks, (workload.input_tokens - 1) // size)  # at least one token is left to compute
    due_s = np.full(len(blocks), np.inf) if due_s is None else due_s
    _cut_missing(held, (holders, first, second, free), workload.arrival_s, due_s, run)
    del first, second  # There may be as many names as blocks.
    part = holders.astype(np.float64)
    np.maximum(part, 1.0, out=part)
    np.divide(1.0, part, out=part)
    part[free] = 0.0
    return Prefixes(run * size, blocks, size, begins, names, part)


# --- over the blocks of all prompts, which may be a thousand times as many as prompts ---------------------------------


@compiled
def _count_holders(
    blocks: Integers, begins: Integers, names: Names, holders: Small, first: Small, second: Small
) -> None:
    """Count the holders of each name, and note the first two of them."""
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
    """Let each prompt's run end before the first block that no request has computed in time."""
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
    """Let each prompt's run end before the first block that no other prompt holds."""
    for r in range(len(blocks)):
        for j in range(blocks[r]):
            if part[names[begins[r] + j]] == 1.0:
                run[r] = j
                break


@compiled
def _add_parts(held: Held, part: Floats, each: Floats, parts: Floats) -> None:
    """Add to `parts` each prompt's part of `each` block."""
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
